"""`kneewatch doctor` on servers whose pages have numbers that cannot be, and on one whose every text is hostile."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from foreign_server import MODELS, Answer, foreign_server, stream
from kneewatch_command import Finished, kneewatch

from probe.config.config_file import load_config

RECORDED = (Path(__file__).parents[1] / "golden/vllm-0.32/metrics.txt").read_text()
_LENGTHS = re.compile(r"^(vllm:request_(prompt|generation)_tokens_(bucket|count).*) \S+$", re.MULTILINE)
_VALUE = re.compile(r"^((?!vllm:engine_sleep)\w[^ #]*) \S+$", re.MULTILINE)  # a server that sleeps gets nothing
_TERMINAL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
_MARKUP = "<script>alert(1)</script>|[x](http://e)|{{.}}"


def _huge() -> str:
    """Return a page on which every sample is there for two engines, each the largest number of a double."""
    return "\n".join(_VALUE.sub(rf"\1 {value}", RECORDED.replace('engine="0"', f'engine="{engine}"'))
                     for engine, value in (("0", "1.7e308"), ("1", "1.7e308")))  # fmt: skip


def _empty() -> str:
    """Return a page of many requests that had no tokens."""
    return _LENGTHS.sub(r"\1 500", _VALUE.sub(r"\1 0", RECORDED))


def _hostile() -> str:
    """Return a page whose labels have what a terminal, a browser or a template would obey."""
    said = (_TERMINAL + _MARKUP).replace("\\", "\\\\")
    return RECORDED.replace('model_name="', f'model_name="{said}').replace('dtype="', f'dtype="{said}')


def _serving(page: str, *, is_hostile: bool = False) -> Callable[[str, bytes], Answer]:
    """Return the answers of a server with this page."""

    def answer(path: str, body: bytes) -> Answer:
        said = _TERMINAL + _MARKUP
        if path == "/metrics":
            return 200, "text/plain", [page.encode()]
        if path == "/v1/models":
            listed = json.dumps({"data": [{"id": said}, {"id": _MARKUP, "root": said}]}).encode()
            return 200, "application/json", [listed if is_hostile else MODELS]
        if path == "/v1/completions":
            return stream(body)
        if path in ("/version", "/server_info"):
            return 200, "application/json", [json.dumps({"version": said, "vllm_config": {said: said}}).encode()]
        return 400, f"text/plain; x={_MARKUP}", [json.dumps({"error": {"message": f"{said}\n{said}"}}).encode()]

    return answer


@pytest.mark.fault(
    "FA111",
    "A metrics page with numbers whose sums overflow, with requests that had no tokens, or hostile in every text",
    area="Foreign answers",
    users_see="`doctor` says what the rest shows",
    stays="no traceback, no escapes, no markup obeyed",
)
def test_what_a_server_reports_ends_no_examination_and_is_shown_as_text(tmp_path: Path) -> None:
    def examined(name: str, page: str) -> Finished:
        file, how = tmp_path / f"{name}.yml", ("--json",) if name == "empty" else ()
        with foreign_server(_serving(page, is_hostile=name == "hostile")) as url:
            done = kneewatch("doctor", "--base-url", url, "--seconds", "15", "--write", file, *how)
        if done.status < 2:
            load_config(file)
            assert "alert" not in yaml.safe_load(file.read_text())["targets"][0].get("model", "")
        return done

    pages = {"huge": _huge(), "empty": _empty(), "hostile": _hostile()}
    with ThreadPoolExecutor(len(pages)) as pool:
        found = dict(zip(pages, pool.map(examined, pages, pages.values()), strict=True))
    for name, done in found.items():
        said = done.out + done.err
        assert done.status in (0, 1), (name, said)
        assert all(line.isprintable() for line in said.splitlines()), (name, said)
        assert "Traceback" not in said, (name, said)
    assert "Server:" in found["huge"].out
    assert json.loads(found["empty"].out)["users"]["mean_prompt_tokens"] is None
    assert _MARKUP[:20] in found["hostile"].out

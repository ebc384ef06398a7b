"""What a server, a registry or a file says that no honest one would say."""

import gzip
import itertools
import json
import os
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from foreign_server import MODELS, NO_METRICS, Answer, foreign_server, stream
from monitor import Monitor, Sim
from process import eventually
from process_memory import MIB, peak
from prometheus_client.openmetrics.parser import text_string_to_metric_families

_GROUPS = b'[{"targets":["127.0.0.1:1"],"labels":{"team":"chat"}}]'


def bomb(levels: str) -> str:
    """Return a target group in YAML whose last label stands for nine to the power of `levels` values."""
    lists = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise(levels)]
    return f"- targets: [a]\n  labels: {{a: &a [{', '.join('x' * 9)}], {', '.join(lists)}}}\n"


# Each with words of the one line that reports it.
REGISTRIES = {
    "unfolds": (b"[" + b"{}," * 5_000_000 + b"{}]", "the answer holds more than 300000 values"),
    "deep": (b"[" * 100_000, "the answer is nested deeper than 32"),
    "label bomb": (
        b'[{"targets":["127.0.0.1:1"],"labels":{"team":[' + b"[]," * 90_000 + b"[]]}}]",
        "the label 'team' is no text",
    ),
    "long labels": (json.dumps([{"targets": ["127.0.0.1:1"], "labels": {"a": "x" * 10**7}}]).encode(), "of labels"),
    "gzip bomb": (gzip.compress(b"[" + b" " * 10**8 + b"]"), "content-encoding 'gzip'"),
    "endless": (b" " * 17 * MIB, "the answer is larger than 16 MiB"),
}
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "alias bomb": (lambda path: path.write_text(bomb("abcdefgh")), "it holds more than 300000 values"),
    "FIFO": (os.mkfifo, "no file matches"),
    "label bomb": (lambda path: path.write_text(bomb("abc")), "the label 'a' is no text"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "no file matches"),
    "deep": (lambda path: path.write_bytes(b"[" * 100_000), "it is nested deeper than 32"),
}


def listed(monitor: Monitor, target: str) -> bool:
    return f'kneewatch_target_info{{target="{target}"' in monitor.page("/metrics")


@pytest.mark.fault(
    "E06",
    "an http_sd registry that unfolds, is deep, compressed, endless, or has labels that are no text or too long",
    area="Foreign answers",
    users_see="`kneewatch_discovery_failing` 1, and one line with the limit",
    stays="below 256 MiB; its last targets",
)
def test_a_hostile_registry(sim: Sim, tmp_path: Path) -> None:
    sent = [("application/json", _GROUPS)]

    def answer(_: str, __: bytes) -> Answer:
        kind, body = sent[-1]
        return 200, kind, [body]

    with foreign_server(answer) as url:
        found = {"name": "found", "discover": {"http": {"url": url, "every": "1s"}}}
        with Monitor({"targets": [{"name": "good", "base_url": sim.base_url}, found]}, tmp_path) as monitor:
            eventually(lambda: listed(monitor, "found/127.0.0.1:1"), within_s=30, what="the registry's target")
            for name, (body, words) in REGISTRIES.items():
                encoding = "\r\ncontent-encoding: gzip" if name == "gzip bomb" else ""
                reports(monitor, name, words, partial(sent.append, (f"application/json{encoding}", body)))
            assert listed(monitor, "found/127.0.0.1:1")
            assert peak(monitor.pid) < 256 * MIB


@pytest.mark.fault(
    "E12",
    "a file_sd file of aliases that unfold to gigabytes, that is deep, a FIFO or a device",
    area="Foreign answers",
    users_see="the same; a file that is none counts as removed",
    stays="below 256 MiB; the targets of other files",
)
def test_hostile_files(tmp_path: Path) -> None:
    folder, first, second = tmp_path / "sd", tmp_path / "sd" / "a.yml", tmp_path / "sd" / "b.yml"
    folder.mkdir()
    first.write_bytes(_GROUPS)
    second.write_bytes(_GROUPS.replace(b":1", b":2"))
    found = {"name": "found", "discover": {"file": {"files": [str(first), str(second)], "every": "1s"}}}
    with Monitor({"targets": [found]}, tmp_path) as monitor:
        eventually(lambda: listed(monitor, "found/127.0.0.1:1"), within_s=30, what="the file's target")
        for name, (write, words) in FILES.items():
            first.unlink()
            reports(monitor, name, words, partial(write, first))
        assert listed(monitor, "found/127.0.0.1:2"), "the other file's target"
        assert peak(monitor.pid) < 256 * MIB


def reports(monitor: Monitor, name: str, words: str, does: Callable[[], object]) -> None:
    """Do it, and wait until the log has the words, in a line and not in a traceback."""
    before = len(monitor.output)
    does()
    eventually(lambda: words in monitor.output[before:], within_s=60, what=f"{name}: {words}")
    assert "Traceback" not in monitor.output


@pytest.mark.fault(
    "A26",
    "answers of another model than asked for",
    area="Foreign answers",
    users_see="canary `wrong_answer`: which model answered. Another name of the same model, listed with the same "
    "root, is right",
    stays="the capacity, as it was measured",
)
def test_answers_of_another_model(tmp_path: Path) -> None:
    def answer(path: str, body: bytes) -> Answer:
        if path == "/v1/models":
            return 200, "application/json", [MODELS]
        return stream(body, "cheaper") if path == "/v1/completions" else NO_METRICS

    with foreign_server(answer) as url:
        swapped = {"name": "swapped", "base_url": url, "canary": {"every": "1s", "timeout": "5s"}}
        with Monitor({"targets": [swapped]}, tmp_path) as monitor:
            words = "the model 'cheaper' answered, 'm' was asked for"
            eventually(lambda: words in monitor.output, within_s=30, what=words)
            assert '"outcome": "wrong_answer"' in monitor.output


NEGATIVE = (
    b"vllm:num_requests_running 1\nvllm:num_preemptions_total -5\nvllm:prompt_tokens_total 1e308\n"
    b'vllm:prompt_tokens_total{engine="1"} 1e308\nvllm:generation_tokens_total NaN\n'
    b'vllm:time_to_first_token_seconds_bucket{le="0.5"} 7\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 3\n'
    b"vllm:time_to_first_token_seconds_sum -1\n"
)


@pytest.mark.fault(
    "A65",
    "a server that names another model at each failing canary",
    area="Foreign answers",
    users_see="a target has eight models, the rest are `other`",
    stays="the size of the page; all other series",
)
@pytest.mark.fault(
    "B00o",
    "a metrics page with negative, infinite or no counters, and histograms that fall",
    area="Foreign answers",
    users_see="these series are absent, as if the server did not have them",
    stays="the page is OpenMetrics that a strict parser accepts; the server's other series",
)
def test_a_server_of_ever_new_names_and_counters_that_are_none(tmp_path: Path) -> None:
    asked = itertools.count()

    def answer(path: str, _: bytes) -> Answer:
        if path == "/v1/models":
            return 200, "application/json", [b'{"data":[{"id":"model-%d"}]}' % next(asked)]
        return (200, "text/plain", [NEGATIVE]) if path == "/metrics" else (500, "text/plain", [b"none"])

    def labels_of_models(page: str) -> set[str]:
        return set(re.findall(r'^kneewatch_requests_total\{.*model="([^"]*)"', page, re.MULTILINE))

    with foreign_server(answer) as url:
        hostile = {"name": "hostile", "base_url": url, "scrape": "1s", "canary": {"every": "1s", "timeout": "2s"}}
        with Monitor({"targets": [hostile]}, tmp_path) as monitor:
            eventually(lambda: "other" in labels_of_models(monitor.page("/metrics")), within_s=60, what="model other")
            running = 'kneewatch_server_running_requests{target="hostile"} 1.0'
            eventually(lambda: running in monitor.page("/metrics"), within_s=20, what="a scrape")
            headers = {"accept": "application/openmetrics-text"}
            page = httpx.get(f"{monitor.base_url}/metrics", headers=headers, timeout=20, trust_env=False).text
            families = list(text_string_to_metric_families(page))
    assert len(labels_of_models(page)) <= 10
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples["kneewatch_server_running_requests"] == 1
    assert "kneewatch_server_preemptions_total" not in samples

"""Fuzzes each parser of bytes that another program sent, guided by coverage, and keeps what it finds.

    python tests/fuzz/fuzz_parsers.py metrics --seconds 60      needs `pip install atheris`

In: the name of a parser, and its inputs in tests/fuzz/corpus. Out: the same file, with the fewest of the old and new
inputs that reach each line of the parser. It fails, and prints the input, when one makes the parser raise what its
callers do not expect, or takes longer than five seconds. tests/unit/test_fuzz_corpus.py replays all inputs.
"""

import argparse
import ast
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, cast

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import msgspec  # noqa: E402 - after the path to what follows

from probe.client.exchange import read_answer  # noqa: E402
from probe.client.sse import EventSplitter  # noqa: E402
from probe.client.stream_parser import server_times  # noqa: E402
from probe.config.prometheus import PrometheusConfig  # noqa: E402
from probe.core.errors import TargetError  # noqa: E402
from probe.core.foreign_json import ForeignJsonError, read_json  # noqa: E402
from probe.core.request import Api  # noqa: E402
from probe.core.vllm_command import MAX_VALUE, count, served_port, vllm_flags  # noqa: E402
from probe.discovery import kubernetes_sd, target_groups  # noqa: E402
from probe.discovery.endpointslices import EndpointSlice, Slices  # noqa: E402
from probe.discovery.kubernetes_sd import ObjectWatch, WatchedResource  # noqa: E402
from probe.discovery.pods import Pod, Pods  # noqa: E402
from probe.discovery.target_groups import LIMITS, read_yaml  # noqa: E402
from probe.gpu import dcgm  # noqa: E402
from probe.kubernetes.client import KubernetesError, _checked, _utf8  # noqa: E402
from probe.prometheus import queries  # noqa: E402
from probe.scrape import engines, page_scraper  # noqa: E402
from probe.web.auth import _credentials  # noqa: E402

# Only modules that are imported while the engine looks are guided by coverage.
INSTRUMENTED = f"""
import sys
sys.path[:0] = {sys.path[:2]!r}
import atheris
with atheris.instrument_imports(include=["probe"]):
    from fuzz.fuzz_parsers import fuzz
fuzz(*sys.argv[1:])
"""
CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 2048
MOST = 60  # inputs that are kept of a parser
PAGES = ROOT / "tests/pages"
GOLDEN = ROOT / "tests/golden/vllm-0.32"


def stream(data: bytes) -> None:
    """A body of server-sent events: the same events however it is cut, and no exception."""
    at = data[0] % len(data) if data else 0
    whole, cut = EventSplitter(), EventSplitter()
    events = whole.feed(data) + whole.finish()
    assert events == cut.feed(data[:at]) + cut.feed(data[at:]) + cut.finish()
    for api in Api:
        said = read_answer([(1, 0, data)] if data else [], api)
        assert all(0 <= tokens <= 10_000_000 for tokens in said.events.tokens)


def metrics(data: bytes) -> None:
    """A page of any engine: a snapshot, or ValueError."""
    try:
        engines.parse(data.decode("utf-8", "replace"), 0, 0.0)
    except ValueError:
        return


def gpus(data: bytes) -> None:
    """A page of dcgm-exporter: a snapshot, or ValueError."""
    try:
        dcgm.parse(data.decode("utf-8", "replace"), 0, 0.0, {"host": "a"})
    except ValueError:
        return


def http_sd(data: bytes) -> None:
    """A registry's answer: servers, or ValueError."""
    try:
        _servers(read_json(data, LIMITS))
    except ValueError:
        return


def file_sd(data: bytes) -> None:
    """A file of target groups: servers, ValueError or YAMLError."""
    try:
        _servers(read_yaml(data))
    except (ValueError, yaml.YAMLError):
        return


def _servers(document: object) -> None:
    found, left_out = target_groups.read(document, "http", "/llm")
    assert all(one.id.isprintable() and one.base_url.startswith(("http://", "https://")) for one in found)
    assert all(len(words) < 400 for words in left_out)


def prometheus(data: bytes) -> None:
    """An answer of Prometheus to each query: what it says, or an error that the caller makes one line of."""
    server = queries.Prometheus(PrometheusConfig(url="http://p"))
    try:
        answer = read_json(data, LIMITS)["data"]["result"]
    except (ForeignJsonError, LookupError, TypeError):
        return
    for read in (queries._alerts, queries._samples, lambda found: server._snapshots(found, "x")):
        with suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError, TargetError):
            cast(Callable[[Any], object], read)(answer)


class Reporter:
    """Takes problems as discovery reports them."""

    def problem(self, words: str) -> None:
        assert words

    def well(self) -> None:
        pass


def kubernetes(data: bytes) -> None:
    """A line of a watch of pods, or of endpoints: a change, or an error that begins the list anew."""
    caches = [
        (WatchedResource("pods", "api/v1", Pod), Pods("http", "http", "")),
        (WatchedResource("endpointslices", "apis/discovery.k8s.io/v1", EndpointSlice), Slices("http", "http", "")),
    ]
    for resource, cache in caches:
        parts: dict[str, Any] = {"namespace": "n", "reporter": Reporter(), "connect": None}
        watch: Any = ObjectWatch(cast(Any, resource), "app=x", cast(Any, cache), **parts)
        for line in data.split(b"\n"):
            try:
                watch._take(msgspec.json.decode(_utf8(_checked(line)), type=kubernetes_sd._Event))
                watch._report()
            except (msgspec.DecodeError, RecursionError, KubernetesError):
                continue
            assert isinstance(cache.state, tuple)


def authorization(data: bytes) -> None:
    """A header that claims to hold a name and a password: both, or None."""
    given = _credentials(data.decode("latin-1"))
    assert given is None or all(isinstance(part, bytes | str) for part in given)


def command_line(data: bytes) -> None:
    """A process's or a pod's command line: the flags known, each short and printable."""
    text = data.decode("utf-8", "replace")
    words = text.split("\0")
    for line in (words, ["sh", "-c", text], ["vllm", "serve", *words]):
        _check_flags(vllm_flags(line, [], {"A": text}))
        port = served_port(line)
        assert port is None or port >= 0
    number = count(text)
    assert number is None or number >= 0


def startup_flags(data: bytes) -> None:
    """vLLM's answer of /server_info: the flags known, or ForeignJsonError."""
    with suppress(ForeignJsonError):
        _check_flags(page_scraper.flags_of(data))


def _check_flags(flags: Mapping[str, str]) -> None:
    assert all(value.isprintable() and len(value) <= MAX_VALUE for value in flags.values()), flags


def request_times(data: bytes) -> None:
    """The times of a request in a server's answer: those that can be, or None."""
    times = server_times(msgspec.Raw(data))
    assert times is None or 0 <= times.queue_s + times.prefill_s < math.inf


PARSERS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        stream, metrics, gpus, http_sd, file_sd, prometheus, kubernetes, authorization,
        command_line, startup_flags, request_times,
    )
}  # fmt: skip


# Where the tests have no file of a real answer.
BEGINNINGS = {
    "command_line": [
        b"python3\0-m\0vllm.entrypoints.openai.api_server\0--port=8001\0--max-num-seqs\x0064\0--no-enable-chunked-prefill",
        b"vllm serve m --max-num-batched-tokens=8k -tp 2 --dtype $(A) && sleep 1; bash -c 'x'",
        b'--speculative-config\0{"method": "ngram", "num_speculative_tokens": 3, "hf_token": "x"}',
        b'--kv-transfer-config\0{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\0-q\0fp8\0--enforce-eager',
    ],
    "startup_flags": [
        b'{"vllm_config": {"scheduler_config": {"max_num_seqs": 256}, "model_config": {"dtype": "torch.bfloat16"}}}',
        b'{"vllm_config": {"speculative_config": {"method": "ngram", "hf_token": "x"}}, "env": {"A": "x"}}',
        b'{"vllm_config": {"kv_transfer_config": {"kv_role": "kv_both"}, "cache_config": {"block_size": 16.5}}}',
    ],
    "metrics": [  # with the sums of Kneewatch's plugin for vLLM
        b'vllm:num_requests_running{engine="0"} 1\nkneewatch_vllm_steps_total{engine="0",up_to_tokens="8"} 5\n'
        + b"".join(
            b'kneewatch_vllm_step_%s_total{up_to_tokens="8"} 7\n' % kind
            for kind in (b"seconds", b"requests", b"decode_tokens", b"prefill_tokens", b"kv_tokens")
        )
        + b'kneewatch_vllm_scheduler_limit{flag="max_num_seqs"} 64\n',
    ],
    "request_times": [b'{"queue_time_ms": 0.1, "time_to_first_token_ms": 12.5, "mean_itl_ms": 7.1}'],
}


def inputs(name: str) -> list[bytes]:
    """Return the inputs that are kept of a parser."""
    file = CORPUS / f"{name}.txt"
    return [ast.literal_eval(line) for line in file.read_text().splitlines()] if file.exists() else []


def seeds(name: str) -> list[bytes]:
    """Return what the tests have of real answers, the first bytes of each."""
    files = {"stream": GOLDEN.glob("*stream*.txt"), "metrics": PAGES.glob("*.prom"), "gpus": (PAGES / "gpu").iterdir()}
    return [path.read_bytes()[:MAX_BYTES] for path in sorted(files.get(name, ()))] + BEGINNINGS.get(name, [])


def reached(parse: Callable[[bytes], None], data: bytes) -> frozenset[tuple[str, int, int]]:
    """Return the jumps between lines of Kneewatch that an input makes its parser take."""
    found: set[tuple[str, int, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "/probe/" not in frame.f_code.co_filename:
            return None
        last = frame.f_lineno

        def line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal last
            if event == "line":
                found.add((frame.f_code.co_filename, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line if event == "call" else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parse(data)
    finally:
        sys.settrace(before)
    return frozenset(found)


def fewest(parse: Callable[[bytes], None], found: Iterable[bytes]) -> list[bytes]:
    """Return inputs that together reach what all reach, the shortest first among equals."""
    reaches = {data: reached(parse, data) for data in sorted(set(found), key=len)}
    kept: list[bytes] = []
    left = set().union(*reaches.values()) if reaches else set()
    while left and len(kept) < MOST:
        best = max(reaches, key=lambda data: (len(reaches[data] & left), -len(data)))
        kept.append(best)
        left -= reaches[best]
    return sorted(kept, key=lambda data: (len(data), data))


def fuzz(name: str, folder: str, seconds: str) -> None:
    """Fuzz until the time is over. Never returns: the engine ends the process."""
    atheris = import_module("atheris")  # here, and not among the imports: only who fuzzes needs it
    options = [f"-max_total_time={seconds}", "-timeout=5", f"-max_len={MAX_BYTES}", f"-artifact_prefix={folder}/../"]
    atheris.Setup([sys.argv[0], folder, *options], PARSERS[name])
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PARSERS)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "inputs"
        found.mkdir()
        for i, data in enumerate([*inputs(asked.name), *seeds(asked.name)]):
            (found / f"seed-{i}").write_bytes(data)
        command = [sys.executable, "-c", INSTRUMENTED, asked.name, str(found), f"{asked.seconds:.0f}"]
        if status := subprocess.run(command, check=False).returncode:
            for file in Path(folder).glob("*-*"):
                print(f"{file.name}: {file.read_bytes()!r}", file=sys.stderr)  # noqa: T201 - a script's output
            return status
        kept = fewest(PARSERS[asked.name], (path.read_bytes() for path in found.iterdir()))
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{asked.name}.txt").write_text("".join(f"{data!r}\n" for data in kept))
    print(f"{len(kept)} inputs kept")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

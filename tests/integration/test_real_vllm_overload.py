"""Step-up load against the real vLLM: preemptions and a full queue are seen, and the guard stops in time."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from kneewatch_command import Finished, kneewatch
from process import eventually
from real_vllm import LIMITS, MODEL, RealVllm

from probe.mock_server.server import FULL

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.long]

# Sixteen requests of six KV blocks each do not fit into 64: vLLM has to preempt.
OVERLOAD = ("--concurrency", "24", "--prompt-tokens", "128", "--output-tokens", "64")


def test_an_overload_shows_the_preemptions_the_server_counted(vllm: RealVllm, tmp_path: Path) -> None:
    before = vllm.settled_metrics()["vllm:num_preemptions_total"]
    result, _ = _ramp(vllm, tmp_path, *OVERLOAD, "--requests-per-step", "72", "--no-guard")
    counted = vllm.settled_metrics()["vllm:num_preemptions_total"] - before
    (step,) = result["steps"]
    assert step["server"]["preemptions"] == counted > 0
    assert step["server"]["kv_cache_usage_peak"] > 0.8
    assert step["requests"] == {"ok": 72, "failed": 0, "aborted": 0}
    assert result["stopped"]["by"] == "done"


@pytest.mark.fault(
    "LO31",
    "An overload of a real vLLM",
    area="Load",
    users_see="the guard stops it",
    stays="nothing is left behind",
)
def test_the_guard_stops_an_overload_and_leaves_nothing_behind(
    vllm: RealVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seconds from vLLM's first preemption are meant: two until the guard ends the load, one until vLLM has
    noticed. Six are allowed here: the machine may be busy.
    """
    before = vllm.settled_metrics()["vllm:num_preemptions_total"]
    with ThreadPoolExecutor(1) as beside:
        over = Event()
        seen = beside.submit(_followed, vllm, over)
        try:
            result, done = _ramp(vllm, tmp_path, *OVERLOAD, "--step-seconds", "60")
        finally:
            over.set()
    preempted = [at for at, metrics in seen.result() if metrics["vllm:num_preemptions_total"] > before]
    loaded = [at for at, metrics in seen.result() if _in_server(metrics)]
    assert preempted
    late_s = loaded[-1] - preempted[0]
    with capsys.disabled():
        sys.stdout.write(f"\n{late_s:.2f} s from vLLM's first preemption to our last request in it\n")
    assert late_s < 6.0
    assert result["stopped"]["by"] == "guard", result["stopped"]
    assert result["stopped"]["reason"]
    assert result["cost"]["seconds"] < 40
    assert result["capacity"]["requests_per_second"] is None, "an unfinished step judges nothing"
    assert "Traceback" not in done.err

    eventually(lambda: not _in_server(vllm.metrics()), within_s=5, what="an idle server after the guard's stop")


@pytest.fixture(scope="module")
def limited(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """Serve four requests at once, and refuse more."""
    flags = [flag for flag in LIMITS if "queued" not in flag]
    server = RealVllm(vllm_python, tmp_path_factory.mktemp("limited"), [*flags, "--max-num-queued-reqs=4"])
    server.start()
    yield server
    server.stop()


@pytest.mark.fault(
    "LO64",
    "A real vLLM whose queue limit is reached (--max-num-queued-reqs)",
    area="Load",
    users_see="the knee below it; `rejections`: the server's queue limit",
    stays="nothing is left behind",
)
def test_the_queue_limit_is_an_overload_and_is_named(limited: RealVllm, tmp_path: Path) -> None:
    before = limited.settled_metrics()["vllm:admission_rejections_total"]
    result, done = _ramp(limited, tmp_path, "--concurrency", "1,8", "--step-seconds", "5", "--confirm-seconds", "0")
    refused = limited.settled_metrics()["vllm:admission_rejections_total"] - before
    assert 0 < refused <= 4, "the first one ends the load"
    assert (result["stopped"]["by"], result["stopped"]["reason"]) == ("guard", "rejections")
    assert [step["tripped"] for step in result["steps"]] == [None, "rejections"]
    assert result["capacity"]["limiting"] == "rejections"
    assert "the server's queue limit (--max-num-queued-reqs)" in done.out
    assert result["first_failure"].startswith("rejected: HTTP 503: The engine is currently busy")
    eventually(lambda: not _in_server(limited.metrics()), within_s=5, what="an idle server after the guard's stop")


def test_the_mock_server_refuses_in_the_words_of_vllm(limited: RealVllm) -> None:
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True}

    def asked(_: int) -> httpx.Response:
        return httpx.post(f"{limited.base_url}/v1/completions", json=body, timeout=60, trust_env=False)

    with ThreadPoolExecutor(8) as beside:
        answers = list(beside.map(asked, range(8)))
    refused = [answer for answer in answers if not answer.is_success]
    assert refused
    expected = FULL["max_num_queued_reqs"]
    assert {answer.status_code for answer in refused} == {expected.status}
    assert all(answer.json() == expected.body and "retry-after" not in answer.headers for answer in refused)


def _followed(server: RealVllm, over: Event) -> list[tuple[float, dict[str, float]]]:
    """Return the server's own series over time, until `over` is set."""
    seen = []
    while not over.wait(0.1):
        metrics = server.metrics()
        seen.append((time.monotonic(), metrics))
    return seen


def _in_server(metrics: dict[str, float]) -> float:
    return metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]


def _ramp(server: RealVllm, folder: Path, *options: str) -> tuple[dict[str, Any], Finished]:
    file = folder / "result.json"
    done = kneewatch("ramp", "--base-url", server.base_url, *options, "--json", file)
    assert file.exists(), f"status {done.status}\n{done.out}\n{done.err}"
    return json.loads(file.read_text()), done

"""What a foreign program sends does not take more memory than the pod has (384 MiB in the manifests)."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_server import MODELS, NO_METRICS, Answer, foreign_server, stream
from hostile_server import event
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually
from process_memory import MIB, peak, peaks_below

from probe.core.request import Outcome

# A monitor of few targets has some 80 MiB.
_MODEST = 160 * MIB
_UNFOLDS = b"{}," * 20_000_000


def config(targets: dict[str, str]) -> dict[str, object]:
    """Return a configuration that sends each target a small canary every second."""
    listed = [
        {"name": name, "base_url": url, "scrape": "1s", "canary": {"every": "1s", "timeout": "5s", "workload": "short"}}
        for name, url in targets.items()
    ]
    return {"workloads": {"short": {"prompt_tokens": 8, "output_tokens": 4}}, "targets": listed}


def outcome(monitor: Monitor, target: str, outcome: Outcome) -> float:
    """Return how many canaries of the target have ended so."""
    samples = (line for line in monitor.page("/metrics").splitlines() if line.startswith("kneewatch_requests_total{"))
    return sum(
        float(line.rpartition(" ")[2])
        for line in samples
        if f'target="{target}"' in line and f'outcome="{outcome}"' in line
    )


def unfolding_events(path: str, _: bytes) -> Answer:
    if path == "/v1/models":
        return 200, "application/json", [MODELS]
    if path == "/v1/completions":
        return 200, "text/event-stream", [b'data: {"choices":[', _UNFOLDS, b"{}]}\n\ndata: [DONE]\n\n"]
    return NO_METRICS


def unfolding_models(path: str, _: bytes) -> Answer:
    return (200, "application/json", [b'{"data":[', _UNFOLDS, b"{}]}"]) if path == "/v1/models" else NO_METRICS


@pytest.mark.fault(
    "A61",
    "a stream's event of 60 MB that unfolds to gigabytes when it is parsed",
    area="Memory",
    users_see='`broken_stream`: "the answer was cut off: more than 72 KiB"',
    stays="below 160 MiB; the other targets' canaries",
)
@pytest.mark.fault(
    "A62",
    "a models list that unfolds",
    area="Memory",
    users_see="the same, at 1 MiB",
    stays="the same",
)
def test_json_that_unfolds(sim: Sim, tmp_path: Path) -> None:
    with foreign_server(unfolding_events) as events, foreign_server(unfolding_models) as models:
        targets = {"good": sim.base_url, "events": events, "models": models}
        with Monitor(config(targets), tmp_path) as monitor:
            eventually(lambda: outcome(monitor, "events", Outcome.BROKEN_STREAM) > 1, within_s=60, what="broken_stream")
            eventually(lambda: outcome(monitor, "models", Outcome.BROKEN_STREAM) > 1, within_s=60, what="the same")
            eventually(lambda: outcome(monitor, "good", Outcome.OK) > 1, within_s=60, what="canaries of the other")
            assert peak(monitor.pid) < _MODEST


def endless() -> Iterator[bytes]:
    many = event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]}) * 1000
    return itertools.repeat(many)


# 32 of the long ones may take 1.2 GiB: eight times what all answers of a step may hold.
@pytest.mark.parametrize(
    ("output_tokens", "ended"),
    [
        pytest.param(64, "broke availability", id="short"),
        pytest.param(20_000, "not judged: client bound", id="long"),
    ],
)
@pytest.mark.fault(
    "R07b",
    "a server whose streams do not end and are fast, in a ramp with 32 at once",
    area="Memory",
    users_see="the step broke availability; no knee",
    stays="below 384 MiB, controller and worker together",
    case="short",
)
@pytest.mark.fault(
    "R07c",
    "the same with answers of 20,000 tokens: together they may take 1.2 GiB",
    area="Memory",
    users_see="the step is `client_bound`: its answers were cut where all together took 160 MiB; no knee",
    stays="below 384 MiB; the result, with what was sent",
    case="long",
)
def test_endless_streams_in_a_ramp(output_tokens: int, ended: str) -> None:
    asked = itertools.count()

    def answer(path: str, body: bytes) -> Answer:
        if path == "/v1/models":
            return 200, "application/json", [MODELS]
        if path == "/v1/completions":
            return stream(body) if next(asked) < 3 else (200, "text/event-stream", endless())
        return NO_METRICS

    with foreign_server(answer) as url, peaks_below() as peaks:
        ramp = ("ramp", "--base-url", url, "--concurrency", "32", "--step-seconds", "5")
        budget = ("--max-tokens", str(10**9))  # on a quiet machine these streams carry millions of tokens
        tokens = ("--output-tokens", str(output_tokens))
        done = kneewatch(*ramp, *tokens, *budget, "--no-guard", "--workers", "1", within_s=120)

    assert done.status == 1, done.out + done.err
    assert ended in done.out, done.out
    assert "Cost: " in done.out, "the results are kept"
    assert "Knee: " not in done.out
    assert sum(peaks.values()) < 384 * MIB

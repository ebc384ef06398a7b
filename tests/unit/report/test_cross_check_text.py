"""Findings in sentences: what is wrong comes first, and what cannot be told is not spoken of."""

from dataclasses import replace
from typing import Any

import pytest
from example_records import snapshot, status
from plain_records import poll

from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot, Imbalance
from probe.core.target_status import TargetStatus
from probe.report.cross_check_text import findings, idle_gpus


def _with(checks: CrossChecks | None = None, **values: Any) -> TargetStatus:
    return replace(status(), checks=checks or CrossChecks(), **values)


def _words(target: TargetStatus) -> list[str]:
    return [finding.words for finding in findings(target)]


def _gpu(**values: float) -> Gpu:
    named = {f"DCGM_FI_DEV_{name}": value for name, value in values.items()}
    return Gpu({"gpu": "3", "modelName": "NVIDIA H100 80GB HBM3"}, named)


def test_of_nothing_nothing_is_said() -> None:
    assert _words(_with()) == []
    assert _words(_with(CrossChecks(users_met={"ttft": True}, users_uncertain={"ttft": 0.01}))) == []


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        (CrossChecks(stalled_s=45.0), "generated no token for 45 s"),
        (
            CrossChecks(
                pressure={"usage": True, "waiting": True, "preemptions": True, "late": True},
                is_kv_cache_too_small=True,
            ),
            "the KV cache is too small: it is full, requests wait for room in it, requests are preempted",
        ),
        (
            CrossChecks(imbalance={"load": Imbalance("10.0.0.1:8000", 48, 19, 2.53)}),
            "engine 10.0.0.1:8000 has 48 requests running or waiting, the others 19 on average",
        ),
        (
            CrossChecks(imbalance={"itl": Imbalance("3", 0.06, 0.03, 2.0), "load": Imbalance("3", 9, 8, 1.1)}),
            "engine 3 has a mean ITL of 60.0 ms, the others 30.0 ms on average",
        ),
        (CrossChecks(neighbour_utilization=0.6), "60 % busy while this server had no requests"),
        (CrossChecks(users_met={"ttft": False}, users_uncertain={"ttft": 0.1}), "requests missed the TTFT objective"),
        (CrossChecks(counted={"output": 0.0}), "counted 0 % of the canaries' output tokens"),
        (CrossChecks(counted={"prompt": 2.0}), "counted 200 % of the canaries' prompt tokens"),
    ],
)
def test_a_failed_cross_check_is_reported_as_wrong(checks: CrossChecks, words: str) -> None:
    (finding,) = findings(_with(checks))
    assert finding.is_problem
    assert words in finding.words


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        (CrossChecks(queue_share=0.4), "queue: 40 % of the time to the first token"),
        (CrossChecks(ttft_gap_s={"matched": 0.0031, "mean": 0.5}), "network and gateway: 3.1 ms of a canary's TTFT"),
        (CrossChecks(ttft_gap_s={"mean": -0.2}), "200 ms below the server's mean over all requests"),
        (
            CrossChecks(users_uncertain={"ttft": 0.12}),
            "TTFT objective is not certain: 12 % may be on either side of it",
        ),
        (CrossChecks(users_uncertain={"e2e": 1.0}), "E2E objective is not certain: there are too few"),
        (
            CrossChecks(pressure={"usage": True, "preemptions": True, "late": False}, is_kv_cache_too_small=False),
            "requests were preempted in the last minute, but no objective is missed",
        ),
    ],
)
def test_a_harmless_finding_is_no_problem(checks: CrossChecks, words: str) -> None:
    (finding,) = findings(_with(checks))
    assert not finding.is_problem
    assert words in finding.words


@pytest.mark.parametrize(
    "checks",
    [
        CrossChecks(stalled_s=29.0),
        CrossChecks(imbalance={"load": Imbalance("3", 9, 8, 1.1), "itl": Imbalance("3", 0.04, 0.03, 1.4)}),
        CrossChecks(pressure={"usage": True, "waiting": True, "late": False}, is_kv_cache_too_small=False),
        CrossChecks(pressure={"usage": False, "late": True}, is_kv_cache_too_small=False),
        CrossChecks(neighbour_utilization=0.05),
        CrossChecks(counted={"output": 1.0, "prompt": 0.99}),
    ],
)
def test_a_passed_cross_check_is_not_mentioned(checks: CrossChecks) -> None:
    assert _words(_with(checks)) == []


@pytest.mark.parametrize(("waiting", "count"), [(3.0, 1), (0.0, 0)])
def test_a_queue_beside_a_full_cache_is_not_called_waiting_for_room_without_max_num_seqs(
    waiting: float, count: int
) -> None:
    checks = CrossChecks(pressure={"usage": True, "late": True}, is_kv_cache_too_small=False)
    found = findings(_with(checks, server=poll(waiting=waiting)))
    assert [finding.is_problem for finding in found] == [False] * count
    assert all("set capacity.server.max_num_seqs" in finding.words for finding in found)


def test_failed_cross_checks_come_first() -> None:
    reported = findings(_with(CrossChecks(queue_share=0.1, stalled_s=99.0)))
    assert [finding.is_problem for finding in reported] == [True, False]


def test_gpus_are_summed_up_and_their_errors_named() -> None:
    gpus = (_gpu(GPU_UTIL=90.0, FB_USED=60.0, FB_FREE=20.0), _gpu(GPU_UTIL=70.0, XID_ERRORS=79.0))
    said = _words(_with(gpus=GpuSnapshot(0, 0.0, "dcgm", gpus)))
    assert said == [
        "GPU 3: its last error was XID 79",
        "2 x NVIDIA H100 80GB HBM3: 80 % busy, 75 % of their memory in use",
    ]


def test_gpus_that_are_not_found_or_not_read_are_wrong() -> None:
    for target, words in (
        (_with(gpus=GpuSnapshot(0, 0.0, "dcgm", ())), "none of the GPUs"),
        (_with(gpu_error="http://node:9400/metrics: does not answer"), "does not answer"),
    ):
        (finding,) = findings(target)
        assert finding.is_problem
        assert words in finding.words


def test_a_gpu_that_is_half_idle_while_requests_run_has_a_small_batch() -> None:
    half = GpuSnapshot(0, 0.0, "dcgm", (_gpu(GPU_UTIL=42.0),))
    server = snapshot(running=3.0, waiting=0.0)
    (found,) = idle_gpus(_with(server=server, gpus=half))
    assert found.words.startswith(
        "the GPU is 42 % busy with 3 requests running and none waiting: the batch is too small"
    )
    assert not found.is_problem
    busy = GpuSnapshot(0, 0.0, "dcgm", (_gpu(GPU_UTIL=51.0),))
    for quiet in (
        _with(server=server, gpus=busy),
        _with(server=snapshot(running=0.0), gpus=half),
        _with(server=server),
    ):
        assert list(idle_gpus(quiet)) == []
    assert list(idle_gpus(_with(server=snapshot(running=3.0, waiting=1.0), gpus=half))) == []

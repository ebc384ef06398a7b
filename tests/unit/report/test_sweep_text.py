"""What a sweep of fixed loads shows: growth, the plateau, the limit with its evidence, tails, and the sum of E2E."""

from dataclasses import replace
from typing import Any

import pytest
from example_records import result, step

from probe.capacity.trend.levels import levels_of
from probe.core.result import Capacity, Roofline
from probe.core.step import (
    Arrivals,
    Distribution,
    GpuUse,
    RequestCounts,
    SentTokens,
    ServerPeaks,
    StepPlan,
    TokenCounts,
)
from probe.report.result_text import result_lines
from probe.report.sweep_text import level_lines, sweep_lines

# A vLLM repository's own sweep on an L4, 256 + 128 tokens: in flight, requests/s, TTFT, ITL, E2E in ms.
L4 = ((1, 0.31, 61, 24.8, 3211), (4, 1.06, 76, 29.1, 3780), (16, 3.68, 92, 33.0, 4297), (32, 3.9, 305, 61.5, 8120))


def _latency(middle_s: float, p99_s: float | None = None) -> Distribution:
    return Distribution(count=400, mean=middle_s, p50=middle_s, p95=middle_s, p99=p99_s or middle_s)


def _step(load: int, rps: float, ttft: float = 90, itl: float = 30, e2e: float = 4000, **more: Any) -> Any:
    ttft_s, itl_s, e2e_s = (_latency(each / 1000) for each in (ttft, itl, e2e))
    tokens = SentTokens(counted_answers=TokenCounts(mean=128.0))
    values = {"ttft_s": ttft_s, "itl_s": itl_s, "tpot_s": itl_s, "e2e_s": e2e_s, "tokens": tokens, **more}
    return replace(step(load, rps=rps), **values)


def _lines(*steps: Any, flags: dict[str, str] | None = None, roofline: Roofline | None = None) -> dict[str, str]:
    return dict(level_lines(levels_of(result(steps=steps)), flags or {}, roofline))


def test_the_growth_between_the_ends_and_where_throughput_stops_to_grow() -> None:
    lines = _lines(*(_step(*row) for row in L4))
    assert lines["Growth"].startswith("from 1 to 32 in flight: output tokens/s 12.6x (19.8 to 250), TTFT p50 5x (61.0")
    assert lines["Saturation"] == "from 16 in flight: throughput gains +6% from 16 to 32 in flight"
    flat = _lines(*(_step(load, rps, itl=25) for load, rps, *_ in L4))["Saturation"]
    assert flat.endswith("; ITL p50 is flat up to 32 in flight")


def test_a_sweep_that_still_grows_has_no_limit_yet() -> None:
    lines = _lines(*(_step(*row) for row in L4[:3]))
    assert lines["Saturation"] == "none up to 16 in flight: throughput gains +247% from 4 to 16 in flight"
    assert lines["Bottleneck"] == "none up to 16 in flight: throughput still grows there; measure more load"


def test_an_open_loop_is_saturated_where_answers_do_not_keep_up() -> None:
    def at(rate: float, rps: float) -> Any:
        return _step(64, rps, plan=StepPlan(64, 15.0, loop="open", arrivals=Arrivals(rate_rps=rate)))

    lines = _lines(at(2, 2.0), at(4, 3.9), at(8, 5.0))
    assert lines["Saturation"].startswith("at 8 requests/s, of which 5 were answered; ")


def test_e2e_beside_its_sum() -> None:
    (first, *_), sweep = L4, [_step(*row) for row in L4[:3]]
    assert _lines(*sweep)["E2E"] == (
        "p50 4297 ms at 16 in flight; TTFT + 127 x ITL = 92.0 ms + 4191 ms = 99.67 % of it, 97.9 % in decoding"
    )
    stalled = _step(*first[:4], e2e=6000)
    assert _lines(stalled)["E2E"].endswith("= 53.5 % of it: the rest is in gaps much longer than ITL p50")


BUSY = ServerPeaks(kv_cache_usage_peak=0.4, running_peak=16, waiting_peak=16, preemptions=0)


@pytest.mark.parametrize(
    ("last", "flags", "said"),
    [
        ({"server": replace(BUSY, preemptions=3)}, {}, "kv_cache, at 32 in flight: 3 preemptions (2.0% of requests)"),
        ({"server": replace(BUSY, kv_cache_usage_peak=0.97)}, {}, "kv_cache, at 32 in flight: KV cache 97% full, 16"),
        ({"server": BUSY}, {"max_num_seqs": "16"}, "max_num_seqs, at 32 in flight: 16 ran and 16 waited, KV cache 40%"),
        ({"server": BUSY}, {}, "max_num_seqs, at 32 in flight: 16 ran and 16 waited, KV cache 40% full; no more ran"),
        ({"rejected": 7}, {}, "queue, at 32 in flight: the server refused 7 requests"),
        ({"is_late": True}, {}, "client, at 32 in flight: Kneewatch's own machine was too late"),
        (
            {"gpu": GpuUse(utilization=0.99, dram_active=0.8, tensor_active=0.2)},
            {},
            "memory_bandwidth, at 32 in flight: ",
        ),
        ({"gpu": GpuUse(utilization=0.99, dram_active=0.3, tensor_active=0.6)}, {}, "prefill, at 32 in flight: memory"),
        ({"gpu": GpuUse(utilization=0.6, dram_active=0.3, tensor_active=0.1)}, {}, "host, at 32 in flight: memory"),
        (
            {"gpu": GpuUse(utilization=0.97, dram_active=0.3, tensor_active=0.1, gpus=4)},
            {},
            "communication, at 32 in flight: memory active 30%, tensor cores 10%, GPU busy 97% of the time on 4 GPUs",
        ),
        ({"ttft_s": _latency(2.0)}, {}, "prefill, at 32 in flight: from 16 in flight TTFT grows 21.7x"),
        ({"tpot_s": _latency(0.2)}, {}, "unknown, at 32 in flight: from 16 in flight TTFT grows 1.0x"),
        ({"ttft_s": _latency(0.1), "tpot_s": _latency(0.032)}, {}, "unknown, at 32 in flight: throughput no longer"),
    ],
)
def test_the_limit_of_a_saturated_server_with_its_evidence(
    last: dict[str, Any], flags: dict[str, str], said: str
) -> None:
    calm = ServerPeaks(kv_cache_usage_peak=0.4, running_peak=16, waiting_peak=0, preemptions=0)
    before, after = _step(16, 3.7, ttft=92, server=calm), _step(32, 3.8, ttft=92, server=calm)
    assert _lines(before, replace(after, **last), flags=flags)["Bottleneck"].startswith(said)


def test_the_advice_of_a_result_is_that_of_the_limit_and_not_of_the_objective() -> None:
    calm = ServerPeaks(kv_cache_usage_peak=0.4, running_peak=16, waiting_peak=0, preemptions=0)
    steps = [_step(16, 3.7, server=calm), _step(32, 3.8, server=BUSY, broken=("ttft",))]
    lines = dict(result_lines(result(steps=steps)))
    assert lines["Limited by"] == "ttft"
    assert lines["Advice"].startswith("requests wait because max_num_seqs are running: raise --max-num-seqs")
    assert "raise" not in lines["Bottleneck"]
    grows = [_step(1, 0.3), _step(4, 1.1, broken=("ttft",))]
    assert dict(result_lines(result(steps=grows)))["Advice"].startswith("to raise capacity, shorten the wait")


def test_a_wait_below_the_limit_of_running_requests_is_not_its_queue() -> None:
    calm = ServerPeaks(kv_cache_usage_peak=0.4, running_peak=16, waiting_peak=0, preemptions=0)
    steps = _step(16, 3.7, ttft=92, server=calm), _step(32, 3.8, ttft=2000, server=BUSY)
    assert _lines(*steps, flags={"max_num_seqs": "256"})["Bottleneck"].startswith("prefill, ")
    assert _lines(*steps, flags={"max_num_seqs": "16", "engines": "2"})["Bottleneck"].startswith("prefill, ")


def test_the_step_that_the_guard_stopped_tells_the_limit() -> None:
    tripped = _step(32, 0.0, valid=False, tripped="preemption", server=replace(BUSY, preemptions=5))
    assert _lines(_step(16, 3.7), tripped)["Bottleneck"].startswith("kv_cache, at 32 in flight: 5 preemptions")


def test_a_gpu_that_is_half_idle_with_a_small_batch_is_said() -> None:
    idle = GpuUse(utilization=0.42)
    lines = _lines(_step(1, 0.3), _step(4, 1.1, gpu=idle))
    assert "the GPU was busy 42% of the time and nothing waited: the batch is too small" in lines["Bottleneck"]


def test_vllms_own_estimates_count_where_no_gpu_was_read() -> None:
    seen = Roofline("H100 SXM", sure=True, bandwidth_ratio=0.7, flops_ratio=0.1)
    assert "(vLLM's estimate)" in _lines(_step(1, 0.3), _step(4, 1.1), roofline=seen)["Bottleneck"]


def test_a_tail_of_ttft_or_itl_is_a_finding_at_the_level_that_has_it() -> None:
    tail = _step(16, 3.7, ttft_s=_latency(0.1, 0.7), requests=RequestCounts(ok=40, failed=0, aborted=0))
    assert _lines(_step(1, 0.3), tail)["Tail"] == (
        "TTFT p99 is 7x p50 at 16 in flight (700 ms over 100 ms) of 40 requests: few wait far longer than most: a"
        " queue, or longer prompts ahead of them"
    )
    assert "Tail" not in _lines(_step(1, 0.3), _step(16, 3.7, ttft_s=_latency(0.001, 0.007)))


def test_a_result_that_a_simulation_explains_has_no_sweep() -> None:
    steps = [_step(*row) for row in L4]
    found = Capacity(mode="verified", requests_per_second=3.0, bottleneck="kv_cache", limiting="ttft")
    assert "Bottleneck" in dict(sweep_lines(result(steps=steps)))
    for mode in ("verified", "forecast"):
        assert sweep_lines(result(steps=steps, capacity=replace(found, mode=mode))) == []


def test_a_result_without_a_judged_step_has_no_lines() -> None:
    assert sweep_lines(result(steps=[step(4, reason="too_few_requests")])) == []
    assert sweep_lines(result(steps=[])) == []

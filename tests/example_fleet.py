"""Targets as a monitor might have them on a bad day: made up, the same each time."""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from example_records import CHAT, failing, record, result, spec, status, step, whole_snapshot

from probe.core.canary_history import CanaryHistory, slot_of
from probe.core.latency_day import SLOTS as SLOTS_OF_DAY
from probe.core.latency_day import LatencyDay
from probe.core.latency_day import slot_of as day_slot
from probe.core.request import Outcome, RequestRecord
from probe.core.result import Capacity, CapacityResult, RunContext
from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot, UserLoad
from probe.core.step import Distribution, ServerPeaks, StepSummary
from probe.core.target_status import TargetStatus

OBJECTIVES = {
    "name": "chat",
    "window_s": 2_592_000.0,
    "availability": 0.999,
    "ttft": {"ratio": 0.95, "within_s": 0.5},
    "tpot": {"ratio": 0.95, "within_s": 0.05},
}


def fleet(count: int, *, recent: int = 60) -> list[TargetStatus]:
    """Return targets with this many canaries each. Of every twenty targets one fails, one is slow, one is passive."""
    return [_target(i, recent) for i in range(count)]


def run(target: str = "llama-0", result_id: str = "20261122T181500-a1b2c3") -> CapacityResult:
    """Return a capacity run of five steps, the last of which was too much."""
    loads = (
        *((4, 6.0, 0.06, 0.011), (8, 11.5, 0.08, 0.013), (16, 20.0, 0.12, 0.018)),
        *((32, 29.0, 0.27, 0.027), (64, 33.0, 1.4, 0.055)),
    )
    steps = [_step(*load) for load in loads]
    capacity = Capacity("empirical", 29.0, 29.0, 33.0, 1856.0, 32, "ttft", "queue")
    context = RunContext(
        workload={"name": "short-chat", "api": "completions", "prompt_tokens": 256, "output_tokens": 64},
        objectives=OBJECTIVES,
        engine="vllm",
        version="0.32.0",
        gpu="H100",
        flags={"max_num_seqs": "64", "enable_prefix_caching": "True"},
    )
    made = result(result_id=result_id, target=target, model="meta/Llama-3.1-8B", steps=steps, capacity=capacity)
    return replace(made, context=context, users=UserLoad(4.0, 256.0))


def _step(concurrency: int, rps: float, ttft_s: float, tpot_s: float) -> StepSummary:
    over = ttft_s > 1
    good = 0.4 if over else 0.995
    made = step(concurrency, rps=rps, broken=("ttft", "tpot") if over else ())
    return replace(
        made,
        ttft_s=_spread(ttft_s),
        tpot_s=_spread(tpot_s),
        itl_s=_spread(tpot_s),
        e2e_s=_spread(ttft_s + 64 * tpot_s),
        goodput_rps=rps * good,
        good_ratio={"availability": 1.0, "ttft": good, "tpot": 0.6 if over else 0.998, "all": good},
        server=ServerPeaks(min(0.02 * concurrency, 1.0), float(concurrency), float(max(0, concurrency - 40)), 0.0),
    )


def _spread(mean_s: float) -> Distribution:
    return Distribution(100, mean_s, mean_s * 0.9, mean_s * 1.6, mean_s * 2.2, mean_s * 3)


def _target(number: int, recent: int) -> TargetStatus:
    random = Random(number)
    kind = {3: "failing", 7: "slow", 11: "passive", 15: "starting"}.get(number % 20, "good")
    name = f"llama-{number}" if number % 2 else f"qwen/qwen-7b-{random.randrange(16**9):09x}-{number}"
    now_s = time.time()
    model = "meta/Llama-3.1-8B" if number % 2 else "Qwen/Qwen3-8B"
    if kind == "passive":
        return status(name=name, model=model, passive=True, server=whole_snapshot())
    if kind == "starting":
        return status(name=name, model="unknown")
    records = [_canary(random, kind, now_s - 15.0 * i, first=i == 0) for i in range(recent)]
    found = run(name, f"20261122T181500-{number:06x}") if number % 3 else None
    server = replace(whole_snapshot(), wall_s=now_s - 2, running=float(random.randrange(30)), waiting=0.0)
    return status(
        name=name,
        model=model,
        base_url=f"http://10.0.{number // 250}.{number % 250}:8000",
        up=records[0].outcome is Outcome.OK,
        recent=records,
        history=_history(random, records, now_s),
        latencies=_day(random, records, now_s),
        **failing(*records),
        server=None if kind == "failing" else server,
        server_error="http://10.0.0.3:8000/metrics: no connection: Connection refused" if kind == "failing" else None,
        users=UserLoad(random.uniform(1, 30), random.uniform(100, 1900)),
        checks=CrossChecks(queue_share=0.7 if kind == "slow" else 0.05, ttft_gap_s={"matched": 0.004}),
        gpus=GpuSnapshot(0, now_s, "dcgm", (_gpu("0", random), _gpu("1", random))),
        capacity=found,
        measured=found,
    )


def _history(random: Random, records: Sequence[RequestRecord], now_s: float) -> CanaryHistory:
    """Return three weeks of half hours with some failures and a gap of a day, and the canaries given."""
    newest = slot_of(now_s)
    rows = []
    for slot in range(newest - 21 * 48, newest):
        failed, slow = (random.randrange(1, 60) if random.random() < 0.0004 else 0 for _ in range(2))
        if not newest - 150 < slot < newest - 102:
            rows.append((slot, 120, failed, 120 - failed, slow, slow, 0, 0, 0))
    history = CanaryHistory(rows)
    for one in reversed(records):
        history.add(one, CHAT)
    return history


def _day(random: Random, records: Sequence[RequestRecord], now_s: float) -> LatencyDay:
    """Return a day of canaries and users that are slower by noon, with an hour of neither, and the canaries given."""
    rows = []
    for ago in range(1, SLOTS_OF_DAY):
        noon = 1 + 3 * max(0.0, 1 - abs(ago - 90) / 30)
        figures = [0.08 * noon, 0.16 * noon, 0.011, 0.013, 0.12 * noon, 0.4 * noon, 0.012, 0.02 * noon]
        if not 40 < ago < 46:
            rows.append((day_slot(now_s) - ago, *(one * random.uniform(0.9, 1.15) for one in figures)))
    day = LatencyDay(rows)
    for one in reversed(records):
        day.add(one)
    return day


def _canary(random: Random, kind: str, wall_s: float, *, first: bool) -> RequestRecord:
    asked = spec(prompt_tokens=128, output_tokens=32, workload="canary")
    if kind == "failing" and (first or random.random() < 0.3):
        words = "no connection: Connection refused"
        return record(ttft_s=0.02, outcome=Outcome.UNREACHABLE, detail=words, done_wall_s=wall_s, asked=asked)
    ttft_s = random.gammavariate(4, 0.02) * (7 if kind == "slow" else 1)
    return record(ttft_s=ttft_s, gap_s=random.uniform(0.008, 0.014), done_wall_s=wall_s, asked=asked)


def _gpu(number: str, random: Random) -> Gpu:
    values = {
        "DCGM_FI_DEV_GPU_UTIL": float(random.randrange(100)),
        "DCGM_FI_DEV_POWER_USAGE": 512.0,
        "DCGM_FI_DEV_GPU_TEMP": 61.0,
        "DCGM_FI_DEV_FB_USED": 71000.0,
        "DCGM_FI_DEV_FB_FREE": 9000.0,
    }
    return Gpu({"gpu": number, "modelName": "NVIDIA H100 80GB HBM3"}, values)


def names(statuses: Sequence[TargetStatus]) -> list[str]:
    return [one.name for one in statuses]

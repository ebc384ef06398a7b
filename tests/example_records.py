"""Records with plausible values; a test names only what it is about."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from probe.core.failure_log import FailureLog
from probe.core.objectives import Objective, Objectives
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, TokenEvents, Traffic
from probe.core.result import Capacity, CapacityResult, Cost, RunContext, Stopped
from probe.core.server_values import VALUES, Value, ValueKind
from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot, as_fields
from probe.core.step import Distribution, ErrorBound, RequestCounts, ServerPeaks, StepPlan, StepSummary
from probe.core.target_status import TargetStatus

WALL_S = 1_790_000_000.0
_EXAMPLES: dict[str, Any] = {
    "running": 3.0,
    "waiting": 2.0,
    "waiting_by_reason": {"capacity": 2.0, "deferred": 0.0},
    "kv_cache_usage": 0.25,
    "preemptions": 7.0,
    "rejections": 1.0,
    "rejections_by_reason": {"max_num_queued_reqs": 1.0},
    "prompt_tokens_by_source": {"local_compute": 900.0, "external_kv_transfer": 100.0},
    "cached_tokens_by_source": {"device": 50.0, "p2p": 100.0},
    "kv_fetches": {"in_progress": 1.0},
    "kv_offload_failures": {"full": 1.0},
    "corrupted": 2.0,
    "prompt_tokens": 1000.0,
    "generation_tokens": 2000.0,
    "prefix_cache_queries": 500.0,
    "prefix_cache_hits": 50.0,
    "external_cache_queries": 450.0,
    "external_cache_hits": 400.0,
    "kv_transfers": 4.0,
    "kv_transfer_seconds": 0.25,
    "kv_transfer_bytes": 8e6,
    "kv_transfer_failures": 2.0,
    "kv_transfers_expired": 1.0,
    "drafts": 10.0,
    "draft_tokens": 30.0,
    "accepted_tokens": 12.0,
    "estimated_flops": 1e12,
    "estimated_read_bytes": 2e9,
    "estimated_write_bytes": 1e9,
}
CHAT = Objectives(name="chat", availability=0.999, ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))


def spec(prompt_tokens: int = 8, output_tokens: int = 3, workload: str = "short") -> RequestSpec:
    return RequestSpec(
        workload, Api.COMPLETIONS, tuple(range(1000, 1000 + prompt_tokens)), prompt_tokens, output_tokens
    )


def token_events(rows: Iterable[tuple[int, int, bool]], late_ns: int = 0) -> TokenEvents:
    """Return token events from (when, tokens, visible)."""
    given = list(rows)
    return TokenEvents(
        array("q", [at_ns for at_ns, _, _ in given]),
        array("q", [late_ns] * len(given)),
        array("i", [tokens for _, tokens, _ in given]),
        next((i for i, (_, _, visible) in enumerate(given) if visible), None),
    )


def record(
    *,
    ttft_s: float = 0.1,
    gap_s: float = 0.01,
    outcome: Outcome = Outcome.OK,
    start_s: float = 1.0,
    asked: RequestSpec | None = None,
    **other: Any,
) -> RequestRecord:
    """Return a request sent on time, with a token event for each output token, or without any if it failed."""
    asked = asked or spec()
    ok = outcome is Outcome.OK
    times_s = [start_s + ttft_s + i * gap_s for i in range(asked.output_tokens)] if ok else [start_s + ttft_s]
    values: dict[str, Any] = {
        "target": "a",
        "model": "m",
        "traffic": Traffic.CANARY,
        "spec": asked,
        "scheduled_ns": round(start_s * 1e9),
        "sent_ns": round(start_s * 1e9),
        "done_ns": round(times_s[-1] * 1e9),
        "done_wall_s": WALL_S,
        "outcome": outcome,
        "detail": None if ok else "it failed",
        "http_status": 200 if ok else None,
        "events": token_events((round(t * 1e9), 1, True) for t in times_s) if ok else TokenEvents(),
        "reads": len(times_s),
        "prompt_tokens": asked.prompt_tokens if ok else 0,
        "output_tokens": asked.output_tokens if ok else 0,
        "finish_reason": "length" if ok else None,
    }
    return RequestRecord(**{**values, **other})


def snapshot(**values: Any) -> ServerSnapshot:
    calm: dict[str, Any] = {"running": 1.0, "waiting": 0.0, "kv_cache_usage": 0.1, "preemptions": 0.0}
    return ServerSnapshot(at_ns=0, wall_s=WALL_S, engine="vllm", version="0.32.0", **{**calm, **values})


def failing(*records: RequestRecord) -> dict[str, Any]:
    """Return what a target's status has of these canaries, given newest first: failures, their groups, since when."""
    log = FailureLog()
    for one in reversed(records):
        log.add(one)
    failures = [one for one in records if not one.is_up]
    return {"failures": failures[:20], "failure_groups": log.groups, "since": log.since, "trouble": log.trouble}


def whole_snapshot() -> ServerSnapshot:
    """Return a snapshot with everything a server can report."""
    return snapshot(
        started_s=1.7e9,
        is_asleep=False,
        adapters=("sql",),
        by_engine={
            "0": EngineSnapshot(1.0, 0.0, 0.1, 2.0, 800.0),
            "1": EngineSnapshot(2.0, 2.0, 0.25, 5.0, 1200.0),
        },
        **as_fields({value.key: _example(value) for value in VALUES}),
    )


def _example(value: Value) -> Any:
    """Return a plausible value; of one that is not listed here, any."""
    if value.kind is ValueKind.HISTOGRAM:
        return Histogram(buckets=((0.3, 1.0), (0.5, 2.0), (float("inf"), 3.0)), sum=1.5)
    parts = {"some": 3.0} if value.series else {}
    return _EXAMPLES.get(value.key, parts if value.label else 3.0)


def step(
    concurrency: int = 4, *, broken: tuple[str, ...] = (), reason: str | None = None, rps: float = 10.0
) -> StepSummary:
    some = Distribution(count=100, mean=0.1, p50=0.09, p95=0.2, p99=0.3, max=0.4)
    return StepSummary(
        plan=StepPlan(concurrency=concurrency, seconds=15.0),
        valid=reason is None,
        reason=reason,
        seconds=15.0,
        requests=RequestCounts(ok=150, failed=1, aborted=2),
        offered_rps=rps,
        throughput_rps=rps,
        goodput_rps=rps,
        output_tokens_per_second=rps * 64,
        prompt_tokens_per_second=rps * 128,
        ttft_s=some,
        itl_s=some,
        tpot_s=some,
        e2e_s=some,
        schedule_lag_s=Distribution(),
        error_bound_s=ErrorBound(ttft=0.001, itl=0.001),
        good_ratio={"availability": 1.0, "ttft": 0.97, "tpot": 1.0, "all": 0.97} | dict.fromkeys(broken, 0.5),
        broken=broken,
        server=ServerPeaks(kv_cache_usage_peak=0.4, running_peak=4.0, waiting_peak=0.0, preemptions=0.0),
    )


def result(
    *,
    result_id: str = "20260921T141320-abcdef",
    target: str = "a",
    model: str = "m",
    started_s: float = WALL_S,
    steps: Sequence[StepSummary] | None = None,
    capacity: Capacity | None = None,
    stopped: Stopped | None = None,
    over_s: float = 2.0,
) -> CapacityResult:
    found = Capacity(
        mode="empirical",
        requests_per_second=10.0,
        lower=10.0,
        upper=12.5,
        output_tokens_per_second=640.0,
        knee_concurrency=4,
        limiting="ttft",
        prefill_tokens_per_second=12_000.0,
    )
    return CapacityResult(
        id=result_id,
        target=target,
        model=model,
        started=datetime.fromtimestamp(started_s, UTC),
        context=RunContext(workload={"name": "short", "prompt_tokens": 8}, objectives={"name": "chat"}, engine="vllm"),
        steps=tuple(steps) if steps is not None else (step(4), step(8, broken=("ttft",), rps=12.5)),
        capacity=capacity or found,
        cost=Cost(requests=300, tokens=57_600, seconds=31.5, over_objective_seconds=over_s),
        stopped=stopped or Stopped("done", "concurrency 8 broke ttft"),
    )


def no_knee(reason: str = "no step was valid: too_few_requests") -> Capacity:
    return Capacity(mode="empirical", reason=reason)


def status(**values: Any) -> TargetStatus:
    plain = TargetStatus(name="a", base_url="http://127.0.0.1:8000", model="m", objectives=CHAT, up=None)
    return replace(plain, **values)

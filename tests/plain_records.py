"""Records made for tests: complete, and plain where a test says nothing else."""

from collections.abc import Iterable, Mapping
from typing import Any

from example_records import token_events

from probe.core.objectives import Objective, Objectives
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Distribution, ErrorBound, RequestCounts, ServerPeaks, StepPlan, StepSummary

MS = 1_000_000
PROMISED = Objectives(name="chat", availability=0.99, ttft=Objective(0.95, 0.5), tpot=Objective(0.9, 0.05))


def spec(prompt_tokens: int = 8, output_tokens: int = 3, api: Api = Api.COMPLETIONS) -> RequestSpec:
    prompt = tuple(range(1000, 1000 + prompt_tokens)) if api.takes_ids else "hello there"
    return RequestSpec("short", api, prompt, prompt_tokens, output_tokens)


def record(
    *,
    at_ms: float = 0.0,
    ttft_ms: float = 100.0,
    gap_ms: float = 10.0,
    tokens: int = 3,
    lag_ms: float = 0.0,
    outcome: Outcome = Outcome.OK,
    **others: Any,
) -> RequestRecord:
    """Return a request due at `at_ms` with its first token after `ttft_ms` and then one every `gap_ms`."""
    due = round(at_ms * MS)
    stamps = [due + round((ttft_ms + gap_ms * i) * MS) for i in range(tokens)]
    values: dict[str, Any] = {
        "target": "llama",
        "model": "tiny",
        "traffic": Traffic.CAPACITY,
        "spec": spec(output_tokens=max(tokens, 1)),
        "scheduled_ns": due,
        "sent_ns": due + round(lag_ms * MS),
        "done_ns": (stamps[-1] if stamps else due) + MS,
        "done_wall_s": 1.7e9,
        "outcome": outcome,
        "events": token_events((stamp, 1, True) for stamp in stamps),
        "prompt_tokens": 8,
        "output_tokens": tokens,
    }
    return RequestRecord(**{**values, **others})


def failure(outcome: Outcome = Outcome.SERVER_ERROR, **others: Any) -> RequestRecord:
    """Return a request that got no token."""
    return record(tokens=0, outcome=outcome, prompt_tokens=0, **others)


def step(
    concurrency: int,
    throughput_rps: float = 1.0,
    broken: Iterable[str] = (),
    reason: str | None = None,
    good_ratio: Mapping[str, float] | None = None,
) -> StepSummary:
    return StepSummary(
        plan=StepPlan(concurrency, 15.0),
        valid=reason is None,
        reason=reason,
        seconds=15.0,
        requests=RequestCounts(ok=round(throughput_rps * 15), failed=0, aborted=0),
        offered_rps=throughput_rps,
        throughput_rps=throughput_rps,
        goodput_rps=throughput_rps,
        output_tokens_per_second=128 * throughput_rps,
        prompt_tokens_per_second=256 * throughput_rps,
        ttft_s=Distribution(),
        itl_s=Distribution(),
        tpot_s=Distribution(),
        e2e_s=Distribution(),
        schedule_lag_s=Distribution(),
        error_bound_s=ErrorBound(0.0, 0.0),
        good_ratio=good_ratio or {},
        broken=tuple(broken),
        server=ServerPeaks(),
    )


def poll(**values: Any) -> ServerSnapshot:
    """Return a snapshot of an idle server with these values changed."""
    idle = {"running": 0.0, "waiting": 0.0, "kv_cache_usage": 0.0, "preemptions": 0.0}
    return ServerSnapshot(**{"at_ns": 0, "wall_s": 0.0, **idle, **values})

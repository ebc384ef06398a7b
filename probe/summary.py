"""A step's records to its StepSummary. Pure.

Percentiles are exact, of every sample of the step. Rates are taken over the step's window, from its first
send to when sending stopped (or, for a step of a fixed number of requests, to the last completion), so that
the drain at the end dilutes nothing. Throughput counts a request that the window cuts by the share of its
time that lies inside: whole requests only would, with long answers and short windows, be off by a wave.
"""

from collections.abc import Iterable, Sequence

from probe import guard, latency, slo
from probe.records import (
    Distribution,
    ErrorBound,
    Objectives,
    Outcome,
    RequestCounts,
    RequestRecord,
    ServerPeaks,
    ServerSnapshot,
    StepPlan,
    StepSummary,
)

# Fewer answered requests than this say nothing about a 95th percentile: one of 20 is the 95th.
MIN_REQUESTS = 20
CUT_SHORT = "cut_short"  # the reason of a step that guard, budget or caller stopped on the way
# Outcomes of requests that the server did no work for.
_REFUSED = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.BAD_REQUEST, Outcome.REJECTED)
# The client may be wrong by at most this share of an objective it judges.
MAX_ERROR_SHARE = 0.1


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) of sorted samples, interpolated linearly (Hyndman and Fan, type 7: numpy's default).

    Raises IndexError without a sample.
    """
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def distribution(samples: Iterable[float | None]) -> Distribution:
    """Exact statistics of the samples that are defined."""
    ordered = sorted(sample for sample in samples if sample is not None)
    if not ordered:
        return Distribution()
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 0.50),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def summarize(
    plan: StepPlan,
    records: Sequence[RequestRecord],
    window_ns: tuple[int, int],
    objectives: Objectives,
    *,
    loop_lag_s: Sequence[float],
    polls: Sequence[ServerSnapshot],
    cut_short: bool = False,
) -> StepSummary:
    """One step, measured and judged. `loop_lag_s`: how late the client's event loop woke, sampled over the step.

    A step that was `cut_short` (guard, budget, interrupt) is shown with what it saw, and judges nothing.
    """
    start, end = window_ns
    seconds = max((end - start) * 1e-9, 1e-9)
    ok = [r for r in records if r.outcome is Outcome.OK]
    aborted = sum(r.outcome is Outcome.ABORTED for r in records)
    ratios = slo.good_ratio(records, objectives)
    # Without a sample the loop never woke: nothing is known of the stamps.
    bound = percentile(sorted(loop_lag_s), 0.99) if loop_lag_s else seconds
    reason = CUT_SHORT if cut_short else _void(records, bound, objectives)
    throughput = sum(_share_inside(r, end) for r in ok) / seconds
    return StepSummary(
        plan=plan,
        valid=reason is None,
        reason=reason,
        seconds=seconds,
        requests=RequestCounts(ok=len(ok), failed=len(records) - len(ok) - aborted, aborted=aborted),
        offered_rps=sum(r.sent_ns <= end for r in records) / seconds,
        throughput_rps=throughput,
        goodput_rps=throughput * ratios.get(slo.ALL, 0.0),
        output_tokens_per_second=_tokens_inside(records, end) / seconds,
        prompt_tokens_per_second=_prompts_inside(records, end) / seconds,
        ttft_s=distribution(latency.ttft_s(r) for r in ok),
        itl_s=distribution(gap for r in ok for gap in latency.itl_s(r)),
        tpot_s=distribution(latency.tpot_s(r) for r in ok),
        e2e_s=distribution(latency.e2e_s(r) for r in ok),
        schedule_lag_s=distribution(latency.schedule_lag_s(r) for r in records),
        error_bound_s=ErrorBound(ttft=bound, itl=bound),
        good_ratio=ratios,
        broken=slo.broken(ratios, objectives) if reason is None else (),
        server=_peaks(polls),
    )


def covered_seconds(spans: Iterable[tuple[int, int]]) -> float:
    """The time that at least one of the spans (begin, end; nanoseconds) covers."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total * 1e-9


def over_objective(record: RequestRecord, objectives: Objectives) -> list[tuple[int, int]]:
    """The spans (begin, end) in which a request was late in beginning, slow, or failing; nanoseconds.

    Of one that we cancelled nothing is known but that it had not ended: it was over once TTFT and TPOT at their
    limits would have brought it to its end.
    """
    ttft, tpot = objectives.ttft, objectives.tpot
    if record.outcome is Outcome.ABORTED:
        if ttft is None or tpot is None:
            return []
        allowed_s = ttft.within_s + tpot.within_s * (record.spec.output_tokens - 1)
        over = [(record.scheduled_ns + int(allowed_s * 1e9), record.done_ns)]
    elif record.outcome is not Outcome.OK:
        over = [(record.scheduled_ns, record.done_ns)]
    else:
        good = slo.met(record, objectives)
        first = record.scheduled_ns + int((latency.ttft_s(record) or 0.0) * 1e9)
        over = [(record.scheduled_ns + int(ttft.within_s * 1e9), first)] if ttft and not good["ttft"] else []
        over += [(first, record.done_ns)] if tpot and not good["tpot"] else []
    return [(begin, end) for begin, end in over if begin < end]


def tokens_spent(record: RequestRecord) -> tuple[int, int]:
    """Prompt and output tokens a request cost the server, at most.

    Of one that did not end well the server says no count: what was cancelled may have been worked on to its end,
    what was refused has not been.
    """
    if record.outcome is Outcome.OK:
        return record.prompt_tokens, record.output_tokens
    if record.outcome in _REFUSED:
        return 0, 0
    if record.outcome is Outcome.ABORTED:
        return record.spec.prompt_tokens, record.spec.output_tokens
    return record.spec.prompt_tokens, sum(event.tokens for event in record.events)


def _void(records: Sequence[RequestRecord], bound_s: float, objectives: Objectives) -> str | None:
    """Why a step judges nothing, or None. A late stamp moves TTFT by itself, TPOT by its share of a token."""
    judged = [record for record in records if record.outcome is not Outcome.ABORTED]
    if len(judged) < MIN_REQUESTS:
        return "too_few_requests"
    gaps = max(percentile(sorted(record.output_tokens for record in judged), 0.5) - 1, 1)
    errors = {"ttft": bound_s, "tpot": 2 * bound_s / gaps}
    latencies = objectives.latencies().items()
    bound = any(errors[name] > MAX_ERROR_SHARE * objective.within_s for name, objective in latencies)
    return "client_bound" if bound else None


def _share_inside(record: RequestRecord, end_ns: int) -> float:
    """The share of its time that a request spent inside the window.

    With N in flight and answers of L seconds these add up to N/L a second (Little's law), however long an answer
    is beside the window; counting whole answers would lose those that end after it.
    """
    if record.sent_ns >= end_ns:
        return 0.0
    return min((end_ns - record.sent_ns) / max(record.done_ns - record.sent_ns, 1), 1.0)


def _tokens_inside(records: Iterable[RequestRecord], end_ns: int) -> int:
    return sum(event.tokens for record in records for event in record.events if event.at_ns <= end_ns)


def _prompts_inside(records: Iterable[RequestRecord], end_ns: int) -> int:
    return sum(record.prompt_tokens for record in records if record.events and record.events[0].at_ns <= end_ns)


def _peaks(polls: Sequence[ServerSnapshot]) -> ServerPeaks:
    def peak(values: Iterable[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return ServerPeaks(
        kv_cache_usage_peak=peak(poll.kv_cache_usage for poll in polls),
        running_peak=peak(poll.running for poll in polls),
        waiting_peak=peak(poll.waiting for poll in polls),
        preemptions=guard.preemptions(polls),
    )

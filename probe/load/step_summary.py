"""Summarizes the records of a step as a StepSummary. Pure.

Percentiles are exact, over every request that was due in the step's window; rates are taken over the window. It
reaches from the end of the warm-up to when sending stopped (or, for a step of a fixed number of requests, to the last
completion), so that the drain at the end does not dilute the rates. Throughput counts a request that the window cuts
by the share of its time inside it: with long answers and short windows, whole requests only would be off by a wave.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypedDict

from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.percentiles import Cluster, clustered_distribution, distribution, percentile
from probe.core.reasons import CLIENT_BOUND, CUT_SHORT, HELD_BACK, MIN_REQUESTS, TOO_FEW
from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import GpuSnapshot, ServerSnapshot, UserLoad
from probe.core.step import (
    Distribution,
    ErrorBound,
    RequestCounts,
    SentTokens,
    ServerPeaks,
    StepRun,
    StepSummary,
    TokenCounts,
)
from probe.gpu.fields import use
from probe.load import late_step
from probe.load.loop_lag import lag_of_most_moments
from probe.observe import guard

_PARTS = 10  # of a step: the means of these batches show how exact a statistic is (Schmeiser, 1982: 10 to 30)
# The client may be wrong by at most this share of an objective it judges.
MAX_ERROR_SHARE = 0.1


def summarize(
    run: StepRun,
    objectives: Objectives,
    *,
    polls: Sequence[ServerSnapshot] = (),
    gpus: Sequence[GpuSnapshot] = (),
    users: UserLoad | None = None,
) -> StepSummary:
    """Return the measurements of one step and the verdict on it.

    Requests that were due in the warm-up are not judged, nor those that one worker sent when another had ended. A
    step that was cut short (guard, budget, interrupt) is shown with its measurements, but not judged.
    """
    start, end = run.window_ns
    seconds = max((end - start) * 1e-9, 1e-9)
    records = [r for r in run.records if start <= r.scheduled_ns <= end]
    ok = [r for r in records if r.outcome is Outcome.OK]
    aborted = sum(r.outcome is Outcome.ABORTED for r in records)
    ratios = slo.good_ratio(records, objectives)
    bound = _error_bound(ok, run.loop_lag_s, seconds)
    is_late = _is_late(ok, bound, objectives)
    reason = run.problem or (CUT_SHORT.word if run.is_cut_short else _void(records, objectives))
    if reason is None and is_late and not late_step.has_held(run, records, objectives):
        reason = CLIENT_BOUND.word
    return StepSummary(
        plan=run.plan.without_times,
        valid=reason is None,
        reason=reason,
        seconds=seconds,
        requests=RequestCounts(ok=len(ok), failed=len(records) - len(ok) - aborted, aborted=aborted),
        **_rates(run, ratios, seconds),
        **_latencies(run, records, ok),
        error_bound_s=bound,
        good_ratio=ratios,
        broken=slo.broken(ratios, objectives) if reason is None else (),
        server=_peaks(polls),
        users=users or UserLoad(),
        gpu=use(gpus, run.window_ns),
        tokens=sent_tokens(run.records),
        rejected=sum(r.is_overload for r in records),
        is_late=is_late,
    )


class _Rates(TypedDict):
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    goodput_by_objective_rps: dict[str, float]
    output_tokens_per_second: float
    prompt_tokens_per_second: float


def _rates(run: StepRun, ratios: Mapping[str, float], seconds: float) -> _Rates:
    """Return the rates over the window, of requests and tokens; `ratios`: the shares of good requests."""
    start, end = run.window_ns
    throughput = sum(_share_inside(r, start, end) for r in run.records if r.outcome is Outcome.OK) / seconds
    return {
        "offered_rps": sum(start <= r.sent_ns <= end for r in run.records) / seconds,
        "throughput_rps": throughput,
        "goodput_rps": throughput * ratios.get(slo.ALL, 0.0),
        "output_tokens_per_second": _tokens_inside(run.records, start, end) / seconds,
        "prompt_tokens_per_second": _prompts_inside(run.records, start, end) / seconds,
        "goodput_by_objective_rps": {name: throughput * ratio for name, ratio in ratios.items()},
    }


class _Latencies(TypedDict):
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    stall_s: Distribution
    schedule_lag_s: Distribution
    loop_lag_s: Distribution
    held_s: Distribution
    coalesced_ratio: float | None
    tokens_per_event: float | None


def _latencies(run: StepRun, records: Sequence[RequestRecord], ok: Sequence[RequestRecord]) -> _Latencies:
    """Return the latencies of the answers in the window, and how late the client was."""
    events, tokens = sum(len(r.events) for r in ok), sum(sum(r.events.tokens) for r in ok)
    return {
        "ttft_s": distribution(latency.ttft_s(r) for r in ok),
        "itl_s": clustered_distribution(_gaps(ok), unit=1e-9),
        "tpot_s": distribution(latency.tpot_s(r) for r in ok),
        "e2e_s": distribution(latency.e2e_s(r) for r in ok),
        "stall_s": distribution(latency.stall_s(r) for r in ok),
        "schedule_lag_s": distribution(latency.schedule_lag_s(r) for r in records),
        "held_s": distribution(map(latency.held_s, records)),
        "loop_lag_s": distribution(run.loop_lag_s, independent=False),
        "coalesced_ratio": sum(latency.coalesced(r) for r in ok) / events if events else None,
        "tokens_per_event": tokens / events if tokens else None,
    }


def _gaps(ok: Sequence[RequestRecord]) -> list[Cluster]:
    """Return the gaps between tokens by answer and by tenth of the step.

    Gaps of one answer are alike, and so are gaps of one moment: answers that run at once share the server's steps.
    """
    stamps = [times for r in ok if not latency.is_held_back(r) and len(times := latency.token_times_ns(r)) > 1]
    if not stamps:
        return []
    begin, end = min(at[0] for at in stamps), max(at[-1] for at in stamps)
    bounds = [begin + (end - begin) * i // _PARTS for i in range(1, _PARTS)]
    found = list[Cluster]()
    for row, at in enumerate(stamps):
        gaps = [after - before for before, after in pairwise(at)]
        cuts = [0, *(max(bisect_right(at, bound) - 1, 0) for bound in bounds), len(gaps)]
        found += [Cluster(row, i, gaps[low:high]) for i, (low, high) in enumerate(pairwise(cuts)) if low < high]
    return found


def _error_bound(ok: Sequence[RequestRecord], loop_lag_s: Sequence[float], seconds: float) -> ErrorBound:
    """Return the sum of two 99th percentiles: the known lateness of stamps, and how late the system ran the process."""
    if not loop_lag_s:
        return ErrorBound(ttft=seconds, itl=seconds)  # the loop never woke: nothing is known of the stamps
    waking = lag_of_most_moments(loop_lag_s)
    ttft = distribution(map(latency.ttft_error_s, ok), independent=False).p99
    itl = distribution((e for r in ok for e in latency.itl_error_ns(r)), unit=1e-9, independent=False).p99
    return ErrorBound(ttft=waking + (ttft or 0.0), itl=waking + (itl or 0.0))


def _void(records: Sequence[RequestRecord], objectives: Objectives) -> str | None:
    """Return why a step cannot be judged, however punctual the client was, or None."""
    if any(record.outcome is Outcome.CLIENT_BOUND for record in records):
        return CLIENT_BOUND.word
    judged = [record for record in records if record.outcome is not Outcome.ABORTED]
    if len(judged) < MIN_REQUESTS:
        return TOO_FEW.word
    ok = [record for record in judged if record.outcome is Outcome.OK]
    return HELD_BACK.word if 2 * sum(bool(slo.unknown(record, objectives)) for record in ok) > len(ok) else None


def _is_late(ok: Sequence[RequestRecord], bound: ErrorBound, objectives: Objectives) -> bool:
    """Return whether the client was too late to judge these answers by their latencies.

    Late stamps move TTFT, E2E and gaps in full, TPOT by a share. What was not answered needs no stamp.
    """
    answered = sorted(record.output_tokens for record in ok)
    if not answered:
        return False
    gaps = max(percentile(answered, 0.5) - 1, 1)
    whole = bound.ttft + bound.itl
    errors = {"ttft": bound.ttft, "tpot": whole / gaps, "e2e": whole, "itl": bound.itl}
    latencies = objectives.latencies().items()
    bad = any(errors[name] > MAX_ERROR_SHARE * objective.within_s for name, objective in latencies)
    return bad or _breaks_by_own_delay(ok, objectives)


def _breaks_by_own_delay(ok: Sequence[RequestRecord], objectives: Objectives) -> bool:
    """Return whether the ITL objective is broken only by gaps that the client's own delay may have lengthened.

    The bound covers 99 % of the gaps. The longest of a hundred may be one of the others.
    """
    if objectives.itl is None:
        return False
    gaps = Objectives("", itl=objectives.itl)
    judged = [(r, good) for r in ok if (good := slo.met(r, gaps).get("itl")) is not None]
    missed = [r for r, good in judged if not good]
    excused = sum(slo.may_be_client_delay(r, gaps, 0.0) for r in missed)
    allowed = (1 - objectives.itl.ratio) * len(judged)
    return len(missed) - excused <= allowed < len(missed)


def _share_inside(record: RequestRecord, start_ns: int, end_ns: int) -> float:
    """Return the share of its time that a request spent inside the window.

    With N in flight and answers of L seconds these add up to N/L a second (Little's law), however long an answer
    is relative to the window; counting whole answers would lose those that end after it.
    """
    inside = min(record.done_ns, end_ns) - max(record.sent_ns, start_ns)
    took = record.done_ns - record.sent_ns
    if took <= 0:
        return float(start_ns <= record.sent_ns < end_ns)
    return max(inside, 0) / took


def _tokens_inside(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> int:
    return sum(
        sum(r.events.tokens[bisect_left(r.events.at_ns, start_ns) : bisect_right(r.events.at_ns, end_ns)])
        for r in records
    )


def _prompts_inside(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> int:
    return sum(r.prompt_tokens for r in records if len(r.events) and start_ns <= r.events.at_ns[0] <= end_ns)


def _peaks(polls: Sequence[ServerSnapshot]) -> ServerPeaks:
    def peak(values: Iterable[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return ServerPeaks(
        kv_cache_usage_peak=peak(poll.kv_cache_usage for poll in polls),
        running_peak=peak(poll.running for poll in polls),
        waiting_peak=peak(poll.waiting for poll in polls),
        preemptions=guard.preemptions(polls),
        prefix_hit_ratio=_prefix_hit_ratio(polls),
    )


def _prefix_hit_ratio(polls: Sequence[ServerSnapshot]) -> float | None:
    """Return the share of looked-up prompt tokens that the prefix cache had, of users' requests too; None: unknown."""
    counted = [(p.prefix_cache_queries, p.prefix_cache_hits) for p in polls]
    known = [(queries, hits) for queries, hits in counted if queries is not None and hits is not None]
    if len(known) < 2:  # noqa: PLR2004 - a difference takes two
        return None
    queries, hits = (known[-1][i] - known[0][i] for i in (0, 1))
    return hits / queries if queries > 0 and 0 <= hits <= queries else None


def sent_tokens(records: Sequence[RequestRecord]) -> SentTokens:
    """Return the token counts of these requests as asked for, and of the answered ones as the server counted."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    return SentTokens(
        prompts=_counts(record.spec.prompt_tokens for record in records),
        answers=_counts(record.spec.output_tokens for record in records),
        counted_prompts=_counts(record.prompt_tokens for record in ok),
        counted_answers=_counts(record.output_tokens for record in ok),
        answered_prompts=fmean(record.spec.prompt_tokens for record in ok) if ok else None,
        answered_answers=fmean(record.spec.output_tokens for record in ok) if ok else None,
    )


def _counts(tokens: Iterable[int]) -> TokenCounts:
    ordered = sorted(tokens)
    if not ordered:
        return TokenCounts()
    p50, p95, p99 = (float(percentile(ordered, share)) for share in (0.5, 0.95, 0.99))
    return TokenCounts(fmean(ordered), p50, p95, p99)

"""A capacity result as text: the knee, its bounds, the cost of the run, and advice."""

from collections.abc import Iterator
from math import isclose

from probe.capacity.trend.headroom import headroom as left_of
from probe.capacity.trend.headroom import largest_share
from probe.core import reasons
from probe.core.objectives import AVAILABILITY, LATENCIES
from probe.core.reasons import ReasonKind
from probe.core.result import Capacity, CapacityResult, Roofline
from probe.core.snapshot import differing_flags
from probe.core.text import one_line
from probe.report.failure_text import failure_advice
from probe.report.figures import milliseconds, number, percent
from probe.report.knee_text import is_not_reached, knee_line, limit_words
from probe.report.provenance_text import provenance_lines
from probe.report.sent_text import sent_lines
from probe.report.setting_findings import replicas_words
from probe.report.sweep_text import sweep_advice, sweep_lines
from probe.report.workload_text import workload_lines

_LINE = 500
_EMPIRICAL, _FORECAST = "empirical", "forecast"
# Below this, the loss of one replica out of a few leaves too little capacity.
_LITTLE_HEADROOM = 0.25
# How to raise a limit that is an objective. Reasons of the guard have their own advice.
_FIXES = {
    **{name: row.advice for name, row in LATENCIES.items()},
    AVAILABILITY: "requests fail under load: read the server's log before you add load",
}
# The change that `bottleneck_gain` assumes; for any other bottleneck, half its cost.
_ASSUMED_CHANGE = {
    "max_num_seqs": "without this limit",
    "kv_cache": "with twice the KV cache",
    "front_end": "without the front end's time",
}
_IMPOSSIBLE = 1.05  # ratio to a hardware limit above which the configured model or GPU must be wrong


def result_words(result: CapacityResult) -> str:
    """Return the result as labelled lines."""
    lines = [*result_lines(result), *provenance_lines(result)]
    return "\n".join(f"{f'{label}:':<13}{one_line(words, _LINE)}" for label, words in lines)


def result_lines(result: CapacityResult) -> list[tuple[str, str]]:
    """Return the labels and texts of the result's lines."""
    incomplete = [("Incomplete", _incomplete(result))] if result.stopped.by == reasons.ENDED_BY_ERROR.word else []
    failure = [("Failure", result.first_failure)] if result.first_failure is not None else []
    differing = differing_flags(result.context.flags)
    warning = [("Replicas", f"{replicas_words(differing)}; the capacity is for this mix")] if differing else []
    found = [("Ended by", _ended(result)), ("Cost", _cost(result))]
    conditions = [*workload_lines(result.context.workload), *sent_lines(result)]
    capacity = [*_capacity(result), ("Advice", advice(result)), *sweep_lines(result)]
    return [*incomplete, *capacity, *_headroom_and_error(result), *conditions, *warning, *failure, *found]


def capacity_words(capacity: Capacity) -> str:
    """Return the capacity with its bounds; "" if there is none."""
    rate = number(capacity.requests_per_second)
    if capacity.requests_per_second is None:
        return ""
    if capacity.lower is None or capacity.upper is None:
        return f"at least {rate} requests/s" if capacity.lower is not None else f"about {rate} requests/s"
    ends = f"{number(capacity.lower)} to {number(capacity.upper)}"
    return f"{rate} requests/s ({ends if capacity.mode == _EMPIRICAL else f'90 % interval {ends}'})"


def roofline_words(found: Roofline) -> str:
    """Compare the server with its GPUs' limits."""
    parts = []
    most = max(found.decode_ratio or 0.0, found.prefill_ratio or 0.0)
    if most > _IMPOSSIBLE:
        parts.append(f"{most:.1f} times the hardware limit: correct gpu, gpus, parameters or weight_bits")
    elif found.decode_ratio is not None:
        parts.append(
            f"decode at {percent(found.decode_ratio)} of its memory bandwidth (a step takes at"
            f" least {milliseconds(found.step_s)}, of which {milliseconds(found.floor_s)} to read the weights)"
        )
    if found.prefill_ratio is not None and most <= _IMPOSSIBLE:
        parts.append(f"prefill at {percent(found.prefill_ratio)} of its FLOP/s")
    if found.bandwidth_ratio is not None:
        parts.append(
            f"vLLM estimates that up to {percent(found.bandwidth_ratio)} of its bandwidth and"
            f" {percent(found.flops_ratio)} of its FLOP/s were in use"
        )
    if not found.sure:
        parts.append("these limits are not confirmed by the GPU's manufacturer")
    return f"{found.gpu}: {'; '.join(parts)}"


def over_capacity(headroom_ratio: float) -> str:
    """Return a sentence for negative headroom."""
    return f"users ask for {percent(-headroom_ratio)} more than the measured capacity"


def headroom(result: CapacityResult) -> float | None:
    """Return 1 - user traffic / capacity, or None if either is unknown. A lower bound if the capacity is one."""
    return left_of(result.users, result.capacity)


def advice(result: CapacityResult) -> str:
    """Return one sentence that says what to do now."""
    capacity = result.capacity
    if capacity.requests_per_second is None:
        return failure_advice(result) or f"{capacity.advice or _next_run(result)}."
    if (words := _unfinished(result)) is not None:
        return words
    if capacity.mode == _FORECAST:
        return "this is a forecast, not a measurement: verify it with a run before you plan with it."
    left = headroom(result)
    if left is not None and left < _LITTLE_HEADROOM:
        before_peak = f"only {percent(left)} of the capacity is left: add a replica before the next peak."
        return before_peak if left >= 0 else f"{over_capacity(left)}: add a replica now."
    if is_not_reached(capacity) and not capacity.limiting:
        ended = reasons.find_end(result.stopped)
        more = ended.advice if ended.kind is ReasonKind.BUDGET else "run again with more load to find the knee"
        return f"no objective was broken: {capacity.advice or more}."
    trip = reasons.find(reasons.TRIPS, capacity.limiting)
    fix = capacity.advice or sweep_advice(result) or _FIXES.get(capacity.limiting or "") or (trip and trip.advice)
    return (
        f"{fix}." if fix else f"plan with at most {number(capacity.lower or capacity.requests_per_second)} requests/s."
    )


def no_capacity_words(result: CapacityResult) -> str:
    """Return why a result has no capacity, and what to do now."""
    return f"{result.capacity.reason}; {advice(result)}"


def _next_run(result: CapacityResult) -> str:
    """Return what to do before the next run, after one without a capacity and without advice of its own."""
    ended = reasons.find_end(result.stopped)
    return reasons.ENDED_BY_GUARD.advice if ended.is_overload else ended.advice


def _unfinished(result: CapacityResult) -> str | None:
    """Return what to do after a run that ended too early for its capacity to be relied on; None if it did not."""
    ended = reasons.find_end(result.stopped)
    if ended.kind in (ReasonKind.FAILURE, ReasonKind.BLIND, ReasonKind.TRAFFIC):
        return failure_advice(result) or f"{ended.advice}."
    is_broken = ended in (reasons.ENDED_BY_INTERRUPT, reasons.ENDED_BY_ERROR) or ended.kind is ReasonKind.ERROR
    return "let a run finish before you plan with this." if is_broken else None


def _capacity(result: CapacityResult) -> Iterator[tuple[str, str]]:
    capacity = result.capacity
    if capacity.requests_per_second is None:
        yield "No knee", f"{capacity.reason}."
    else:
        tokens = capacity.output_tokens_per_second
        more = f", {number(tokens)} output tokens/s" if tokens else ""
        yield "Knee", knee_line(result)
        yield "Capacity", f"{capacity_words(capacity)}{_users_in(result)}{more}; {capacity.mode}"
        if capacity.reason:
            yield "Note", _sentence(capacity.reason)
    if capacity.limiting:
        yield "Limited by", limit_words(result)
    if capacity.bottleneck:
        gain = ""
        if capacity.bottleneck_gain is not None:
            change = _ASSUMED_CHANGE.get(capacity.bottleneck, "with this cost halved")
            gain = f": capacity would be {percent(capacity.bottleneck_gain)} higher {change}"
        yield "Bottleneck", f"{capacity.bottleneck}{gain}"
    if capacity.roofline is not None:
        yield "Roofline", roofline_words(capacity.roofline)


def _headroom_and_error(result: CapacityResult) -> Iterator[tuple[str, str]]:
    used = largest_share(result.users, result.capacity)
    if used is not None:
        least = "at least " if result.capacity.upper is None else ""
        traffic = f"user traffic is {number(used.live)} {used.unit}" if used.live else "no users are sending requests"
        if used.ratio > 1:
            yield "Headroom", f"none: {over_capacity(1 - used.ratio)} ({traffic})"
        else:
            yield "Headroom", f"{least if used.live else ''}{percent(1 - used.ratio)}: {traffic}"
    elif result.capacity.requests_per_second is not None:
        yield "Headroom", "unknown: the server's metrics do not show user traffic"
    bounds = [step.error_bound_s for step in result.steps if step.valid]
    if bounds:
        ttft, itl = max(bound.ttft for bound in bounds), max(bound.itl for bound in bounds)
        yield "Error bound", f"at most {ttft * 1000:.1f} ms in TTFT, {itl * 1000:.1f} ms in ITL"


def _users_in(result: CapacityResult) -> str:
    """Return the users in a capacity that one step has measured: its row shows only the run's requests."""
    for step in result.steps:
        users = step.users.requests_per_second
        if users and isclose(step.certain_rps + users, result.capacity.requests_per_second or 0.0, rel_tol=1e-6):
            return f", of which {number(users)} from users"
    return ""


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _incomplete(result: CapacityResult) -> str:
    return f"an error ended the run ({result.stopped.reason or 'unknown'}); what follows is of the steps before it"


def _ended(result: CapacityResult) -> str:
    reason = f" ({result.stopped.reason})" if result.stopped.reason else ""
    return f"{result.stopped.by}{reason}"


def _cost(result: CapacityResult) -> str:
    cost = result.cost
    return (
        f"{cost.requests} requests, {cost.tokens:,} tokens, {cost.seconds:.1f} s,"
        f" {cost.over_objective_seconds:.1f} s over an objective"
    )

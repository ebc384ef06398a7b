"""The latencies that the guard judges: the server's histograms over the last polls.

They include probe requests, which share queue and batch with users' requests: whichever wait too long, it is a reason
to stop.
"""

from collections.abc import Sequence
from math import inf

from probe.core.snapshot import Histogram, ServerSnapshot
from probe.observe.guard_limits import GuardLimits


def slow_tokens(polls: Sequence[ServerSnapshot], limits: GuardLimits) -> str | None:
    """Describe latencies that are too long at the end of `polls`, the successful ones since load began, or None."""
    recent = polls[-limits.latency_polls :]
    return _slow_first_tokens(polls, recent, limits) or _slow_next_tokens(recent, limits)


def _slow_first_tokens(
    polls: Sequence[ServerSnapshot], recent: Sequence[ServerSnapshot], limits: GuardLimits
) -> str | None:
    """Describe too many first tokens after twice the objective: more than may miss the objective, and than usual."""
    first, last = _ends(recent, "ttft")
    if limits.ttft is None or first is None or last is None:
        return None
    wanted_s = limits.over_objective * limits.ttft.within_s
    limit_s = min((bound for bound, _ in last.buckets if bound >= wanted_s), default=inf)  # rather late than wrong
    answered = last.count - first.count
    slow = answered - (_up_to(last, limit_s) - _up_to(first, limit_s))
    usual = limits.worse_than_before * _usual(polls, limit_s, limits)
    if slow < limits.slow_first_tokens or slow <= max(1 - limits.ttft.ratio, usual) * answered:
        return None
    return f"{slow:g} of {answered:g} requests that the server answered had their first token after {limit_s:g} s"


def _usual(polls: Sequence[ServerSnapshot], limit_s: float, limits: GuardLimits) -> float:
    """Return the share of first tokens after `limit_s` in the server's life before this load; 0 with few samples."""
    ever, _ = _ends(polls, "ttft")
    if ever is None or ever.count < limits.usual_samples:
        return 0.0
    return (ever.count - _up_to(ever, limit_s)) / ever.count


def _slow_next_tokens(recent: Sequence[ServerSnapshot], limits: GuardLimits) -> str | None:
    """Describe a mean gap over twice the objective. Single long gaps, while a prompt is prefilled, are no harm."""
    first, last = _ends(recent, "itl")
    if limits.tpot is None or first is None or last is None:
        return None
    count, limit_s = last.count - first.count, limits.over_objective * limits.tpot.within_s
    if count < limits.itl_samples or (mean_s := (last.sum - first.sum) / count) <= limit_s:
        return None
    return f"the server's mean gap between tokens is {mean_s * 1000:.0f} ms, more than {limit_s * 1000:.0f} ms"


def _ends(recent: Sequence[ServerSnapshot], name: str) -> tuple[Histogram | None, Histogram | None]:
    """Return a histogram at the first and at the last poll that has it."""
    found = [poll.histograms[name] for poll in recent if name in poll.histograms]
    return (found[0], found[-1]) if found else (None, None)


def _up_to(histogram: Histogram, bound: float) -> float:
    return max((count for upper, count in histogram.buckets if upper <= bound), default=0.0)

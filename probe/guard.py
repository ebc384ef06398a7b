"""Whether load may go on. Pure: polls and failures in, a verdict out.

The signals and their order come from one measured overload of a real vLLM with a small KV cache:
preemptions showed after 3.8 s, a standing queue after 8.8 s, "KV above 0.95 three times in a row" only
after 13 s, because usage swings between 0.8 and 1.0 while requests are pushed out. Hence preemptions
first, and KV as two of the last five polls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from probe.records import GuardVerdict, Outcome, ServerSnapshot

GO = GuardVerdict(go=True)
# An open loop had as many requests in flight as it may: the server does not keep up.
IN_FLIGHT_CAP = "in_flight_cap"
# Why load is stopped: every reason that `decide` gives, and the engine's own.
REASONS = ("server_errors", "failed_requests", "server_unreadable", "preemptions", "queue", "kv_cache", IN_FLIGHT_CAP)
# Failures that say the server is in trouble. A wrong answer or a bad request is trouble of another kind,
# and going on would not be measuring either, so any failure stops the load; these only name it better.
_SERVER_ERRORS = (Outcome.SERVER_ERROR, Outcome.REJECTED, Outcome.UNREACHABLE, Outcome.TIMEOUT)


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """When to stop. Counts are polls, in a row unless said otherwise."""

    preemptions: float = 3
    waiting: float = 4
    waiting_polls: int = 3
    kv_cache_usage: float = 0.95
    kv_polls: int = 2  # of the last kv_window
    kv_window: int = 5
    missed_polls: int = 2


def may_start(server: ServerSnapshot | None, limits: GuardLimits) -> GuardVerdict:
    """Before any load: a server that is blind to us, queueing or nearly full gets none."""
    if server is None or server.waiting is None:
        return GuardVerdict(
            go=False,
            reason="no_server_metrics",
            detail="the server's queue cannot be seen, so the guard would be blind",
        )
    if server.waiting > 0:
        return GuardVerdict(go=False, reason="busy", detail=f"{server.waiting:g} requests are already waiting")
    if (server.kv_cache_usage or 0) > limits.kv_cache_usage:
        return GuardVerdict(go=False, reason="busy", detail=f"KV cache {server.kv_cache_usage:.0%} full")
    return GO


def decide(polls: Sequence[ServerSnapshot | None], failures: Sequence[Outcome], limits: GuardLimits) -> GuardVerdict:
    """Whether load may go on.

    `polls`: the server at each poll since load began, oldest first, None where it could not be read;
    `failures`: outcomes of our own requests that failed since then.
    """
    if failures:
        first = failures[0]
        reason = "server_errors" if first in _SERVER_ERRORS else "failed_requests"
        return GuardVerdict(go=False, reason=reason, detail=f"{len(failures)} of our requests failed, first: {first}")
    missed = polls[-limits.missed_polls :]
    if len(missed) == limits.missed_polls and all(poll is None or poll.waiting is None for poll in missed):
        return GuardVerdict(go=False, reason="server_unreadable", detail=f"{len(missed)} polls of the server failed")
    seen = [poll for poll in polls if poll is not None]
    if not seen:
        return GO
    return _preempting(seen, limits) or _queueing(seen, limits) or _full(seen, limits) or GO


def preemptions(polls: Sequence[ServerSnapshot]) -> float | None:
    """How many the server made between the first poll and the last; None where it does not say."""
    counts = [poll.preemptions for poll in polls if poll.preemptions is not None]
    # Growth from poll to poll: a server that restarts meanwhile counts from zero again.
    return sum(max(after - before, 0.0) for before, after in pairwise(counts)) if counts else None


def _preempting(seen: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    grown = preemptions(seen) or 0.0
    if grown < limits.preemptions:
        return None
    return GuardVerdict(go=False, reason="preemptions", detail=f"{grown:g} preemptions since the load began")


def _queueing(seen: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    recent = [poll.waiting or 0.0 for poll in seen[-limits.waiting_polls :]]
    if len(recent) < limits.waiting_polls or min(recent) <= limits.waiting:
        return None
    return GuardVerdict(go=False, reason="queue", detail=f"{recent[-1]:g} requests waiting for {len(recent)} polls")


def _full(seen: Sequence[ServerSnapshot], limits: GuardLimits) -> GuardVerdict | None:
    recent = [poll.kv_cache_usage or 0.0 for poll in seen[-limits.kv_window :]]
    high = [usage for usage in recent if usage > limits.kv_cache_usage]
    if len(high) < limits.kv_polls:
        return None
    return GuardVerdict(
        go=False, reason="kv_cache", detail=f"KV cache at {max(high):.0%} in {len(high)} of {len(recent)} polls"
    )

"""What the last minutes were like for users, and how full the server was. Pure."""

from collections.abc import Iterator, Sequence

from probe.core.objectives import Objectives
from probe.core.snapshot import EngineMinutes, Histogram, ServerSnapshot, UserLatency, UserMinutes, UserTotals
from probe.observe.histogram_arithmetic import growth, have_same_buckets
from probe.observe.probe_traffic import LATENCIES
from probe.observe.user_objectives import judged


def user_minutes(history: Sequence[tuple[int, UserTotals]], objectives: Objectives) -> UserMinutes | None:
    """Return what became of users' requests between the first and the last totals; None without two."""
    if len(history) < 2:  # noqa: PLR2004 - a growth is between two
        return None
    (first_ns, before), (last_ns, after) = history[0], history[-1]
    ok, failed = (_grown(before, after, outcome) for outcome in ("ok", "failed"))
    return UserMinutes(
        seconds=(last_ns - first_ns) * 1e-9,
        failed=failed,
        ended=None if failed is None else failed + (ok or 0.0),
        latencies=dict(_latencies(before, after, objectives)),
    )


def _grown(before: UserTotals, after: UserTotals, outcome: str) -> float | None:
    was, now = before.outcomes.get(outcome), after.outcomes.get(outcome)
    return None if was is None or now is None else max(now - was, 0.0)


def _latencies(before: UserTotals, after: UserTotals, objectives: Objectives) -> Iterator[tuple[str, UserLatency]]:
    for name, limit in objectives.latencies().items():
        if name not in LATENCIES:
            continue
        now, was = judged(after, name, limit.within_s), judged(before, name, limit.within_s)
        if now is None or was is None or now.bound_s != was.bound_s:
            continue
        one = now - was
        if one.requests > 0 and one.slow >= 0:
            grown = _between(before.histograms[name], after.histograms[name])
            late = max(one.slow - one.may_be_fast, 0.0)
            p95_s = p95_range(grown) if grown is not None else None
            yield name, UserLatency(one.requests, late, one.is_met(limit.ratio), p95_s)


def _between(before: Histogram, after: Histogram) -> Histogram | None:
    return growth(before, after) if have_same_buckets(before, after) else None


def p95_range(histogram: Histogram) -> tuple[float, float | None] | None:
    """Return the bounds between which 95 % of the samples end; the upper one is None above the last finite bound."""
    below = 0.0
    for bound, count in histogram.buckets:
        if histogram.count > 0 and count >= 0.95 * histogram.count:
            return below, (bound if bound != float("inf") else None)
        below = bound
    return None


def engine_minutes(snapshots: Sequence[ServerSnapshot]) -> EngineMinutes | None:
    """Return how full the server was in these snapshots; None without any."""
    if not snapshots:
        return None
    usage = [each.kv_cache_usage for each in snapshots if each.kv_cache_usage is not None]
    waiting = [each.waiting for each in snapshots if each.waiting is not None]
    first, last = snapshots[0], snapshots[-1]
    was, now = first.preemptions, last.preemptions
    return EngineMinutes(
        seconds=(last.at_ns - first.at_ns) * 1e-9,
        kv_cache_usage=max(usage, default=None),
        waiting=max(waiting, default=None),
        preempted=None if was is None or now is None else max(now - was, 0.0),
    )

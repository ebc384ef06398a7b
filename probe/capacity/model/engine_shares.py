"""How the engines of a server share its requests. Pure."""

from collections.abc import Sequence

from probe.core.snapshot import ServerSnapshot


def engine_shares(snapshots: Sequence[ServerSnapshot]) -> tuple[float, ...]:
    """Return each engine's share of the requests, by the tokens it generated; empty if no difference is proven.

    Shares are drawn towards equal ones by as much of their difference as chance explains (James and Stein, 1961).
    """
    usable = [r for r in snapshots if r.by_engine and "ttft" in r.histograms]
    if not usable or usable[0].by_engine.keys() != usable[-1].by_engine.keys():
        return ()
    first, last = usable[0].by_engine, usable[-1].by_engine
    generated = [
        after - before
        for name in first
        if (before := first[name].generation_tokens) is not None and (after := last[name].generation_tokens) is not None
    ]
    count = len(first)
    requests = usable[-1].histograms["ttft"].count - usable[0].histograms["ttft"].count
    if len(generated) < count or min(generated) <= 0 or requests <= 0:  # restarted, idle, or without the counter
        return ()
    away = [each / sum(generated) - 1 / count for each in generated]
    chance = (1 - 1 / count) / requests  # the variances of all shares together
    kept = max(1 - chance / sum(one * one for one in away), 0.0) if any(away) else 0.0
    return tuple(1 / count + kept * one for one in away) if kept else ()

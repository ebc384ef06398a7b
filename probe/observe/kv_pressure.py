"""Whether a server's KV cache is too small for its load. Pure.

A full cache is good use of memory. Waiting requests do not prove a lack of room either: vLLM counts every request that
is not deferred under reason="capacity", whether it waits for the cache, for one of max_num_seqs places in the batch or
for the token budget (v1/metrics/loggers.py). Its rejections come from a queue limit.

So the cache is too small only if requests are preempted, or wait while the cache is full and the batch is not, and if
somebody suffers: an objective is missed or will be, or requests are rejected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.core.objectives import Objectives, broken, good_ratio, met, promised
from probe.core.request import RequestRecord
from probe.core.snapshot import EngineSnapshot, ServerSnapshot, UserTotals
from probe.observe.histogram_arithmetic import count_within

# A KV cache counts as full from this usage on. The guard, which decides whether load may go on, waits for 95 %.
FULL = 0.9
# The order in which the signs appear on a page.
SIGNS = ("usage", "waiting", "preemptions", "rejections", "late")
_LATELY_NS = 60 * 10**9
# vLLM counts after a step, when finished requests have left the batch and waiting ones have not joined it yet.
_BELOW_LIMIT = 0.9
# One canary may miss by chance. Users come in bursts: ten, as in the alerts on users' objectives.
_LEAST_CANARIES, _LEAST_USERS = 2, 10
_LEAST_GROWTH = 5
_GROWTH_NS = 240 * 10**9


@dataclass(frozen=True, slots=True)
class RunningLimit:
    """How many requests one engine runs at once: max_num_seqs, or the most that have run, which is a lower bound."""

    requests: float
    is_exact: bool


def signs(snapshots: Sequence[ServerSnapshot], limit: RunningLimit, *, is_late: bool) -> Mapping[str, bool]:
    """Return the signs of KV cache pressure in the last minute; one that is unknown is absent.

    `waiting` is absent too while requests wait with a full cache and as many run as ever did: they may be all that
    max_num_seqs allows. Empty for a server without KV cache, such as a gateway.
    """
    lately = _last_minute(snapshots)
    usage = [each.kv_cache_usage for each in lately if each.kv_cache_usage is not None]
    if not usage:
        return {}
    found: dict[str, bool | None] = {
        "usage": max(usage) >= FULL,
        "waiting": _waits_for_room(lately, limit),
        "late": is_late,
    }
    for sign in ("preemptions", "rejections"):
        counts = [count for each in lately if (count := getattr(each, sign)) is not None]
        found[sign] = counts[-1] > counts[0] if len(counts) > 1 else None
    return {sign: shows for sign in SIGNS if (shows := found[sign]) is not None}


def is_too_small(found: Mapping[str, bool]) -> bool | None:
    """Return whether the signs show a KV cache that is too small; None without any."""
    if not found:
        return None
    lacks_room = found.get("preemptions", False) or found.get("waiting", False)
    return lacks_room and (found.get("late", False) or found.get("rejections", False))


def _last_minute(snapshots: Sequence[ServerSnapshot]) -> Sequence[ServerSnapshot]:
    lately = [each for each in snapshots if each.at_ns >= snapshots[-1].at_ns - _LATELY_NS]
    return lately if len(lately) > 1 else snapshots[-2:]  # a server that is scraped less than once a minute


def _waits_for_room(snapshots: Iterable[ServerSnapshot], limit: RunningLimit) -> bool | None:
    if not any(_queue(each) is not None for each in snapshots):
        return None
    running = [engine.running or 0.0 for each in snapshots for engine in _full_engines(each)]
    if not running:
        return False
    if max(running) <= _BELOW_LIMIT * limit.requests:
        return True
    return False if limit.is_exact else None


def _full_engines(snapshot: ServerSnapshot) -> Iterator[EngineSnapshot]:
    """Yield the engines with a full KV cache and requests that wait and are not deferred."""
    if not _queue(snapshot):
        return
    for engine in snapshot.by_engine.values() or [_mean_engine(snapshot)]:
        usage = snapshot.kv_cache_usage if engine.kv_cache_usage is None else engine.kv_cache_usage
        if engine.waiting and (usage or 0.0) >= FULL:
            yield engine


def _queue(snapshot: ServerSnapshot) -> float | None:
    """Return the requests in the queue without deferred ones, which wait for a LoRA slot or a KV transfer."""
    return snapshot.waiting_by_reason.get("capacity", 0.0) if snapshot.waiting_by_reason else snapshot.waiting


def most_running(snapshot: ServerSnapshot) -> float:
    """Return how many requests run on the engine with the most; the mean if engines are not reported one by one."""
    running = [engine.running for engine in snapshot.by_engine.values() if engine.running is not None]
    return max(running, default=_mean_engine(snapshot).running or 0.0)


def _mean_engine(snapshot: ServerSnapshot) -> EngineSnapshot:
    return EngineSnapshot(
        running=(snapshot.running or 0.0) / snapshot.engines,
        waiting=_queue(snapshot),
        kv_cache_usage=snapshot.kv_cache_usage,
    )


def is_late(
    objectives: Objectives,
    canaries: Sequence[RequestRecord],
    users: Sequence[UserTotals],
    snapshots: Sequence[ServerSnapshot],
    mean_wait_s: float | None,
) -> bool:
    """Return whether requests of the last minutes missed an objective, or will.

    `users`: user traffic so far, at each snapshot. Requests will miss the TTFT objective once their mean wait in the
    queue exceeds it, and any latency objective if the queue keeps growing. A full queue of a server without latency
    objectives, such as one for batches, delays nothing that was promised.
    """
    latencies = objectives.latencies()
    return (
        _canaries_miss(objectives, canaries)
        or _users_miss(objectives, users)
        or (objectives.ttft is not None and (mean_wait_s or 0.0) > objectives.ttft.within_s)
        or (bool(latencies) and _grows(snapshots))
    )


def _canaries_miss(objectives: Objectives, canaries: Sequence[RequestRecord]) -> bool:
    missed = broken(good_ratio(canaries, objectives), objectives)
    verdicts = [met(canary, objectives) for canary in canaries]
    return any(sum(not verdict.get(name, True) for verdict in verdicts) >= _LEAST_CANARIES for name in missed)


def _users_miss(objectives: Objectives, users: Sequence[UserTotals]) -> bool:
    for name, objective in objectives.latencies().items():
        ends = [totals.histograms[name] for totals in users if name in totals.histograms]
        if not ends or (good := count_within(ends[-1], objective.within_s)[1]) is None:
            continue
        requests = ends[-1].count - ends[0].count
        bad = requests - (good - (count_within(ends[0], objective.within_s)[1] or 0.0))
        if bad >= _LEAST_USERS and bad > (1 - promised(objectives)[name]) * requests:
            return True
    return False


def _grows(snapshots: Sequence[ServerSnapshot]) -> bool:
    """Return whether the shortest queue of the last minute exceeds the longest one four minutes earlier."""
    queues = [(each.at_ns, queue) for each in snapshots if (queue := _queue(each)) is not None]
    if not queues or queues[-1][0] - queues[0][0] < _GROWTH_NS:
        return False
    early = [queue for at_ns, queue in queues if at_ns <= queues[0][0] + _LATELY_NS]
    late = [queue for at_ns, queue in queues if at_ns >= queues[-1][0] - _LATELY_NS]
    return min(late) - max(early) >= _LEAST_GROWTH

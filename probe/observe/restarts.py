"""Detection of server restarts, and of several servers behind one address. Pure.

A server's counters only grow while it lives. A counter that is lower than before belongs to another process: the server
was restarted or rolled out, or another replica answers at the same address.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from probe.core.server_values import VALUES
from probe.core.snapshot import ServerSnapshot, changed_replicas

_REMEMBERED = 8
_REMEMBERED_NS = 3600 * 10**9
_FOR_NS = 600 * 10**9
_LEAPS = 2
_MANY = 10_000  # tokens; more than a young server generates between two snapshots
CHANGED = "its replicas changed"  # how the evidence begins where no process was replaced
_PLAIN = tuple(value.key for value in VALUES if value.shows_restart)
_UNKNOWN = "unknown"  # the version of a server that did not report it in time


def restarted(before: ServerSnapshot, after: ServerSnapshot) -> str | None:
    """Return the evidence, in words, that `after` is of another server process than `before`, or None.

    A version is evidence only if a start time is missing: each target's scraper remembers it for a while, so two
    targets of one page may have an old and a new one at the same time. Replicas that are read together are compared one
    by one: in their sum, the growth of one could hide that another counts from zero again. Other replicas are another
    server: what one had counted before it came is not this server's.
    """
    if before.replicas and after.replicas:
        changed = changed_replicas(before.replicas, after.replicas)
        return f"{CHANGED}, {changed}" if changed else _restarted_replica(before.replicas, after.replicas)
    has_start_times = before.started_s is not None and after.started_s is not None
    has_versions = _UNKNOWN not in (before.version, after.version)
    if not has_start_times and has_versions and before.version != after.version:
        return f"version {before.version} became {after.version}"
    if before.started_s is not None and after.started_s is not None and before.started_s != after.started_s:
        return f"its process began at another time, {abs(after.started_s - before.started_s):.0f} s apart"
    return _fallen(before, after) or _restarted_engine(before.counted_apart, after.counted_apart)


def _fallen(before: ServerSnapshot, after: ServerSnapshot) -> str | None:
    later = dict(counters(after))
    for name, value in counters(before):
        if later.get(name, value) < value:
            return f"{name} fell from {value:.15g} to {later[name]:.15g}"
    return None


def _restarted_engine(before: Mapping[str, ServerSnapshot], after: Mapping[str, ServerSnapshot]) -> str | None:
    """Return the evidence that an engine of one page has gone or restarted, which the growth of others may hide."""
    for engine, one in before.items() if after else ():
        words = _fallen(one, after[engine]) if engine in after else "it is gone"
        if words is not None:
            return f"engine {engine}: {words}"
    return None


def _restarted_replica(before: Mapping[str, ServerSnapshot], after: Mapping[str, ServerSnapshot]) -> str | None:
    for address, one in before.items():
        if address in after and (words := restarted(one, after[address])) is not None:
            return f"{address}: {words}"
    return None


def counters(server: ServerSnapshot) -> Iterator[tuple[str, float]]:
    """Yield the snapshot's values that never fall, by name."""
    for name in _PLAIN:
        if (value := server.value(name)) is not None:
            yield name, value
    for reason, value in server.finished.items():
        yield f"requests finished ({reason})", value
    for name, histogram in server.histograms.items():
        yield f"the count of {name}", histogram.count


class BackendDetector:
    """Detects several servers behind one address, such as a load balancer's: a process that was replaced comes back."""

    def __init__(self) -> None:
        self._replaced: deque[ServerSnapshot] = deque(maxlen=_REMEMBERED)
        self._leaps_ns: deque[int] = deque(maxlen=_LEAPS)
        self._until_ns = 0

    def add(self, before: ServerSnapshot, now: ServerSnapshot, *, is_restart: bool) -> bool:
        """Take two successive snapshots. Return whether several servers were detected within the last ten minutes.

        `is_restart`: whether the two are of different processes.
        """
        replaced = [each for each in self._replaced if each.at_ns > now.at_ns - _REMEMBERED_NS]
        if any(_is_back(each, before, now) for each in replaced) or self._has_leapt_twice(replaced, before, now):
            self._until_ns = now.at_ns + _FOR_NS
        if is_restart:
            self._replaced.append(before)
        return now.at_ns < self._until_ns

    def _has_leapt_twice(self, replaced: Sequence[ServerSnapshot], before: ServerSnapshot, now: ServerSnapshot) -> bool:
        """Return, for servers without a process start time, whether counters jumped back up to a replaced process'
        counters twice within an hour. A single jump may be a young server that was busy.
        """
        if any(_has_leapt_to(each, before, now) for each in replaced):
            self._leaps_ns.append(now.at_ns)
        return len(self._leaps_ns) == _LEAPS and self._leaps_ns[0] > now.at_ns - _REMEMBERED_NS


def _is_back(replaced: ServerSnapshot, before: ServerSnapshot, now: ServerSnapshot) -> bool:
    """Return whether a process answers again after another one, `before`, had answered in its place."""
    if None in (replaced.started_s, before.started_s, now.started_s):
        return False
    return before.started_s != now.started_s and restarted(replaced, now) is None


def _has_leapt_to(replaced: ServerSnapshot, before: ServerSnapshot, now: ServerSnapshot) -> bool:
    if replaced.started_s is not None or restarted(replaced, now) is not None:
        return False
    was, had = replaced.generation_tokens or 0.0, before.generation_tokens or 0.0
    return was >= _MANY and had < was / 2

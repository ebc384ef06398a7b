"""Readings that are kept, and whether a server is still the one that was read before. Pure.

A server's counters only grow while it lives. What is below what it was belongs to another process: restarted,
rolled out, or another replica behind the same address, which a guard cannot watch either.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from probe.core.snapshot import Histogram, ServerSnapshot

_REMEMBERED, _REMEMBERED_NS = 8, 3600 * 10**9
_FOR_NS = 600 * 10**9
_LEAPS = 2
_MANY = 10_000  # tokens, of which a young server does not make as many from one reading to the next
_UNKNOWN = "unknown"  # the version of a server that did not say it in time


def restarted(before: ServerSnapshot, after: ServerSnapshot) -> str | None:
    """What shows that `after` is of another server process than `before`, in words; None where nothing does."""
    if before.version != after.version and _UNKNOWN not in (before.version, after.version):
        return f"version {before.version} became {after.version}"
    if before.started_s is not None and after.started_s is not None and before.started_s != after.started_s:
        return f"its process began at another time, {abs(after.started_s - before.started_s):.0f} s apart"
    later = dict(counters(after))
    for name, value in counters(before):
        if later.get(name, value) < value:
            return f"{name} fell from {value:.15g} to {later[name]:.15g}"
    return None


def counters(server: ServerSnapshot) -> Iterator[tuple[str, float]]:
    """The values of a reading that never fall, by name; those that the server has."""
    for name in ("preemptions", "rejections", "prompt_tokens", "generation_tokens", "prefix_cache_queries"):
        value = getattr(server, name)
        if value is not None:
            yield name, value
    for reason, value in server.finished.items():
        yield f"requests finished ({reason})", value
    for name, histogram in server.histograms.items():
        yield f"the count of {name}", histogram.count


class BackendChanges:
    """Whether several servers answer at one address, behind a load balancer: one that was gone is there again."""

    def __init__(self) -> None:
        self._last: ServerSnapshot | None = None
        self._gone: deque[ServerSnapshot] = deque(maxlen=_REMEMBERED)
        self._leaps_ns: deque[int] = deque(maxlen=_LEAPS)
        self._until_ns = 0

    def reading(self, server: ServerSnapshot) -> bool:
        """The address was read. Whether, by this reading or one of the last minutes, there are several."""
        before, self._last = self._last, server
        if before is None:
            return False
        gone = [each for each in self._gone if each.at_ns > server.at_ns - _REMEMBERED_NS]
        if any(_is_back(each, before, server) for each in gone) or self._leaps(gone, before, server):
            self._until_ns = server.at_ns + _FOR_NS
        if restarted(before, server) is not None:
            self._gone.append(before)
        return server.at_ns < self._until_ns

    def _leaps(self, gone: Sequence[ServerSnapshot], before: ServerSnapshot, now: ServerSnapshot) -> bool:
        """Where nothing tells processes apart: counters that leap up to where a server before had been, twice. Once, a
        young server may have been busy.
        """
        if any(_leaps_to(each, before, now) for each in gone):
            self._leaps_ns.append(now.at_ns)
        return len(self._leaps_ns) == _LEAPS and self._leaps_ns[0] > now.at_ns - _REMEMBERED_NS


def _is_back(gone: ServerSnapshot, before: ServerSnapshot, now: ServerSnapshot) -> bool:
    """Whether a process has come back after another one, `before`, had answered in its place."""
    if None in (gone.started_s, before.started_s, now.started_s):
        return False
    return before.started_s != now.started_s and restarted(gone, now) is None


def _leaps_to(gone: ServerSnapshot, before: ServerSnapshot, now: ServerSnapshot) -> bool:
    if gone.started_s is not None or restarted(gone, now) is not None:
        return False
    was, had = gone.generation_tokens or 0.0, before.generation_tokens or 0.0
    return was >= _MANY and had < was / 2


def slim(reading: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """A reading to keep many of: only these histograms, and of them only sum and count."""
    kept = {name: reading.histograms[name] for name in histograms if name in reading.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(reading, histograms=sums, flags={}, finished={})

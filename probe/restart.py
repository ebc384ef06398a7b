"""Readings that are kept, and whether a server is still the one that was read before. Pure.

A server's counters only grow while it lives. What is below what it was belongs to another process: restarted,
rolled out, or another replica behind the same address, which a guard cannot watch either.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace

from probe.records import Histogram, ServerSnapshot

_REMEMBERED = 8
_FOR_NS = 3600 * 10**9
_MANY = 10_000  # tokens and requests together
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


class Replicas:
    """Whether several servers answer at one address, behind a load balancer: one that was gone is there again."""

    def __init__(self) -> None:
        self._last: ServerSnapshot | None = None
        self._gone: deque[ServerSnapshot] = deque(maxlen=_REMEMBERED)
        self._until_ns = 0

    def reading(self, server: ServerSnapshot) -> bool:
        """The address was read. Whether, by this reading or one within the last hour, there are several."""
        before, self._last = self._last, server
        if before is not None:
            if any(_is_back(gone, before, server) for gone in self._gone):
                self._until_ns = server.at_ns + _FOR_NS
            if restarted(before, server) is not None:
                self._gone.append(before)
        return server.at_ns < self._until_ns


def _is_back(gone: ServerSnapshot, before: ServerSnapshot, now: ServerSnapshot) -> bool:
    """Whether a server has come back after another one, `before`, had answered in its place."""
    if restarted(gone, now) is not None:
        return False
    if gone.started_s is not None and now.started_s is not None:
        return before.started_s != now.started_s
    # Nothing tells processes apart: a young one does not catch up with an old one from one reading to the next.
    counts = [sum(value for _, value in counters(each)) for each in (gone, before, now)]
    return counts[1] < counts[0] / 2 and counts[2] - counts[1] >= max(counts[0] / 2, _MANY)


def slim(reading: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """A reading to keep many of: only these histograms, and of them only sum and count."""
    kept = {name: reading.histograms[name] for name in histograms if name in reading.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(reading, histograms=sums, flags={}, finished={})

"""Readings that are kept, and whether a server is still the one that was read before. Pure.

A server's counters only grow while it lives. What is below what it was belongs to another process: restarted,
rolled out, or another replica behind the same address, which a guard cannot watch either.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from probe.records import Histogram, ServerSnapshot

_UNKNOWN = "unknown"  # the version of a server that did not say it in time


def restarted(before: ServerSnapshot, after: ServerSnapshot) -> str | None:
    """What shows that `after` is of another server process than `before`, in words; None where nothing does."""
    if before.version != after.version and _UNKNOWN not in (before.version, after.version):
        return f"version {before.version} became {after.version}"
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


def slim(reading: ServerSnapshot, histograms: Collection[str]) -> ServerSnapshot:
    """A reading to keep many of: only these histograms, and of them only sum and count."""
    kept = {name: reading.histograms[name] for name in histograms if name in reading.histograms}
    sums = {name: Histogram(((float("inf"), one.count),), one.sum) for name, one in kept.items()}
    return replace(reading, histograms=sums, flags={}, finished={})

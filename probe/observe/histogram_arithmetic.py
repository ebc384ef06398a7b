"""Sums and differences of a server's histograms, and the removal of single samples from one. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from probe.core.snapshot import Histogram

_ROUNDING = 1e-9


def remove_samples(histogram: Histogram, samples: Iterable[float]) -> tuple[Histogram, Sequence[float]]:
    """Return the histogram without these samples, and the samples for which it had no count left.

    Each sample is taken from the bucket of its value, or else from the nearest lower bucket that holds a count (the
    client sees a token later than the server does), or else from the nearest higher one. The remaining sum stays within
    the bounds of the remaining buckets, and is zero if they are empty.
    """
    bounds = [le for le, _ in histogram.buckets]
    counts = [after - before for before, after in pairwise([0.0, *(count for _, count in histogram.buckets)])]
    removed_s = 0.0
    missing = []
    for value in sorted(samples, reverse=True):
        own = min(bisect_left(bounds, value), len(bounds) - 1)
        i = next((i for i in (*range(own, -1, -1), *range(own + 1, len(bounds))) if counts[i] >= 1), None)
        if i is None:
            missing.append(value)
            continue
        counts[i] -= 1
        removed_s += min(max(value, bounds[i - 1] if i else 0.0), bounds[i])
    least = sum(count * (bounds[i - 1] if i else 0.0) for i, count in enumerate(counts))
    most = sum(count * bounds[i] for i, count in enumerate(counts) if count)
    cumulative, total = [], 0.0
    for count in counts:
        total += count
        cumulative.append(total)
    rest = Histogram(tuple(zip(bounds, cumulative, strict=True)), min(max(histogram.sum - removed_s, least), most))
    return rest, missing


def have_same_buckets(one: Histogram, other: Histogram) -> bool:
    """Return whether two histograms have the same upper bounds."""
    return [le for le, _ in one.buckets] == [le for le, _ in other.buckets]


def count_within(histogram: Histogram | None, seconds: float) -> tuple[float | None, float | None]:
    """Return the lowest bound at or above a threshold and its count of samples, or None above the last finite bound.

    With a bound at or above, every request counted as too slow was too slow.
    """
    buckets = histogram.buckets if histogram is not None else ()
    return next(((le, count) for le, count in buckets if seconds * (1 - _ROUNDING) <= le < inf), (None, None))


def growth(before: Histogram, after: Histogram) -> Histogram:
    """Return the samples that were added between two states of a histogram."""
    buckets = tuple((le, new - old) for (le, old), (_, new) in zip(before.buckets, after.buckets, strict=True))
    return Histogram(buckets, after.sum - before.sum)


def add(one: Histogram, other: Histogram) -> Histogram:
    """Return the sum of two histograms with the same buckets."""
    buckets = tuple((le, a + b) for (le, a), (_, b) in zip(one.buckets, other.buckets, strict=True))
    return Histogram(buckets, one.sum + other.sum)


def empty(histogram: Histogram) -> Histogram:
    """Return a histogram with the same buckets and no samples."""
    return Histogram(tuple((le, 0.0) for le, _ in histogram.buckets), 0.0)


def raised(histogram: Histogram, to: Histogram, uncertain: int) -> Histogram:
    """Return a histogram that never falls, raised to another of the same buckets less its uncertain samples.

    Any `uncertain` samples of `to` may be somebody else's. Each count rises to what is certain. The sum rises by its
    share, as many of the new samples as are certain.
    """
    buckets = tuple(
        (le, max(count, new - uncertain)) for (le, count), (_, new) in zip(histogram.buckets, to.buckets, strict=True)
    )
    certain, new = buckets[-1][1] - histogram.count, to.count - histogram.count
    rise = max(to.sum - histogram.sum, 0.0) * min(certain / new, 1.0) if new > 0 else 0.0
    return Histogram(buckets, histogram.sum + rise)

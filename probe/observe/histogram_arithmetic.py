"""Sums and differences of a server's histograms, and the removal of single samples from one. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import inf
from operator import itemgetter

from probe.core.snapshot import Histogram

_ROUNDING = 1e-9
Sample = tuple[float, float]  # a value, at least and at most


@dataclass(frozen=True, slots=True)
class Remainder:
    """A histogram less samples of which only a range is known.

    `missing`: the samples for which it had no count left. `doubt`: for each bound, how many of the remaining samples
    that count as above it may be below, because one of the removed ones may have been above.
    """

    histogram: Histogram
    missing: Sequence[Sample]
    doubt: tuple[float, ...]


def remove_samples(histogram: Histogram, samples: Iterable[Sample]) -> Remainder:
    """Take samples out of a histogram, so that the remaining ones are never lower than is certain.

    Each sample is a range, and is taken from the lowest bucket within it that holds a count; the one whose range ends
    first has the choice, so that all fit in if they can. Without such a bucket it is taken from the nearest lower one,
    or else from the nearest higher one. The remaining sum stays within the bounds of the remaining buckets, and is zero
    if they are empty.
    """
    bounds = [le for le, _ in histogram.buckets]
    counts = [after - before for before, after in pairwise([0.0, *(count for _, count in histogram.buckets)])]
    end = len(bounds)
    removed_s = 0.0
    missing: list[Sample] = []
    tops: list[list[int]] = [[] for _ in bounds]  # of each bound: how far up those removed below it may have been
    for least, most in sorted(samples, key=itemgetter(1)):
        own, top = (min(bisect_left(bounds, value), end - 1) for value in (least, most))
        tried = chain(range(own, top + 1), range(own - 1, -1, -1), range(top + 1, end))
        i = next((i for i in tried if counts[i] >= 1), None)
        if i is None:
            missing.append((least, most))
            continue
        counts[i] -= 1
        removed_s += min(max(least, bounds[i - 1] if i else 0.0), bounds[i])
        for k in range(i, top):
            tops[k].append(top)
    doubt = tuple(min(len(each), sum(counts[k + 1 : max(each, default=k) + 1])) for k, each in enumerate(tops))
    lowest = sum(count * (bounds[i - 1] if i else 0.0) for i, count in enumerate(counts))
    highest = sum(count * bounds[i] for i, count in enumerate(counts) if count)
    left = Histogram(
        tuple(zip(bounds, accumulate(counts), strict=True)), min(max(histogram.sum - removed_s, lowest), highest)
    )
    return Remainder(left, missing, doubt)


def have_same_buckets(one: Histogram, other: Histogram) -> bool:
    """Return whether two histograms have the same upper bounds."""
    return [le for le, _ in one.buckets] == [le for le, _ in other.buckets]


def count_within(histogram: Histogram | None, seconds: float) -> tuple[float | None, float | None]:
    """Return the lowest bound at or above a threshold and its count of samples, or None above the last finite bound.

    With a bound at or above, every request counted as too slow was too slow.
    """
    around = bounds_around(histogram, seconds)
    return histogram.buckets[around[1]] if histogram is not None and around is not None else (None, None)


def bounds_around(histogram: Histogram | None, seconds: float) -> tuple[int, int] | None:
    """Return the indices of the highest bound at or below a threshold (-1: none) and of the lowest at or above it.

    They are the same if the threshold is a bound. None above the last finite bound.
    """
    bounds = [le for le, _ in histogram.buckets] if histogram is not None else []
    at = next((i for i, le in enumerate(bounds) if seconds * (1 - _ROUNDING) <= le < inf), None)
    if at is None:
        return None
    return (at if bounds[at] <= seconds * (1 + _ROUNDING) else at - 1), at


def at_most(histogram: Histogram | None, share: float) -> float | None:
    """Return the lowest bound that this share of the samples is within; None without samples, or above every bound."""
    if histogram is None or not histogram.count:
        return None
    return next((le for le, count in histogram.buckets if le < inf and count >= share * histogram.count), None)


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

"""Exact percentiles of samples, and their confidence intervals. Pure."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from probe.core.step import Distribution, Interval

_CONFIDENCE = 0.95
_NEGLIGIBLE = 1e-15  # compared with a tail of 2.5 %


@dataclass(frozen=True, slots=True)
class Cluster:
    """Samples that depend on one another, such as the gaps of one answer (row) in one part of a step (column)."""

    row: int
    column: int
    samples: Sequence[float]


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the q-quantile (0..1) of sorted samples, interpolated linearly (Hyndman and Fan, type 7: numpy's default).

    Raises IndexError if there are no samples.
    """
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def distribution(samples: Iterable[float | None], *, unit: float = 1.0, independent: bool = True) -> Distribution:
    """Return exact statistics of the samples that are not None, multiplied by `unit`.

    Intervals need `independent` samples, such as requests. For gaps between tokens there is `clustered_distribution`.
    """
    ordered = sorted(sample for sample in samples if sample is not None)
    return _statistics(ordered, unit, lambda q: _interval(ordered, q, unit) if independent else None)


def clustered_distribution(clusters: Sequence[Cluster], *, unit: float = 1.0) -> Distribution:
    """Return exact statistics of samples that depend on one another, with intervals that allow for it.

    The samples count as no more independent ones than explain how much the share below the percentile varies from
    row to row and from column to column of `clusters` (the effective size of a clustered sample: Korn and Graubard,
    1998, with Woodruff's interval, 1952). Without two rows and two columns there is no interval.
    """
    ordered = sorted(sample for cluster in clusters for sample in cluster.samples)
    chunks = [replace(cluster, samples=sorted(cluster.samples)) for cluster in clusters if cluster.samples]

    def interval(q: float) -> Interval | None:
        size = _effective_size(chunks, percentile(ordered, q), q)
        return None if size is None else _interval(ordered, q, unit, min(size, len(ordered)))

    return _statistics(ordered, unit, interval)


def _statistics(ordered: Sequence[float], unit: float, interval: Callable[[float], Interval | None]) -> Distribution:
    if not ordered:
        return Distribution()
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered) * unit,
        p50=percentile(ordered, 0.50) * unit,
        p95=percentile(ordered, 0.95) * unit,
        p99=percentile(ordered, 0.99) * unit,
        max=ordered[-1] * unit,
        p95_interval=interval(0.95),
        p99_interval=interval(0.99),
        p50_interval=interval(0.5),
        p90=percentile(ordered, 0.90) * unit,
    )


def _interval(ordered: Sequence[float], q: float, unit: float, size: int | None = None) -> Interval:
    """Return the interval of the q-quantile; `size`: how many independent samples these are worth, if not all."""
    count = len(ordered)
    each = count / (size or count)
    low, high = quantile_ranks(size or count, q)
    return (
        None if low is None else ordered[max(math.floor(low * each), 1) - 1] * unit,
        None if high is None else ordered[min(math.ceil(high * each), count) - 1] * unit,
    )


def _effective_size(clusters: Sequence[Cluster], value: float, q: float) -> int | None:
    """Return how many independent samples would show the share below `value` as exactly; None if nothing shows it."""
    counts = [(len(one.samples), bisect_right(one.samples, value)) for one in clusters]
    count, below = sum(n for n, _ in counts), sum(b for _, b in counts)
    sizes = list[float]()
    for keys in ([one.row for one in clusters], [one.column for one in clusters]):
        excess = defaultdict[int, float](float)
        for key, (n, b) in zip(keys, counts, strict=True):
            excess[key] += b - n * below / count
        groups = len(excess)
        if groups < 2:  # noqa: PLR2004 - a variance takes two
            return None
        variance = groups / (groups - 1) * sum(one**2 for one in excess.values()) / count**2
        sizes.append(q * (1 - q) / max(variance, _NEGLIGIBLE) * (_normal() / _student(groups - 1)) ** 2)
    return max(int(min(sizes)), 1)


def _normal() -> float:
    return NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)


def _student(degrees: int) -> float:
    """Return the two-sided limit of Student's t (Abramowitz and Stegun, 26.7.5): within 1 % from 3 degrees on."""
    x, n = _normal(), degrees
    return (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
    )


@lru_cache(maxsize=256)
def quantile_ranks(n: int, q: float, confidence: float = _CONFIDENCE) -> tuple[int | None, int | None]:
    """Return the ranks (1..n) of the sorted samples that enclose the true q-quantile with at least this confidence.

    The number of samples below the quantile is binomial (n, q) for any distribution (Hahn and Meeker, Statistical
    Intervals, section 5.2). None if n is too small to bound that side: p50 needs 6 samples, the upper side of p95
    needs 72, and p99 needs 368.
    """
    tail = (1 - confidence) / 2
    low = high = None
    first, masses = _binomial(n, q)
    below = 0.0
    for rank, mass in enumerate(masses, start=first):
        # `below` is P(fewer than `rank` samples lie below the quantile).
        if below <= tail and rank >= 1:
            low = rank
        below += mass
        if below >= 1 - tail and high is None:
            high = rank + 1
    return low, high if high is not None and high <= n else None


def _binomial(n: int, q: float) -> tuple[int, list[float]]:
    """Return the first count with a probability that is not negligible, and the probabilities from there."""
    peak = min(int((n + 1) * q), n)
    log_peak = math.lgamma(n + 1) - math.lgamma(peak + 1) - math.lgamma(n - peak + 1)
    at_peak = math.exp(log_peak + peak * math.log(q) + (n - peak) * math.log1p(-q))
    down, mass, k = list[float](), at_peak, peak
    while k > 0 and mass > _NEGLIGIBLE:
        mass *= k / (n - k + 1) * (1 - q) / q
        k -= 1
        down.append(mass)
    up, mass, j = [at_peak], at_peak, peak
    while j < n and mass > _NEGLIGIBLE:
        mass *= (n - j) / (j + 1) * q / (1 - q)
        j += 1
        up.append(mass)
    return k, [*reversed(down), *up]

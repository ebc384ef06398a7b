"""Exact percentiles of samples, and their confidence intervals. Pure."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from probe.core.step import Distribution, Interval

_CONFIDENCE = 0.95
_NEGLIGIBLE = 1e-15  # compared with a tail of 2.5 %


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

    Intervals need `independent` samples, such as requests. Gaps between the tokens of one stream are not independent:
    their interval would be far too narrow.
    """
    ordered = sorted(sample for sample in samples if sample is not None)
    if not ordered:
        return Distribution()
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered) * unit,
        p50=percentile(ordered, 0.50) * unit,
        p95=percentile(ordered, 0.95) * unit,
        p99=percentile(ordered, 0.99) * unit,
        max=ordered[-1] * unit,
        p95_interval=_interval(ordered, 0.95, unit) if independent else None,
        p99_interval=_interval(ordered, 0.99, unit) if independent else None,
        p50_interval=_interval(ordered, 0.5, unit) if independent else None,
        p90=percentile(ordered, 0.90) * unit,
    )


def _interval(ordered: Sequence[float], q: float, unit: float) -> Interval:
    low, high = quantile_ranks(len(ordered), q)
    return (
        None if low is None else ordered[low - 1] * unit,
        None if high is None else ordered[high - 1] * unit,
    )


@lru_cache(maxsize=256)
def quantile_ranks(n: int, q: float, confidence: float = _CONFIDENCE) -> tuple[int | None, int | None]:
    """Return the ranks (1..n) of the sorted samples that enclose the true q-quantile with at least this confidence.

    The number of samples below the quantile is binomial (n, q) for any distribution (Hahn and Meeker, Statistical
    Intervals, section 5.2). None if n is too small to bound that side: p50 needs 6 samples, the upper side of p95
    needs 72 and that of p99 368.
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
    """Return the first count whose probability is not negligible, and the probabilities from there."""
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

"""The reference that new capacity samples are compared with: the statistics of a frozen baseline. Pure.

In: capacity samples as LogSamples. Out: a Reference: the baseline's middle, how far the median of three new runs may
lie from it, and whether a single sample has dropped or is back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from probe.core.shift import Baseline, CapacitySample

DROP_RATIO = 0.2  # a page, once confirmed
MIN_BASELINE, MAX_BASELINE = 5, 28
_MEDIAN_RATIO = 0.065
_COARSE_RATIO = 0.1
_OF_STEPS = "empirical"  # the mode of a capacity without a model: its interval ends at steps
# The noise of one sample that is assumed at first, and the number of runs that this assumption is worth.
_USUAL_NOISE = 0.03
_USUAL_RUNS = 10
_NOISE_FACTOR = 2.2
_MAD_TO_SD = 1.4826  # of a normal distribution
# Variance of a median over one value's: of three, exactly; of n, pi / 2n (Kenney and Keeping, 1962).
_MEDIAN_OF_3_VARIANCE, _MEDIAN_VARIANCE = 0.449, math.pi / 2


@dataclass(frozen=True, slots=True)
class LogSample:
    """A capacity's logarithm, and what it counts as in the tests of a shift.

    `least` and `most` are the value itself, unless the interval is coarse (more than 10 % to that side): then its end.
    A drop has to hold for `most`. `low` and `high` are what medians and ranks of several runs are of: `least` and
    `most` where an interval ends at steps, which are the same each night. A model's values count themselves: the noise
    of the baseline says how they vary.
    """

    at_s: float
    value: float
    least: float
    most: float
    low: float
    high: float
    run: str | None = None


def log_sample(sample: CapacitySample) -> LogSample:
    rps, lower, upper = sample.requests_per_second, sample.lower, sample.upper
    if lower is None:
        lower = rps
    if upper is None:
        upper = math.inf if sample.lower is not None else rps
    value = math.log(rps)
    least = _log(lower) if lower * (1 + _COARSE_RATIO) < rps else value
    most = _log(upper) if upper > rps * (1 + _COARSE_RATIO) else value
    low, high = least, most
    if sample.mode != _OF_STEPS:
        low, high = value, value if upper < math.inf else math.inf
    return LogSample(sample.at_s, value, least, most, low, high, sample.run)


def _log(rps: float) -> float:
    return math.log(rps) if rps > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class Reference:
    """A baseline's middle, from which drops and rises are measured, and the largest normal distance of a median."""

    baseline: Baseline
    middle: float
    fall_from: float
    rise_from: float
    lows: tuple[float, ...]  # ascending
    highs: tuple[float, ...]
    stray: float  # of the median of three runs

    def has_dropped(self, sample: LogSample) -> bool:
        return sample.most - self.middle <= math.log(1 - DROP_RATIO)

    def may_have_dropped(self, sample: LogSample) -> bool:
        """Return whether the sample's interval holds a drop; that of one that has dropped does."""
        return sample.least - self.middle <= math.log(1 - DROP_RATIO)

    def is_back_half_way(self, sample: LogSample) -> bool:
        """Return whether the sample shows that a drop is over: a lower bound does with its value."""
        most = sample.value if sample.most == math.inf else sample.most
        return most - self.middle > math.log(1 - DROP_RATIO / 2)

    def is_back(self, sample: LogSample) -> bool:
        high = sample.value if sample.high == math.inf else sample.high
        return self.fall_from - high <= self.stray / 2


def compute_reference(samples: Sequence[LogSample], *, follows_shift: bool) -> Reference:
    """Compute the reference from a baseline's samples, at least one. `follows_shift`: it began after a shift."""
    count, values = len(samples), [sample.value for sample in samples]
    middle = median(values)
    spread = _MAD_TO_SD * median([abs(value - middle) for value in values])
    noise = math.sqrt((count * spread**2 + _USUAL_RUNS * _USUAL_NOISE**2) / (count + _USUAL_RUNS))
    uncertain = math.sqrt(
        (_MEDIAN_OF_3_VARIANCE + _MEDIAN_VARIANCE / count) / (_MEDIAN_OF_3_VARIANCE + _MEDIAN_VARIANCE / MAX_BASELINE)
    )
    lows, highs = sorted(sample.low for sample in samples), sorted(sample.high for sample in samples)
    return Reference(
        baseline=Baseline(math.exp(middle), count, samples[0].at_s, noise, follows_shift),
        middle=middle,
        fall_from=median(lows),
        rise_from=median(highs),
        lows=tuple(lows),
        highs=tuple(highs),
        stray=max(-math.log(1 - _MEDIAN_RATIO), _NOISE_FACTOR * noise) * uncertain,
    )

"""Capacity of a target over time: samples, their baseline, and shifts from it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """A capacity in a target's history (capacity/trend/change_detection.py).

    `confirms`: the run repeated the one before, because that result was low.
    """

    at_s: float  # wall time
    requests_per_second: float
    lower: float | None
    upper: float | None
    mode: str
    fingerprint: str  # of its conditions (capacity/trend/fingerprint.py)
    confirms: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """The reference for a target's knee: the median of `count` runs since `since_s` (wall time).

    `noise_ratio`: standard deviation of one run, relative to the median. `follows_shift`: it replaced a baseline after
    a lasting shift.
    """

    requests_per_second: float
    count: int
    since_s: float
    noise_ratio: float
    follows_shift: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """The newest capacity relative to its baseline: `ratio` is -0.1 for 10 % less.

    `fired`: whether each method detected a shift. `since_s`: wall time at which the shift began.
    """

    ratio: float
    baseline: Baseline
    fired: Mapping[str, bool]
    since_s: float | None = None

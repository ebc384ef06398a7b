"""A target's capacity over time: samples, the baseline they are compared with, and a shift from it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """A capacity of a target's history, as far as shifts are told by it (capacity/shift.py).

    `confirms`: its run repeated the one before it at once, because that one was low.
    """

    at_s: float  # wall time
    requests_per_second: float
    lower: float | None
    upper: float | None
    mode: str
    fingerprint: str  # of what it holds for (capacity/fingerprint.py)
    confirms: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a target's knee is compared with: the median of `count` runs from `since_s` (wall time) on.

    `noise_ratio` is the standard deviation of one of them. `follows_shift`: it started when a shift had lasted.
    """

    requests_per_second: float
    count: int
    since_s: float
    noise_ratio: float
    follows_shift: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """The newest capacity against its baseline: `ratio` is -0.1 for 10 % less.

    `fired` holds, per method, whether it says that the knee has shifted; `since_s` (wall time) is when that began.
    """

    ratio: float
    baseline: Baseline
    fired: Mapping[str, bool]
    since_s: float | None = None

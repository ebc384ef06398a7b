"""Capacity of a target over time: samples, their baseline, and shifts from it."""

from collections.abc import Mapping
from dataclasses import dataclass

# What a run with load is called whose capacity is the model's alone. Its result has the mode "forecast".
UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """A capacity in a target's history (capacity/trend/change_detection.py).

    `mode`: "verified", "empirical" or "unverified"; a forecast without load is no sample. `upper` is the most that the
    capacity may be, also where the result has none. `confirms`: the `run` that this one repeated, because its result
    was low; None where a history does not say.
    """

    at_s: float  # wall time of the run's end
    requests_per_second: float
    lower: float | None
    upper: float | None
    mode: str
    fingerprint: str  # of its conditions (capacity/trend/fingerprint.py)
    run: str | None = None  # the run's id
    confirms: str | None = None
    model: str = ""

    @property
    def is_only_at_least(self) -> bool:
        """Return whether the run says how much the server takes, and not how much is too much."""
        return self.upper is None

    @property
    def is_only_at_most(self) -> bool:
        """Return whether no load held: the capacity is below the lowest one, which is `requests_per_second`."""
        return self.lower == 0


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

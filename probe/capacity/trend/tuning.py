"""Which value of a setting is better, from capacity runs of each: verdicts and choice of `kneewatch tune`. Pure.

The base is measured before and after the values. A value is better only if it is clearly better than each of the two;
if these contradict each other, the machine has changed meanwhile, and nothing is clear.
"""

from collections.abc import Mapping, Sequence

from probe.capacity.trend.compare import BETTER, UNCLEAR, WORSE, verdict_of
from probe.capacity.trend.measurement import CAPACITY, Measurement, Value, of_result
from probe.core.result import CapacityResult

_NO_END = ("interrupt", "error")


def verdict_beside(bases: Sequence[CapacityResult], new: CapacityResult, tolerance: float) -> str:
    """Return whether `new` is better or worse than every base, the same, or unclear; `tolerance`: as in `compare`."""
    found = {_verdict(base, new, tolerance) for base in bases}
    return found.pop() if len(found) == 1 and not has_drifted(bases, tolerance) else UNCLEAR


def has_drifted(bases: Sequence[CapacityResult], tolerance: float) -> bool:
    """Return whether measurements of one base contradict each other, so that the machine has changed between them."""
    return any(_verdict(bases[0], again, tolerance) in (BETTER, WORSE) for again in bases[1:])


def best(verdicts: Mapping[str, str], results: Mapping[str, CapacityResult]) -> str | None:
    """Return the better value with the highest capacity; None where none is better."""
    better = [name for name, verdict in verdicts.items() if verdict == BETTER]
    return max(better, key=lambda name: results[name].capacity.requests_per_second or 0.0, default=None)


def is_clear_loss(upper_gain: float | None, tolerance: float) -> bool:
    """Return whether a predicted change, with this upper end of its interval, is a loss beyond the tolerance."""
    return upper_gain is not None and upper_gain < -tolerance


def change_of(base: CapacityResult, new: CapacityResult) -> tuple[float | None, float | None, float | None]:
    """Return the relative change of capacity, with the ends that follow from both intervals. None: unknown."""
    before, after = base.capacity, new.capacity
    if not before.requests_per_second or after.requests_per_second is None:
        return None, None, None
    lower = after.lower / before.upper - 1 if after.lower is not None and before.upper else None
    upper = after.upper / before.lower - 1 if after.upper is not None and before.lower else None
    return after.requests_per_second / before.requests_per_second - 1, lower, upper


def _verdict(base: CapacityResult, new: CapacityResult, tolerance: float) -> str:
    sides = of_result("base", base), of_result("new", new)
    before, after = map(_capacity, sides)
    if before is None or new.stopped.by in _NO_END or any(side.is_forecast for side in sides):
        return UNCLEAR
    if after is None:
        return WORSE if sides[1].has_collapsed else UNCLEAR
    return verdict_of(before, after, tolerance)


def _capacity(measured: Measurement) -> Value | None:
    section = measured.sections.get(CAPACITY)
    return None if section is None else section.values["capacity"]

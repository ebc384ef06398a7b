"""Compare two measurements of a server metric by metric: better, worse, the same or unclear. Pure.

In: two Measurements, from results of Kneewatch or of another benchmark (probe/report/measured_file.py). Out: a
Comparison.

A row is the same when it has changed by no more than the tolerance. It is worse or better when it has changed by more
and, where both sides have an interval, the intervals do not overlap. Both conditions are needed: of fifty rows one or
two do not overlap by chance, and a real change may be too small to matter. Where the intervals overlap in spite of a
larger change, the measurements cannot tell: the row is unclear. A percentile of few requests has no upper end, and so
overlaps with all that is above it. At a step at which the base had already broken an objective nothing is worse, and
what is better counts only if the new one broke none: beyond the knee a growing queue sets the latencies, and they
differ from run to run.

`kneewatch tune` chooses by the same rows: a value must be clearly better than the base before and after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.capacity.trend.measurement import (
    CAPACITY,
    HIGHER,
    LOWER,
    SHARE,
    ComparisonSection,
    Measurement,
    Value,
    of_result,
)
from probe.core.result import CapacityResult

WORSE, BETTER, SAME, UNCLEAR, UNJUDGED = "worse", "better", "same", "unclear", "-"
# Mean lengths of the same workload differ by a little when answers end early or templates add tokens.
_SAME_LENGTH = 0.02
_PARTS_THAT_DECIDE = ("workload.", "objectives.")
# How much of each prompt is shared decides what a prefix cache gives: to compare a cold with a warm one is to ask that.
_PREFIX = "workload.shared_tokens"


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One metric on both sides. `change`: new / base - 1, None if the base is zero.

    `verdict`: BETTER, WORSE, SAME, UNCLEAR, or UNJUDGED.
    """

    section: str
    metric: str
    base: Value | None
    new: Value | None
    change: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole comparison. `problems`: why the two cannot be compared; `notes`: what could not be judged."""

    rows: tuple[ComparisonRow, ...]
    differs: Mapping[str, tuple[str | None, str | None]]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def has_regressed(self) -> bool:
        return any(row.verdict == WORSE for row in self.rows)


def compare(base: Measurement, new: Measurement, tolerance: float) -> Comparison:
    """Compare `new` with `base`; `tolerance`: the relative change that is too small to matter, 0.05 for 5 %."""
    shared = [name for name in base.sections if name in new.sections]
    rows = [row for name in shared for row in _rows(name, base.sections[name], new.sections[name], tolerance)]
    if CAPACITY in base.sections and new.has_collapsed:
        lost = base.sections[CAPACITY].values["capacity"]
        rows.insert(0, ComparisonRow(CAPACITY, "capacity", lost, None, None, WORSE))
    names = sorted({*base.parts, *new.parts}) if base.kind == new.kind else sorted({*base.parts} & {*new.parts})
    pairs = {name: (base.parts.get(name), new.parts.get(name)) for name in names}
    return Comparison(
        rows=tuple(rows),
        differs={name: (one, other) for name, (one, other) in pairs.items() if one != other},
        problems=tuple(_problems(base, new, pairs, empty=not rows)),
        notes=tuple(_notes(base, new, shared)),
    )


def _problems(
    base: Measurement, new: Measurement, pairs: Mapping[str, tuple[str | None, str | None]], *, empty: bool
) -> Iterator[str]:
    for name, (one, other) in pairs.items():
        if one != other and name.startswith(_PARTS_THAT_DECIDE) and name != _PREFIX:
            yield f"{name} is {one or 'not set'} in {base.name} and {other or 'not set'} in {new.name}"
    if base.kind != new.kind or not any(name.startswith("workload.") for name in pairs):
        for name, before in base.lengths.items():
            after = new.lengths.get(name, before)
            if abs(after - before) > _SAME_LENGTH * max(before, after):
                yield f"{name} are {before:.4g} on average in {base.name} and {after:.4g} in {new.name}"
    if base.is_forecast != new.is_forecast:
        forecast, measured = (base, new) if base.is_forecast else (new, base)
        yield f"{forecast.name} is a forecast and {measured.name} was measured"
    if CAPACITY in base.sections and new.no_capacity is not None and not new.has_collapsed:
        yield f"{new.name} found no capacity, and does not show that there is none: {new.no_capacity}"
    if empty:
        yield f"no step was judged in both: {' and '.join(map(_loads, (base, new)))}"


def _loads(side: Measurement) -> str:
    """Return the steps of a side, each with the reason where it was not judged."""
    levels = [
        f"{name}, no request answered"
        if section.is_unanswered
        else name
        if section.unjudged is None
        else f"{name}, not judged ({section.unjudged})"
        for name, section in side.sections.items()
    ]
    return f"{side.name} has {'; '.join(levels) or 'none'}"


def _notes(base: Measurement, new: Measurement, shared: list[str]) -> Iterator[str]:
    for side, other in ((base, new), (new, base)):
        if side.no_capacity is not None:
            yield f"{side.name} found no capacity: {side.no_capacity}"
        if unmatched := [name for name in side.sections if name not in other.sections and name != CAPACITY]:
            yield f"only in {side.name}: {', '.join(unmatched)}"
        for name in shared:
            if (why := side.sections[name].unjudged) is not None:
                yield f"{name} is void in {side.name} ({why})"
    for name in shared:
        if base.sections[name].is_unanswered and new.sections[name].is_unanswered:
            yield f"{name} judges nothing: no request was answered in either"
    for name in shared:
        if broken := base.sections[name].broken:
            judged = "judges nothing" if new.sections[name].broken else "judges only what is better"
            yield f"{name} {judged}: {base.name} broke {', '.join(broken)} there already"


def _rows(name: str, base: ComparisonSection, new: ComparisonSection, tolerance: float) -> Iterator[ComparisonRow]:
    if base.unjudged is not None or new.unjudged is not None or (base.is_unanswered and new.is_unanswered):
        return
    for metric, before in base.values.items():
        after = new.values.get(metric)
        if after is None:
            continue
        verdict = verdict_of(before, after, tolerance)
        if base.broken and (new.broken or verdict != BETTER):
            verdict = UNJUDGED
        yield ComparisonRow(
            name, metric, before, after, after.value / before.value - 1 if before.value else None, verdict
        )


def verdict_of(before: Value, after: Value, tolerance: float) -> str:
    """Return how a value compares with the one before it, by its interval; `tolerance`: as in `compare`."""
    if before.better is None:
        return UNJUDGED
    # A share that was zero has no relative change; the tolerance then applies to the share itself.
    scale = abs(before.value) or (1.0 if before.unit == SHARE else 0.0)
    if abs(after.value - before.value) <= tolerance * scale:
        return SAME
    if _do_overlap(before, after):
        return UNCLEAR
    direction = HIGHER if after.value > before.value else LOWER
    return BETTER if direction == before.better else WORSE


def _do_overlap(before: Value, after: Value) -> bool:
    """Return whether both have an interval and these overlap; an interval without a bound reaches to infinity."""
    if any(value.lower is None and value.upper is None for value in (before, after)):
        return False
    low, high = (before, after) if before.value <= after.value else (after, before)
    return low.upper is None or high.lower is None or low.upper >= high.lower


_NO_END = ("interrupt", "error")


# What `kneewatch tune` makes of comparisons. The base is measured before and after the values of a setting: a value is
# better only if it is clearly better than each of the two, and where these contradict each other nothing is clear.


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

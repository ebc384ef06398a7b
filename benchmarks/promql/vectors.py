"""Instant vectors at many steps: aggregation, and operators between two vectors with label matching.

A Vector has rows, one for each label set, with values and where there are any. Rows with the same labels are joined,
since PromQL allows them only at different times.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.backfill import Bools, Floats

Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]
NAME = "__name__"


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one label set, and at which steps there are any."""

    labels: Labels
    values: Floats
    there: Bools


Vector = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Matching:
    """Which labels two vectors are matched by. `group`: those of the one side that the many side takes on."""

    labels: frozenset[str]
    is_on: bool
    group: tuple[str, ...] = ()

    def key(self, labels: Labels) -> Key:
        """Return the labels that count."""
        return tuple(sorted(pair for pair in labels.items() if self._counts(pair[0])))

    def _counts(self, name: str) -> bool:
        return name in self.labels if self.is_on else name not in self.labels and name != NAME


def key_of(labels: Labels) -> Key:
    """Return labels as a key."""
    return tuple(sorted(labels.items()))


def without_name(labels: Labels) -> dict[str, str]:
    """Return the labels but for the metric's name."""
    return {name: value for name, value in labels.items() if name != NAME}


def joined(rows: Iterable[Row]) -> list[Row]:
    """Join rows with the same labels, and leave out those without a value."""
    found: dict[Key, Row] = {}
    for row in rows:
        if not row.there.any():
            continue
        key = key_of(row.labels)
        before = found.get(key)
        if before is None:
            found[key] = row
        else:
            values = np.where(row.there, row.values, before.values)
            found[key] = Row(before.labels, values, before.there | row.there)
    return list(found.values())


def anywhere(vector: Vector, count: int) -> Bools:
    """Return at which of `count` steps any row has a value."""
    found = np.zeros(count, bool)
    for row in vector:
        found |= row.there
    return found


def restricted(vector: Vector, at: Bools) -> list[Row]:
    """Return the vector at some of its steps."""
    return [Row(row.labels, row.values[at], row.there[at]) for row in vector]


def spread(vector: Vector, at: Bools) -> list[Row]:
    """Return a vector at the steps where `at` is true as one at all steps."""
    found = []
    for row in vector:
        values, there = np.zeros(len(at)), np.zeros(len(at), bool)
        values[at], there[at] = row.values, row.there
        found.append(Row(row.labels, values, there))
    return found


def arithmetic(
    left: Vector,
    right: Vector,
    matching: Matching,
    operate: Callable[[Floats, Floats], Floats],
    *,
    many: str | None,
) -> list[Row]:
    """Return the result of an arithmetic operator. `many`: the side with several rows for one of the other."""
    found = []
    for one, other in _pairs(left, right, matching):
        there = one.there & other.there
        if there.any():
            with np.errstate(divide="ignore", invalid="ignore"):
                values = operate(one.values, other.values)
            found.append(Row(_labels(one, other, matching, many, keep_name=False), values, there))
    return joined(found)


def comparison(
    left: Vector,
    right: Vector,
    matching: Matching,
    compare: Callable[[Floats, Floats], Bools],
    *,
    many: str | None,
    is_bool: bool,
) -> list[Row]:
    """Return the left values where they compare so; with `is_bool`, 1 or 0."""
    found = []
    for one, other in _pairs(left, right, matching):
        there = one.there & other.there
        holds = compare(one.values, other.values)
        labels = _labels(one, other, matching, many, keep_name=not is_bool)
        if is_bool:
            found.append(Row(labels, holds.astype(np.float64), there))
        else:
            found.append(Row(labels, one.values, there & holds))
    return joined(found)


def _pairs(left: Vector, right: Vector, matching: Matching) -> Iterable[tuple[Row, Row]]:
    others: dict[Key, list[Row]] = {}
    for row in right:
        others.setdefault(matching.key(row.labels), []).append(row)
    for row in left:
        for other in others.get(matching.key(row.labels), ()):
            yield row, other


def _labels(one: Row, other: Row, matching: Matching, many: str | None, *, keep_name: bool) -> dict[str, str]:
    if many is None:
        labels = dict(matching.key(one.labels)) if matching.is_on else {**one.labels}
        if not matching.is_on:
            labels = {name: value for name, value in labels.items() if name not in matching.labels}
    else:
        mine, its = (one, other) if many == "left" else (other, one)
        labels = {**mine.labels}
        for name in matching.group:
            labels.pop(name, None)
            if name in its.labels:
                labels[name] = its.labels[name]
    return labels if keep_name else without_name(labels)


def both(left: Vector, right: Vector, matching: Matching) -> list[Row]:
    """Return `left and right`."""
    there = _there(right, matching)
    return joined(
        Row(row.labels, row.values, row.there & there[key])
        for row in left
        if (key := matching.key(row.labels)) in there
    )


def unless(left: Vector, right: Vector, matching: Matching) -> list[Row]:
    """Return `left unless right`."""
    there = _there(right, matching)
    return joined(
        Row(row.labels, row.values, row.there & ~there.get(matching.key(row.labels), np.False_)) for row in left
    )


def either(left: Vector, right: Vector, matching: Matching) -> list[Row]:
    """Return `left or right`."""
    return joined([*left, *unless(right, left, matching)])


def _there(vector: Vector, matching: Matching) -> dict[Key, Bools]:
    found: dict[Key, Bools] = {}
    for row in vector:
        key = matching.key(row.labels)
        found[key] = found[key] | row.there if key in found else row.there
    return found


def grouped(vector: Vector, labels: frozenset[str], *, is_by: bool) -> dict[Key, list[Row]]:
    """Return the rows of each group of an aggregation."""
    found: dict[Key, list[Row]] = {}
    matching = Matching(labels, is_on=is_by)
    for row in vector:
        found.setdefault(matching.key(row.labels), []).append(row)
    return found


def aggregated(rows: Sequence[Row], operator: str) -> tuple[Floats, Bools]:
    """Return sum, max, min, count, avg or group of rows. Raises KeyError for another operator."""
    there = np.stack([row.there for row in rows])
    values = np.stack([row.values for row in rows])
    count = there.sum(axis=0)
    any_there = count > 0
    if operator == "count":
        return count.astype(np.float64), any_there
    if operator == "group":
        return np.ones(len(count)), any_there
    filled, reduce = _REDUCED[operator]
    found = reduce(np.where(there, values, filled), axis=0)
    return (found / np.maximum(count, 1) if operator == "avg" else found), any_there


_REDUCED: Mapping[str, tuple[float, Callable[..., Floats]]] = {
    "sum": (0.0, np.sum),
    "avg": (0.0, np.sum),
    "max": (-np.inf, np.max),
    "min": (np.inf, np.min),
}


def first_of(rows: Sequence[Row]) -> list[Row]:
    """Return `topk (1, ...)` of a group."""
    values = np.where([row.there for row in rows], [row.values for row in rows], -np.inf)
    best = np.argmax(values, axis=0)
    return [Row(row.labels, row.values, row.there & (best == number)) for number, row in enumerate(rows)]


def count_values(group: Key, rows: Sequence[Row], label: str) -> Iterator[Row]:
    """Yield `count_values` of a group."""
    for value in np.unique(np.concatenate([row.values[row.there] for row in rows])):
        count = np.sum([row.there & (row.values == value) for row in rows], axis=0).astype(np.float64)
        yield Row({**dict(group), label: f"{value:g}"}, count, count > 0)

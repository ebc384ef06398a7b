"""Functions of an instant vector: `floor`, `clamp`, `histogram_quantile` and so on."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.backfill import Floats
from benchmarks.promql.vectors import Key, Row, Vector, joined, key_of, without_name


def _round(values: Floats) -> Floats:
    """Round to the nearest whole number, and halves up."""
    return np.asarray(np.floor(values + 0.5))


_BY_ROW: Mapping[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "round": _round,
}


def called(name: str, vector: Vector, scalars: Sequence[Any]) -> list[Row]:
    """Return a function of a vector and of its other arguments. Raises KeyError for an unknown one."""
    if name == "histogram_quantile":
        return _histogram_quantile(scalars[0], vector)
    if name == "label_replace":
        return _relabelled(vector, *scalars)
    if name.startswith("clamp"):
        return _clamped(name, vector, scalars)
    return joined(Row(without_name(row.labels), _BY_ROW[name](row.values), row.there) for row in vector)


def _clamped(name: str, vector: Vector, limits: Sequence[Floats]) -> list[Row]:
    found = []
    for row in vector:
        values = row.values
        if name != "clamp_max":
            values = np.maximum(values, limits[0])
        if name != "clamp_min":
            values = np.minimum(values, limits[-1])
        found.append(Row(without_name(row.labels), values, row.there))
    return joined(found)


def _histogram_quantile(share: float, vector: Vector) -> list[Row]:
    groups: dict[Key, list[Row]] = {}
    for row in vector:
        labels = {name: value for name, value in without_name(row.labels).items() if name != "le"}
        groups.setdefault(key_of(labels), []).append(row)
    return joined(_quantile(share, key, rows) for key, rows in groups.items())


def _quantile(share: float, key: Key, rows: Sequence[Row]) -> Row:
    rows = sorted(rows, key=lambda row: float(row.labels["le"]))
    bounds = np.array([float(row.labels["le"]) for row in rows])
    there = np.logical_and.reduce([row.there for row in rows])
    below = np.maximum.accumulate([row.values for row in rows], axis=0)
    count = below[-1]
    rank = share * count
    index = np.minimum((below < rank).sum(axis=0), len(bounds) - 1)
    steps = np.arange(len(count))
    lower = np.where(index > 0, bounds[np.maximum(index - 1, 0)], 0.0)
    upper = bounds[index]
    before = np.where(index > 0, below[np.maximum(index - 1, 0), steps], 0.0)
    inside = below[index, steps] - before
    with np.errstate(divide="ignore", invalid="ignore"):
        found = lower + (upper - lower) * ((rank - before) / inside)
    found = np.where(index == len(bounds) - 1, bounds[-2], found)
    return Row(dict(key), np.where(count > 0, found, np.nan), there)


def _relabelled(vector: Vector, label: str, replacement: str, source: str, pattern: str) -> list[Row]:
    found = []
    for row in vector:
        match = re.fullmatch(pattern, row.labels.get(source, ""))
        labels = dict(row.labels)
        if match is not None:
            labels[label] = match.expand(re.sub(r"\$\{?(\w+)\}?", r"\\g<\1>", replacement))
        found.append(Row({name: text for name, text in labels.items() if text}, row.values, row.there))
    return joined(found)

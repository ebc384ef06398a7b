"""Stored series, and the samples that a query selects at its steps.

In: Lines (backfill.py). Times are kept in whole milliseconds, as in Prometheus. Series that were scraped together share
their array of times, so where a window begins and ends in it is looked up once for all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.alerts.rules import matches
from benchmarks.backfill import STALE, Bools, Floats, Line

Millis = NDArray[np.int64]
Indices = NDArray[np.intp]
LOOKBACK_MS = 300_000
_MOST_LOOK_UPS = 16
_STALE_BITS = STALE.view(np.uint64)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Sorted times in ms, shared by the series that have them. `found` remembers look-ups."""

    ms: Millis
    found: dict[tuple[int, int, bool], tuple[Millis, Indices]] = field(default_factory=dict)

    def index(self, steps: Millis, ago_ms: int, *, after: bool) -> Indices:
        """Return for each step the first sample that is not older than `ago_ms`, or is younger (`after`)."""
        key = id(steps), ago_ms, after
        if key not in self.found or self.found[key][0] is not steps:
            if len(self.found) >= _MOST_LOOK_UPS:
                self.found.clear()
            side = "right" if after else "left"
            self.found[key] = steps, np.searchsorted(self.ms, steps - ago_ms, side)
        return self.found[key][1]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A series. `values` at `times` without stale markers; `ends`: for each sample, when a marker ended the series."""

    labels: Mapping[str, str]
    times: Times
    values: Floats
    ends: Millis
    made: dict[str, Any] = field(default_factory=dict)  # what range functions derive of all samples

    def newest(self, steps: Millis) -> tuple[Bools, Floats]:
        """Return the newest value at each step, and where there is one that is not stale or over five minutes old."""
        at = self.times.index(steps, 0, after=True) - 1
        safe = np.maximum(at, 0)
        there = (at >= 0) & (self.times.ms[safe] >= steps - LOOKBACK_MS) & (steps < self.ends[safe])
        return there, self.values[safe]

    def window(self, steps: Millis, range_ms: int) -> tuple[Indices, Indices]:
        """Return the first sample of each window, and the first after it. Both ends are in the window."""
        return self.times.index(steps, range_ms, after=False), self.times.index(steps, 0, after=True)


class Store:
    """Series by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[tuple[tuple[str, str], ...], Stored]] = {}
        self._times: dict[bytes, Times] = {}

    def add(self, line: Line) -> int:
        """Store a series, or append to it, and return the number of samples. Raises ValueError if it has later ones."""
        labels = {name: value for name, value in line.labels.items() if value}
        key = tuple(sorted(labels.items()))
        named = self._by_name.setdefault(labels["__name__"], {})
        ms, values = np.round(line.times * 1000).astype(np.int64), np.ascontiguousarray(line.values, np.float64)
        before = named.get(key)
        if before is not None:
            if len(ms) and before.times.ms[-1] >= ms[0]:
                raise ValueError(f"out of order sample: {key} is stored already")
            ms, values = np.append(before.times.ms[-1:], ms), np.append(before.values[-1:], values)
        stale = values.view(np.uint64) == _STALE_BITS
        kept = np.flatnonzero(~stale)
        if len(kept):
            # A sample ends where the next one in the series is a marker.
            after = np.minimum(kept + 1, len(ms) - 1)
            ends = np.where(stale[after], ms[after], _NEVER)
            ms, values = ms[kept], values[kept]
            if before is not None:
                ends[0] = min(ends[0], before.ends[-1])
                ms, values = np.append(before.times.ms[:-1], ms), np.append(before.values[:-1], values)
                ends = np.append(before.ends[:-1], ends)
            named[key] = Stored(labels, self._shared(ms), values, ends)
        return len(line.times)

    def select(self, name: str, matchers: Iterable[tuple[str, str, str]]) -> Sequence[Stored]:
        """Return the series with this name that match."""
        wanted = list(matchers)
        return [
            one
            for one in self._by_name.get(name, {}).values()
            if all(matches(operator, value, one.labels.get(label, "")) for label, operator, value in wanted)
        ]

    def _shared(self, ms: Millis) -> Times:
        return self._times.setdefault(ms.tobytes(), Times(ms))

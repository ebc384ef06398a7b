"""A scraped metrics page. In: values for each tick. Out: Lines.

Counters start at zero and reset when their process restarts. A failed scrape ends every series with a stale
marker, as does the removal of a series.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.backfill import STALE, Bools, Floats, Line, Values
from exporters.names import Series

_INSTANCE = "kneewatch:9876"


@dataclass(frozen=True, slots=True)
class Watch:
    """Interruptions of the monitor: `kneewatch_down` and `gaps` are masks of ticks, `restarts` holds ticks."""

    times: Floats
    kneewatch_down: Bools
    gaps: Bools
    restarts: Sequence[int]
    every: int  # ticks between scrapes


class Page:
    """The Lines of the wanted series. `clock_s`: how far the clock of Kneewatch's host is ahead."""

    def __init__(
        self, watch: Watch, wanted: Collection[str], *, instance: str = _INSTANCE, clock_s: float = 0.0
    ) -> None:
        self._labels = {"job": "kneewatch", "instance": instance}
        self._clock_s = clock_s
        self._wanted = wanted
        self.watch = watch
        self._scraped = np.arange(0, len(watch.times), watch.every)
        self._up = ~(watch.kneewatch_down | watch.gaps)

    def gauge(
        self, series: Series | str, labels: Mapping[str, str], values: Values | float, there: Bools | None = None
    ) -> Iterator[Line]:
        """Yield a gauge with a value for each tick. `there` masks the ticks in which it is exported."""
        name = series if isinstance(series, str) else series.name
        if name not in self._wanted:
            return
        at = self._scraped
        shown = (self._up if there is None else self._up & there)[at]
        if not shown.any():
            return
        ended = ~shown & np.concatenate(([False], shown[:-1]))
        kept = shown | ended
        each = np.full(len(at), values) if np.isscalar(values) else np.asarray(values, np.float64)[at]
        if name.endswith("timestamp_seconds"):
            each = each + self._clock_s
        each = np.where(ended, STALE, each)
        yield Line({"__name__": name, **self._labels, **labels}, self.watch.times[at][kept], each[kept])

    def counter(
        self,
        series: Series | str,
        labels: Mapping[str, str],
        increments: Values,
        there: Bools | None = None,
        resets: Sequence[int] | None = None,
    ) -> Iterator[Line]:
        """Yield a counter with an increase for each tick. It resets at `resets`, or at Kneewatch's restarts if None."""
        total = np.cumsum(increments)
        begins = np.unique(np.concatenate(([0], self.watch.restarts if resets is None else resets)).astype(int))
        ticks = np.arange(len(total))
        base = np.where(begins > 0, total[np.maximum(begins - 1, 0)], 0.0)
        yield from self.gauge(series, labels, total - base[np.searchsorted(begins, ticks, "right") - 1], there)

"""A page of series, scraped: values of each tick in, Lines out.

Counters start at zero and fall back to it with their process. A scrape that fails ends every series (a stale marker),
as does what is not on the page any more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.backfill import STALE, Bools, Floats, Line, Values
from exporters.names import Series

_JOB = {"job": "kneewatch", "instance": "kneewatch:9876"}


@dataclass(frozen=True, slots=True)
class Watch:
    """What happens to the watching: `kneewatch_down` and `gaps` are masks of ticks, `restarts` ticks of Kneewatch's."""

    times: Floats
    kneewatch_down: Bools
    gaps: Bools
    restarts: Sequence[int]
    every: int  # ticks from scrape to scrape


class Page:
    """Lines of what is wanted."""

    def __init__(self, watch: Watch, wanted: Collection[str]) -> None:
        self._wanted = wanted
        self._watch = watch
        self._scraped = np.arange(0, len(watch.times), watch.every)
        self._up = ~(watch.kneewatch_down | watch.gaps)

    def gauge(
        self, series: Series | str, labels: Mapping[str, str], values: Values | float, there: Bools | None = None
    ) -> Iterator[Line]:
        """A series of a value for each tick; `there`: in which ticks it is on the page."""
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
        each = np.where(ended, STALE, each)
        yield Line({"__name__": name, **_JOB, **labels}, self._watch.times[at][kept], each[kept])

    def counter(
        self,
        series: Series | str,
        labels: Mapping[str, str],
        increments: Values,
        there: Bools | None = None,
        resets: Sequence[int] | None = None,
    ) -> Iterator[Line]:
        """One of so much more at each tick, from zero again at each of `resets`; Kneewatch's own restarts, if None."""
        total = np.cumsum(increments)
        begins = np.unique(np.concatenate(([0], self._watch.restarts if resets is None else resets)).astype(int))
        ticks = np.arange(len(total))
        base = np.where(begins > 0, total[np.maximum(begins - 1, 0)], 0.0)
        yield from self.gauge(series, labels, total - base[np.searchsorted(begins, ticks, "right") - 1], there)

"""Series that each scrape replaces as a whole, rendered as text when the scrape ends.

A page of two hundred targets has a hundred thousand lines. Rendering them for a request takes a second, in which no
canary is timestamped in time; rendering them after each scrape spreads that second over the scrape interval.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from exporters.exposition_format import head, line, number, pairs
from exporters.names import Series
from probe.core.snapshot import Histogram


class SampleLines:
    """The samples of one scrape, as lines of the page.

    Values are those of another program. What no counter and no histogram can have is left out, because a strict parser
    of OpenMetrics would refuse the whole page.
    """

    def __init__(self) -> None:
        self._written: dict[str, list[str]] = defaultdict(list)

    def value(self, series: Series, labels: Sequence[str], value: float | None) -> None:
        """Add a gauge or counter, unless it is None. Labels are in the order of the series' labels."""
        if value is not None and (series.kind != "counter" or _is_count(value)):
            self._written[series.name].append(line(series.name, _pairs(series, labels), value))

    def histogram(self, series: Series, labels: Sequence[str], histogram: Histogram | None) -> None:
        """Add a histogram with all its buckets, unless it is none."""
        if histogram is None or not _is_histogram(histogram):
            return
        name, its = series.name, _pairs(series, labels)
        self._written[name] += [
            *(line(f"{name}_bucket", f'{its},le="{number(le)}"', count) for le, count in histogram.buckets),
            line(f"{name}_count", its, histogram.count),
            line(f"{name}_sum", its, histogram.sum),
        ]

    def by_series(self) -> Mapping[str, str]:
        """Return the text by series name."""
        return {name: "".join(written) for name, written in self._written.items()}


class RenderedSamples:
    """The last rendered samples of each target, by series."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = tuple(series)
        self._latest: dict[str, Mapping[str, str] | Callable[[], Mapping[str, str]]] = {}

    def put(self, target: str, lines: SampleLines) -> None:
        """Replace the samples of a target."""
        self.put_text(target, lines.by_series())

    def put_text(self, target: str, text: Mapping[str, str]) -> None:
        """Replace the samples of a target by rendered text by series name."""
        self._latest[target] = text

    def put_later(self, target: str, text: Callable[[], Mapping[str, str]]) -> None:
        """Replace the samples of a target by a function that renders them when the page is requested.

        For series that change more often than the page is requested. It runs in the thread of `write`.
        """
        self._latest[target] = text

    def forget(self, target: str) -> None:
        """Remove the samples of a target."""
        self._latest.pop(target, None)

    def write(self, *, openmetrics: bool) -> Iterator[str]:
        """Yield the families that have samples. May be called from another thread than `put`."""
        latest = [each() if callable(each) else each for each in list(self._latest.values())]
        for series in self._series:
            written = [lines[series.name] for lines in latest if series.name in lines]
            if written:
                yield head(series.name, series.kind, series.help, openmetrics=openmetrics)
                yield from written


def _is_count(value: float) -> bool:
    return 0 <= value < math.inf


def _is_histogram(histogram: Histogram) -> bool:
    """Return whether bounds and counts ascend, the last bound is infinite, and counts are whole numbers from 0."""
    buckets = histogram.buckets
    if not buckets or buckets[0][0] < 0 or buckets[-1][0] != math.inf or not _is_count(histogram.sum):
        return False
    ascends = all(low < high and few <= many for (low, few), (high, many) in pairwise(buckets))
    return ascends and _is_count(buckets[-1][1]) and all(0 <= count == int(count) for _, count in buckets)


def _pairs(series: Series, values: Sequence[str]) -> str:
    return pairs(zip(series.labels, values, strict=True))

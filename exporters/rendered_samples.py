"""Series of which a target has a new set at each reading: written as text when the reading comes.

A page of two hundred targets has a hundred thousand lines. Written when it is asked for they take a second, in which no
canary is stamped in time; written as readings come, that second is spread over the time between two of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from exporters.exposition_format import head, line, number, pairs
from exporters.names import Series
from probe.core.snapshot import Histogram


class SampleLines:
    """What one reading says, as the lines of a page."""

    def __init__(self) -> None:
        self._written: dict[str, list[str]] = defaultdict(list)

    def value(self, series: Series, labels: Sequence[str], value: float | None) -> None:
        """A gauge or counter; None: nothing. Labels in the order of the series'."""
        if value is not None:
            self._written[series.name].append(line(series.name, _pairs(series, labels), value))

    def histogram(self, series: Series, labels: Sequence[str], histogram: Histogram | None) -> None:
        """All of its buckets; one without any says nothing."""
        if histogram is None or not histogram.buckets:
            return
        name, its = series.name, _pairs(series, labels)
        self._written[name] += [
            *(line(f"{name}_bucket", f'{its},le="{number(le)}"', count) for le, count in histogram.buckets),
            line(f"{name}_count", its, histogram.count),
            line(f"{name}_sum", its, histogram.sum),
        ]

    def by_series(self) -> Mapping[str, str]:
        """The text, by the series' name."""
        return {name: "".join(written) for name, written in self._written.items()}


class RenderedSamples:
    """The last reading of each target, by series."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = tuple(series)
        self._latest: dict[str, Mapping[str, str] | Callable[[], Mapping[str, str]]] = {}

    def put(self, target: str, lines: SampleLines) -> None:
        """Replaces what was said of the target."""
        self.put_text(target, lines.by_series())

    def put_text(self, target: str, text: Mapping[str, str]) -> None:
        """The same, as lines by the series' name."""
        self._latest[target] = text

    def put_later(self, target: str, text: Callable[[], Mapping[str, str]]) -> None:
        """The same, for what changes more often than a page is asked for: it is written then, in that thread."""
        self._latest[target] = text

    def forget(self, target: str) -> None:
        """Nothing is said of the target any more."""
        self._latest.pop(target, None)

    def write(self, *, openmetrics: bool) -> Iterator[str]:
        """The families that anything is said of. May be called from another thread than `put`."""
        latest = [each() if callable(each) else each for each in list(self._latest.values())]
        for series in self._series:
            written = [lines[series.name] for lines in latest if series.name in lines]
            if written:
                yield head(series.name, series.kind, series.help, openmetrics=openmetrics)
                yield from written


def _pairs(series: Series, values: Sequence[str]) -> str:
    return pairs(zip(series.labels, values, strict=True))

"""Series that each scrape replaces as a whole, rendered as text when the scrape ends.

A page of two hundred targets has a hundred thousand lines. Rendering them for a request takes a second, in which no
canary is timestamped in time; rendering them after each scrape spreads that second over the scrape interval.

First the two text formats of Prometheus: prometheus_client takes 15 us a line, which is half a second for the client
series of two hundred targets. A test checks that its pages and these are the same.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

from exporters.names import Series
from probe.core.snapshot import Histogram

END = "# EOF\n"  # of a page in OpenMetrics
# Most labels and numbers, which are small integers, are the same on every page.
_REMEMBERED = 16_384


def wants_openmetrics(accept: str) -> bool:
    """Return whether an `Accept` header names OpenMetrics. Prometheus does, and accepts either format."""
    return any(part.partition(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def content_type(*, openmetrics: bool) -> str:
    return CONTENT_TYPE_LATEST if openmetrics else CONTENT_TYPE_PLAIN_0_0_4


def head(name: str, kind: str, help_: str, *, openmetrics: bool) -> str:
    """Return the head of a family. `name` is the name in queries; OpenMetrics drops a counter's suffix in it."""
    if openmetrics:
        name = name.removesuffix("_total") if kind == "counter" else name
    return f"# HELP {name} {help_}\n# TYPE {name} {kind}\n"


def pairs(labels: Iterable[tuple[str, str]]) -> str:
    """Return the text between the braces."""
    return ",".join([_pair(name, value) for name, value in labels])


def family_name(metric: Metric) -> str:
    """Return the name in queries of a prometheus_client metric."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def samples(metric: Metric) -> Iterator[str]:
    """Yield the lines of a prometheus_client metric."""
    for sample in metric.samples:
        # prometheus_client adds `_created` to every counter and histogram: half of the page, without use.
        if not sample.name.endswith("_created"):
            yield line(sample.name, pairs(sample.labels.items()), sample.value)


def line(name: str, labels: str, value: float) -> str:
    """Return one sample; `labels` as returned by `pairs`."""
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    """Return the number in Go's notation, as Prometheus writes it."""
    return _number(value) if value else repr(float(value))  # 0.0 and -0.0 are equal, but differ in text


@lru_cache(maxsize=_REMEMBERED)
def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=_REMEMBERED)
def _pair(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'


class SampleLines:
    """The samples of one scrape, as lines of the page.

    The values come from another program. A value that no counter and no histogram can have is left out, because a
    strict parser of OpenMetrics would refuse the whole page.
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

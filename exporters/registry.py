"""Prometheus client metrics from the Series in names.py, and the /metrics page of these and the rendered samples.

The page may be rendered outside the event loop's thread, which timestamps what canaries receive.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.metrics import MetricWrapperBase

from exporters.names import Series, with_bounds
from exporters.rendered_samples import END, RenderedSamples, content_type, family_name, head, samples, wants_openmetrics

M = TypeVar("M", bound=MetricWrapperBase)


def counter(series: Series, registry: CollectorRegistry) -> Counter:
    """Return a counter with the series' name, help and labels."""
    return Counter(series.name, series.help, series.labels, registry=registry)


def gauge(series: Series, registry: CollectorRegistry) -> Gauge:
    """Return a gauge with the series' name, help and labels."""
    return Gauge(series.name, series.help, series.labels, registry=registry)


def histogram(series: Series, registry: CollectorRegistry, thresholds: Iterable[float] = ()) -> Histogram:
    """Return a histogram with the series' buckets and every threshold among its bounds."""
    return Histogram(
        series.name, series.help, series.labels, buckets=with_bounds(series, thresholds), registry=registry
    )


class ByTarget(Generic[M]):
    """A metric with a label `target`, indexed by target.

    To remove a target's children, prometheus_client scans all children: for a thousand targets at once, this blocked
    the event loop for most of a minute.
    """

    def __init__(self, metric: M, series: Series) -> None:
        """Wrap a `metric` made from `series`; all its children must be created here."""
        self._metric = metric
        self._at = series.labels.index("target")
        self._of: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def labels(self, *labels: str) -> M:
        """Return the child with these labels, in the order of the series' labels."""
        self._of[labels[self._at]].add(labels)
        return self._metric.labels(*labels)

    def remove(self, *labels: str) -> None:
        """Remove one child, if it exists."""
        own = self._of.get(labels[self._at], set())
        if labels in own:
            own.remove(labels)
            self._metric.remove(*labels)

    def forget(self, target: str) -> None:
        """Remove all children of a target."""
        for labels in self._of.pop(target, ()):
            self._metric.remove(*labels)


def counter_by_target(series: Series, registry: CollectorRegistry) -> ByTarget[Counter]:
    """Return a counter indexed by target."""
    return ByTarget(counter(series, registry), series)


def gauge_by_target(series: Series, registry: CollectorRegistry) -> ByTarget[Gauge]:
    """Return a gauge indexed by target."""
    return ByTarget(gauge(series, registry), series)


class MetricsPage:
    """All series of the process."""

    def __init__(self, registry: CollectorRegistry, relays: Sequence[RenderedSamples] = ()) -> None:
        self._registry = registry
        self._relays = tuple(relays)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, in the format of the `Accept` header."""
        openmetrics = wants_openmetrics(accept)
        written = [text for metric in self._registry.collect() for text in _family(metric, openmetrics=openmetrics)]
        for relay in self._relays:
            written += relay.write(openmetrics=openmetrics)
        if openmetrics:
            written.append(END)
        # A lone surrogate, which a server may have sent in a name, cannot be encoded.
        return "".join(written).encode("utf-8", "replace"), content_type(openmetrics=openmetrics)


def _family(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    yield head(family_name(metric), metric.type, metric.documentation, openmetrics=openmetrics)
    yield from samples(metric)

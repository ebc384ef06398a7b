"""prometheus_client metrics out of names.py's Series. The one place where a Series becomes a metric."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from exporters.names import Series, with_bounds

M = TypeVar("M", bound=MetricWrapperBase)


def counter(series: Series, registry: CollectorRegistry) -> Counter:
    """A counter with the series' name, help and labels."""
    return Counter(series.name, series.help, series.labels, registry=registry)


def gauge(series: Series, registry: CollectorRegistry) -> Gauge:
    """A gauge with the series' name, help and labels."""
    return Gauge(series.name, series.help, series.labels, registry=registry)


def histogram(series: Series, registry: CollectorRegistry, thresholds: Iterable[float] = ()) -> Histogram:
    """A histogram with the series' buckets and every threshold among its bounds."""
    return Histogram(
        series.name, series.help, series.labels, buckets=with_bounds(series, thresholds), registry=registry
    )


class ByTarget(Generic[M]):
    """A metric with a label `target`, which knows the children of each.

    To take a target's away, prometheus_client looks at those of all targets: with a thousand of them gone at once, that
    took most of a minute, in which nothing else was done.
    """

    def __init__(self, metric: M, series: Series) -> None:
        """`metric` is made of `series`, and nobody else gives it children."""
        self._metric = metric
        self._at = series.labels.index("target")
        self._of: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def labels(self, *labels: str) -> M:
        """The child of these labels, in the order of the series'."""
        self._of[labels[self._at]].add(labels)
        return self._metric.labels(*labels)

    def remove(self, *labels: str) -> None:
        """Takes one child away, if it is there."""
        own = self._of.get(labels[self._at], set())
        if labels in own:
            own.remove(labels)
            self._metric.remove(*labels)

    def forget(self, target: str) -> None:
        """Takes all children of a target away."""
        for labels in self._of.pop(target, ()):
            self._metric.remove(*labels)


def counter_by_target(series: Series, registry: CollectorRegistry) -> ByTarget[Counter]:
    """A counter, by target."""
    return ByTarget(counter(series, registry), series)


def gauge_by_target(series: Series, registry: CollectorRegistry) -> ByTarget[Gauge]:
    """A gauge, by target."""
    return ByTarget(gauge(series, registry), series)

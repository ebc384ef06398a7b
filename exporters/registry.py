"""prometheus_client metrics out of names.py's Series. The one place where a Series becomes a metric."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from exporters.names import Series, with_bounds


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


def forget(metrics: Iterable[MetricWrapperBase], target: str) -> None:
    """Removes every child of a target from metrics that have a label of that name."""
    for metric in metrics:
        metric.remove_by_labels({"target": target})

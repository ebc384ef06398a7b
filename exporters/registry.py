"""prometheus_client metrics out of names.py's Series. The one place where a Series becomes a metric."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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

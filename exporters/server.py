"""The server's own metrics, relayed under names that do not change with its version: one Collector."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from exporters import names
from exporters.names import Series
from probe.records import Histogram, ServerSnapshot

_GAUGES = ((names.SERVER_RUNNING, "running"), (names.SERVER_KV, "kv_cache_usage"))
_COUNTERS = (
    (names.SERVER_PREEMPTIONS, "preemptions"),
    (names.SERVER_PROMPT_TOKENS, "prompt_tokens"),
    (names.SERVER_GENERATION_TOKENS, "generation_tokens"),
    (names.SERVER_PREFIX_QUERIES, "prefix_cache_queries"),
    (names.SERVER_PREFIX_HITS, "prefix_cache_hits"),
    (names.SERVER_REJECTIONS, "rejections"),
)
_HISTOGRAMS = (
    (names.SERVER_TTFT, "ttft"),
    (names.SERVER_ITL, "itl"),
    (names.SERVER_TPOT, "tpot"),
    (names.SERVER_E2E, "e2e"),
    (names.SERVER_QUEUE, "queue"),
)
# vLLM before 0.20 does not say why a request waits.
_NO_REASON = "unknown"


class ServerExporter(Collector):
    """The last reading of each target's server. A server that cannot be read has no values, only `scrape_up` 0."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self._latest: dict[str, ServerSnapshot | None] = {}
        self._errors = dict.fromkeys(targets, 0)

    def observe(self, target: str, snapshot: ServerSnapshot) -> None:
        """Keeps a reading."""
        self._latest[target] = snapshot

    def failed(self, target: str) -> None:
        """Counts an attempt that failed, and forgets the reading before it: stale values would pass for current."""
        self._latest[target] = None
        self._errors[target] += 1

    def collect(self) -> Iterator[Metric]:
        """The families for one scrape of us."""
        read = {target: snapshot for target, snapshot in self._latest.items() if snapshot is not None}
        up = _gauge(names.SERVER_UP)
        for target, snapshot in self._latest.items():
            up.add_metric([target], float(snapshot is not None))
        yield up
        errors = _counter(names.SERVER_SCRAPE_ERRORS)
        for target, count in self._errors.items():
            errors.add_metric([target], count)
        yield errors
        yield _waiting(read)
        info = _gauge(names.SERVER_INFO)
        for target, snapshot in read.items():
            info.add_metric([target, snapshot.engine, snapshot.version], 1.0)
        yield info
        yield from _plain(read)
        yield from _histograms(read)


def _waiting(read: dict[str, ServerSnapshot]) -> Metric:
    family = _gauge(names.SERVER_WAITING)
    for target, snapshot in read.items():
        reasons = snapshot.waiting_by_reason or ({_NO_REASON: snapshot.waiting} if snapshot.waiting is not None else {})
        for reason, count in reasons.items():
            family.add_metric([target, reason], count)
    return family


def _plain(read: dict[str, ServerSnapshot]) -> Iterator[Metric]:
    for kind, table in ((_gauge, _GAUGES), (_counter, _COUNTERS)):
        for series, field in table:
            family = kind(series)
            for target, snapshot in read.items():
                value: float | None = getattr(snapshot, field)
                if value is not None:
                    family.add_metric([target], value)
            yield family


def _histograms(read: dict[str, ServerSnapshot]) -> Iterator[Metric]:
    for series, key in _HISTOGRAMS:
        family = HistogramMetricFamily(series.name, series.help, labels=series.labels)
        for target, snapshot in read.items():
            histogram: Histogram | None = snapshot.histograms.get(key)
            if histogram is not None and histogram.buckets:
                buckets = [("+Inf" if le == float("inf") else str(le), count) for le, count in histogram.buckets]
                family.add_metric([target], buckets, histogram.sum)
        yield family


def _gauge(series: Series) -> GaugeMetricFamily:
    return GaugeMetricFamily(series.name, series.help, labels=series.labels)


def _counter(series: Series) -> CounterMetricFamily:
    return CounterMetricFamily(series.name, series.help, labels=series.labels)

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
    (names.SERVER_DRAFTS, "drafts"),
    (names.SERVER_DRAFT_TOKENS, "draft_tokens"),
    (names.SERVER_ACCEPTED_TOKENS, "accepted_tokens"),
)
_HISTOGRAMS = (
    (names.SERVER_TTFT, "ttft"),
    (names.SERVER_ITL, "itl"),
    (names.SERVER_TPOT, "tpot"),
    (names.SERVER_E2E, "e2e"),
    (names.SERVER_QUEUE, "queue"),
    (names.SERVER_PREFILL, "prefill"),
    (names.SERVER_DECODE, "decode"),
    (names.SERVER_ITERATION_TOKENS, "iteration_tokens"),
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
        family = _histogram(series)
        for target, snapshot in read.items():
            if key in snapshot.histograms:
                _add(family, [target], snapshot.histograms[key])
        yield family
    family = _histogram(names.SERVER_PREEMPTIONS_PER_REQUEST)
    for target, snapshot in read.items():
        if "preemptions" in snapshot.histograms:
            _add(family, [target, "histogram"], snapshot.histograms["preemptions"])
        elif snapshot.preemptions is not None and snapshot.finished:
            requests = sum(snapshot.finished.values())
            _add(family, [target, "counters"], Histogram(((float("inf"), requests),), snapshot.preemptions))
    yield family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    if histogram.buckets:
        buckets = [("+Inf" if le == float("inf") else str(le), count) for le, count in histogram.buckets]
        family.add_metric(labels, buckets, histogram.sum)


def _histogram(series: Series) -> HistogramMetricFamily:
    return HistogramMetricFamily(series.name, series.help, labels=series.labels)


def _gauge(series: Series) -> GaugeMetricFamily:
    return GaugeMetricFamily(series.name, series.help, labels=series.labels)


def _counter(series: Series) -> CounterMetricFamily:
    return CounterMetricFamily(series.name, series.help, labels=series.labels)

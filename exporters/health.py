"""Kneewatch's own health as series: version, configuration, scheduled tasks, event loop."""

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.registry import Collector

from exporters import names
from exporters.names import Series
from exporters.registry import counter, counter_by_target, gauge, gauge_by_target, histogram
from exporters.rendered_samples import family_name
from probe import simulator
from probe.runtime.loop_watch import CAUSES

_PREFIXED = {series.name.removeprefix(names.PREFIX): series for series in (names.CPU, names.MEMORY, names.STARTED)}


class HealthExporter:
    """Series on Kneewatch itself. A canary that fails because its server is down is a task that succeeded."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        gauge(names.BUILD_INFO, registry).labels(version, simulator.KIND).set(1)
        registry.register(_Process())
        self._config_hash = gauge(names.CONFIG_HASH, registry)
        self._links = gauge(names.LINKS, registry)
        self._config_taken = gauge(names.CONFIG_TAKEN, registry)
        self._config_taken_at = gauge(names.CONFIG_TAKEN_AT, registry)
        self._failures = counter_by_target(names.TASK_FAILURES, registry)
        self._last_success = gauge_by_target(names.TASK_LAST_SUCCESS, registry)
        self._interval = gauge_by_target(names.TASK_INTERVAL, registry)
        self._timeout = gauge_by_target(names.CANARY_TIMEOUT, registry)
        self._sharing = gauge_by_target(names.SERVER_TARGETS, registry)
        self._otlp_failures = counter(names.OTLP_FAILURES, registry)
        self._stalls = counter(names.LOOP_STALLS, registry)
        for cause in CAUSES:
            self._stalls.labels(cause)
        self._forecast_cpu = counter(names.FORECAST_CPU, registry)
        self._lost_lines = counter(names.LOST_LOG_LINES, registry)
        self._lag = histogram(names.LOOP_LAG, registry)
        self._lateness = histogram(names.TASK_LATENESS, registry)

    def announce_task(self, task: str, target: str, interval_s: float | None, wall_s: float) -> None:
        """Start a task's counters at zero. An interval task counts as alive from now, or one that never completes would
        go unnoticed.
        """
        self._failures.labels(task, target)
        if interval_s is not None:
            self._interval.labels(task, target).set(interval_s)
            self._last_success.labels(task, target).set(wall_s)

    def publish_canary_timeout(self, target: str, timeout_s: float) -> None:
        """Publish the time limit of a target's canaries."""
        self._timeout.labels(target).set(timeout_s)

    def forget(self, target: str) -> None:
        """Remove the series of a target that is no longer watched."""
        for metric in (self._failures, self._last_success, self._interval, self._timeout, self._sharing):
            metric.forget(target)

    def publish_shared_page(self, targets: Collection[str]) -> None:
        """Publish that these are all the targets with one server's metrics page."""
        for target in targets:
            self._sharing.labels(target).set(len(targets))

    def record_success(self, task: str, target: str, wall_s: float) -> None:
        """Record that a task has completed."""
        self._last_success.labels(task, target).set(wall_s)

    def count_failure(self, task: str, target: str) -> None:
        """Count a task that raised, started late, or was skipped because its previous run was still going."""
        self._failures.labels(task, target).inc()

    def observe_lateness(self, task: str, seconds: float) -> None:
        """Record how late (s) a task started."""
        self._lateness.labels(task).observe(seconds)

    def count_forecast_cpu(self, seconds: float) -> None:
        """Count the CPU time that a forecast took."""
        self._forecast_cpu.inc(seconds)

    def publish_config(self, config_hash: str, wall_s: float, *, pages: str = "", grafana: str = "") -> None:
        """Record that a configuration was loaded, with the addresses of its pages and of Grafana, or ""."""
        self._config_hash.clear()
        self._config_hash.labels(config_hash).set(1)
        self._links.clear()
        if pages or grafana:
            self._links.labels(pages, grafana).set(1)
        self._config_taken.set(1)
        self._config_taken_at.set(wall_s)

    def publish_refused_config(self) -> None:
        """Record that a changed configuration file was refused."""
        self._config_taken.set(0)

    def count_otlp_failure(self) -> None:
        """Count a request to the OpenTelemetry collector that failed."""
        self._otlp_failures.inc()

    def count_stall(self, cause: str) -> None:
        """Count a time that the event loop stood."""
        self._stalls.labels(cause).inc()

    def count_lost_lines(self, lines: int) -> None:
        """Count lines of the log that nobody could take."""
        self._lost_lines.inc(lines)

    def observe_loop_lag(self, seconds: float) -> None:
        """Record how late (s) the event loop woke up."""
        self._lag.observe(seconds)


class _Process(Collector):
    """The monitor's process, from /proc: under Prometheus' own names, and three of them with Kneewatch's prefix too.

    Kneewatch's dashboards and alerts use the prefixed ones, which no other process has.
    """

    def __init__(self) -> None:
        self._all = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        listed = {series.name: series for series in names.STANDARD_PROCESS}
        for metric in self._all.collect():
            name = family_name(metric)
            metric.documentation = listed[name].help
            yield metric
            if name in _PREFIXED:
                yield _renamed(metric, _PREFIXED[name])


def _renamed(metric: Metric, series: Series) -> Metric:
    """Return the samples of a metric under another name."""
    renamed = Metric(series.name.removesuffix("_total"), series.help, metric.type)
    for sample in metric.samples:
        renamed.add_sample(series.name, sample.labels, sample.value)
    return renamed

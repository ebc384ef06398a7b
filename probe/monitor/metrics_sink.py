"""The sink of all measurements: the series of /metrics, and the history of capacity in the store.

Every TargetMonitor reports here. `add` announces a target before its first measurement; `forget` removes it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry

from exporters.capacity import CapacityExporter
from exporters.cross_checks import CrossChecksExporter
from exporters.discovery import DiscoveryExporter
from exporters.gpu import GpuExporter
from exporters.health import HealthExporter
from exporters.probe import ProbeExporter
from exporters.registry import MetricsPage
from exporters.server import ServerExporter, UserTrafficExporter
from probe import __version__
from probe.capacity.trend.change_detection import detect_shift, needs_confirmation
from probe.capacity.trend.fingerprint import capacity_sample, fingerprint
from probe.capacity.trend.track_record import correct, prior_forecast, track_record
from probe.config.config import OtlpConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord, Traffic
from probe.core.result import CapacityResult
from probe.core.shift import CapacitySample
from probe.core.snapshot import REPLICAS, CrossChecks, GpuSnapshot, ServerSnapshot, UserLoad, UserTotals
from probe.monitor.history_store import CanaryHistories
from probe.monitor.latency_store import LatencyDays
from probe.monitor.store import Store
from probe.runtime.cron import longest_interval_s
from probe.scrape.page_scraper import REASONS

if TYPE_CHECKING:
    from probe.monitor.otlp_export import OtlpExport

# Prometheus has the times of runs as floats, to the microsecond.
_SAME_S = 0.01
# A later run repeats none: it is of another night.
_SAME_NIGHT_S = 2 * 3600.0
# A baseline, and the runs that are compared with it.
_WHOLE_HISTORY = 40


class _OfTargets(Protocol):
    def forget(self, target: str, /) -> None: ...


class MetricsSink:
    """The measurements of one process."""

    def __init__(
        self,
        store: Path | None,
        clock: Clock,
        shard: tuple[int, int] | None = None,
        otlp: OtlpConfig | None = None,
    ) -> None:
        """Take `store`: the path of the store; None: in memory. Raise ConfigError if it cannot be opened."""
        registry = CollectorRegistry()
        self._clock = clock
        self._client = ProbeExporter({}, clock)
        self._server = ServerExporter((), REASONS)
        self._users = UserTrafficExporter({})
        self._cross_checks = CrossChecksExporter()
        self._gpus = GpuExporter(())
        self._capacity = CapacityExporter(registry)
        self.health = HealthExporter(registry, __version__)
        self.discovery = DiscoveryExporter(registry, shard)
        self.histories = CanaryHistories(store, clock.wall_s())
        self.days = LatencyDays(store, clock.wall_s())
        self.otlp = _otlp_export(otlp, clock, self.health) if otlp is not None else None
        self._by_target: tuple[_OfTargets, ...] = (
            *(self._client, self._server, self._users, self._cross_checks.relay, self._gpus),
            *(self._capacity, self.health, self.discovery, self.histories, self.days),
            *((self.otlp,) if self.otlp is not None else ()),
        )
        relays = (self._client, self._server, self._users, self._cross_checks, self._gpus, self.discovery)
        self.page = MetricsPage(registry, [exporter.relay for exporter in relays])
        self.store = Store(store, self._not_stored)
        self._capacity_samples: dict[str, list[CapacitySample]] = {}  # by target, oldest first
        self._forecasts: dict[str, CapacityResult] = {}  # the last of each target
        self._forecasts_valid_s: dict[str, float] = {}  # by target
        self._replicas: dict[str, str | None] = {}  # by target: how many are read together

    def promise(self, objectives: Iterable[Objectives]) -> None:
        """Set the objectives of all targets, including those to come."""
        self._client.set_bounds(objectives)

    def add(
        self, target: TargetConfig, models: Sequence[str], objectives: Objectives, valid_s: Sequence[float]
    ) -> list[CapacityResult]:
        """Announce a target, with the model of each kind of canary, and for how long one of them is valid.

        Return its capacity results from before a restart, the older one first.
        """
        name = target.name
        self._client.add(name, objectives)
        self._server.add(name, target.known_role)
        self._users.add(name, objectives)
        if self.otlp is not None:
            self.otlp.add(name, target.base_url)
        if target.gpu.is_read:
            self._gpus.add(name)
        self.days.open(name)
        if not target.passive:
            for kind, model, seconds in zip(target.kinds, models, valid_s, strict=True):
                self._client.start_at_zero(name, model, kind.canary.workload, Traffic.CANARY, seconds)
            self.histories.open(name, objectives)
        self._forecasts_valid_s[name] = target.capacity.forecast_valid_s
        if target.capacity.mode != "verify":
            return []
        self._capacity.start_at_zero(name, longest_interval_s(target.capacity.schedule.cron))
        self._capacity_samples[name] = self.store.capacity_samples(name)
        known = list(self.store.latest_knees(name))
        for result in known:
            self._capacity.restore(result)
            self._compare(name, str(result.context.workload["name"]))
        return known

    def tokens_since(self, target: str, started_s: float) -> int | None:
        """Return the tokens of runs that began at this wall time (s) or later, stored or not; None: unknown."""
        return self.store.tokens_since(target, started_s)

    def forget(self, target: str) -> None:
        """Remove a target's series. Its history stays in the store, and the cost of its runs stays counted."""
        for exporter in self._by_target:
            exporter.forget(target)
        self._capacity_samples.pop(target, None)
        self._forecasts.pop(target, None)
        self._forecasts_valid_s.pop(target, None)
        self._replicas.pop(target, None)

    def add_history(self, target: str, workload: str, samples: Sequence[CapacitySample]) -> None:
        """Take a history of capacity from Prometheus, for what this process and its store do not have."""
        known = self._capacity_samples.setdefault(target, [])
        times_s = [sample.at_s for sample in known]
        new = [one for one in samples if all(abs(one.at_s - at_s) > _SAME_S for at_s in times_s)]
        if new:
            self._capacity_samples[target] = sorted([*known, *new], key=lambda one: one.at_s)
            self._compare(target, workload)

    def history_since_s(self, target: str) -> float:
        """Return from which wall time on Prometheus may know more: 0 where a baseline may be missing as well."""
        samples = self._capacity_samples.get(target, [])
        return samples[-1].at_s if len(samples) >= _WHOLE_HISTORY else 0.0

    # Sink.

    def record(self, record: RequestRecord) -> None:
        self._client.observe(record, self._clock.wall_s())
        if record.traffic is Traffic.CANARY:
            self.histories.add(record)
            self.days.add(record)
        if self.otlp is not None:
            self.otlp.record(record)

    def snapshot(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        self._server.observe(target, snapshot, seconds, page_bytes)
        self._replicas[target] = snapshot.flags.get(REPLICAS)
        if snapshot.is_asleep:
            self._client.remove_up(target)

    def scrape_failed(self, target: str, reason: str) -> None:
        self._server.count_failure(target, reason)

    def users(self, target: str, totals: UserTotals) -> None:
        self._users.observe(target, totals)
        self.days.users(target, self._clock.wall_s(), totals)

    def cross_checks(self, target: str, found: CrossChecks, users: UserLoad | None) -> None:
        self._cross_checks.observe(target, found)
        since_s = self._clock.wall_s() - self._forecasts_valid_s.get(target, math.inf)
        self._capacity.publish_headroom(target, users, self._replicas.get(target), forecasts_since_s=since_s)

    def gpus(self, target: str, snapshot: GpuSnapshot | None) -> None:
        if snapshot is None:
            self._gpus.count_failure(target)
        else:
            self._gpus.observe(target, snapshot)

    def result(self, result: CapacityResult) -> None:
        """Take a capacity result. No error is raised if it cannot be stored: its tokens are spent either way."""
        forecast = self._forecasts.get(result.target)
        result = replace(result, prior_forecast=prior_forecast(forecast, result))
        self.store.add(result)  # before anything that may fail
        self._capacity.publish_forecast_error(result, forecast)
        self._capacity.observe(result)
        if (found := capacity_sample(result)) is not None:
            self._capacity_samples.setdefault(result.target, []).append(found)
            self._compare(result.target, str(result.context.workload["name"]))

    def _not_stored(self, target: str) -> None:
        if target in self._capacity_samples:  # else it has gone since its run
            self.health.count_failure("capacity", target)

    def unconfirmed_drop(self, target: str) -> CapacitySample | None:
        """Return the last sample of the target if it is so low that another run has to confirm it, else None."""
        samples = self._capacity_samples.get(target, [])
        return samples[-1] if needs_confirmation(samples) else None

    def needs_confirmation(self, result: CapacityResult) -> bool:
        drop = self.unconfirmed_drop(result.target)
        return drop is not None and drop.run in (result.id, result.confirms)

    def unrepeated_drop(self, target: str) -> str | None:
        drop = self.unconfirmed_drop(target)
        is_new = drop is not None and drop.confirms is None and self._clock.wall_s() - drop.at_s < _SAME_NIGHT_S
        return drop.run if drop is not None and is_new else None

    def corrected(self, forecast: CapacityResult) -> CapacityResult:
        """Correct a forecast by the errors of earlier forecasts with the same fingerprint, of any target."""
        errors = self.store.forecast_errors(fingerprint(forecast.model, forecast.context))
        return replace(forecast, capacity=correct(forecast.capacity, track_record(errors)))

    def forecast(self, result: CapacityResult) -> None:
        self._capacity.publish_forecast(result)
        self._forecasts[result.target] = result

    def forecast_for_users(self, result: CapacityResult) -> None:
        self._capacity.publish_for_users(result)

    def refused(self, target: str, reason: str) -> None:
        self._capacity.count_refusal(target, reason)

    def _compare(self, target: str, workload: str) -> None:
        samples = self._capacity_samples[target]
        if samples:
            self._capacity.compare(target, workload, samples[-1], detect_shift(samples))


def _otlp_export(config: OtlpConfig, clock: Clock, health: HealthExporter) -> "OtlpExport":
    from probe.monitor.otlp_export import OtlpExport  # noqa: PLC0415 - memory that only this option needs

    return OtlpExport(config, clock, health.count_otlp_failure)

"""The composition root: wires configuration, targets, schedule, measurements and pages into the monitor.

    configuration, discoveries --> TargetSet --> one TargetMonitor per target
    schedule --> TargetMonitor.send_canary / .scrape / .capacity --> MetricsSink --> /metrics, store
    App --> pages

It starts and stops the parts and reloads the configuration. It measures and decides nothing.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from exporters.registry import MetricsPage
from probe import __version__
from probe.capacity.run.other_probers import follow_others
from probe.config.config import Config
from probe.config.config_file import changes, config_hash, load_config, show
from probe.config.prometheus import PrometheusConfig
from probe.core.clock import Clock
from probe.core.errors import ConfigError, TargetError
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.target_status import FiringAlerts, OwnClock, TargetStatus
from probe.core.text import one_line
from probe.discovery.manager import DiscoveryManager
from probe.discovery.types import DiscoveredServer
from probe.monitor.bounded_log import TaskLog
from probe.monitor.desired_targets import Shard
from probe.monitor.forecast_queue import ForecastQueue
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.self_watch import SelfWatch
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_set import TargetSet
from probe.monitor.target_tasks import TargetTasks
from probe.runtime.logs import LogOutput
from probe.runtime.process import tune_interpreter
from probe.runtime.scheduler import Scheduler, TaskId
from probe.web.pages import build_pages
from probe.web.serve import serve

_log = structlog.get_logger()
# Created at startup and not replaceable while the process runs.
_FIXED = ("listen", "web_config_file", "store", "otlp")


class App:
    """The monitor: everything in one process."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        file: Path | None = None,
        shard: Shard | None = None,
        output: LogOutput | None = None,
    ) -> None:
        """Take `file`: where the configuration came from; it is reloaded when it changes. `shard`: the share of the
        targets to monitor; None: all. `output`: where the log goes.

        Raises ConfigError if the store cannot be opened.
        """
        self.config = config
        self._file = file
        self._clock = clock
        numbers = (shard.index, shard.total) if shard is not None else None
        self.measurements = MetricsSink(config.store.path, clock, numbers, config.otlp)
        self._schedule = Scheduler(
            clock, self._task_succeeded, self._task_failed, self.measurements.health.observe_lateness
        )
        self._forecasts = ForecastQueue(
            clock,
            lambda: self.config.forecast_cores,
            self._task_succeeded,
            self._task_failed,
            on_cpu=self.measurements.health.count_forecast_cpu,
        )
        runs_at_once = lambda: self.config.capacity_runs_at_once  # noqa: E731
        self._tasks = TargetTasks(self._schedule, self.measurements, clock, self._forecasts, runs_at_once)
        self._targets = TargetSet(config, shard, clock=clock, sink=self.measurements, tasks=self._tasks)
        self._discoveries = DiscoveryManager(self._discovered, self._targets.discovery_problem)
        exporters = self._targets.exporters
        self._exporters = DiscoveryManager(exporters.found, exporters.problem)
        self._self = SelfWatch(self.measurements.health, clock, output)
        self._alerts = AlertWatch(lambda: self.config, clock)
        self._task_log = TaskLog()
        self._one_change = asyncio.Lock()
        self._announce()
        self._targets.open_configured()

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None] = lambda url: None) -> None:  # noqa: ARG005
        """Serve and measure until `stop` is set, or SIGTERM or SIGINT arrives. SIGHUP reloads the configuration.

        `ready` is called with the URL of the pages. Raises ConfigError if it cannot listen.
        """
        loop = asyncio.get_running_loop()
        reload_asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        # Without a file there is nothing to reload: a terminal has closed.
        loop.add_signal_handler(signal.SIGHUP, reload_asked.set if self._file is not None else stop.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # it waited since the start: kneewatch/__init__.py
        async with serve(build_pages(self), *self.config.listen_address, self.config.web_config_file) as url:
            _log.info("kneewatch started", targets=len(self.monitors), listen=url, version=__version__)
            tune_interpreter()
            self._schedule.start()
            self._discoveries.follow(self.config.discoveries)
            self._exporters.follow(self.config.exporters)
            work = (self._self.follow, self._watch_file, partial(self._reload_when, reload_asked), self._watch_others)
            kept, store = (self.measurements.histories, self.measurements.days), self.measurements.store
            storing = (*(partial(one.keep_storing, self._clock) for one in kept), store.keep_saving)
            telling = (self.measurements.otlp.follow,) if self.measurements.otlp is not None else ()
            following = (self._alerts.follow, self._forecasts.follow)
            background = [asyncio.create_task(keep_running(each)) for each in (*work, *storing, *telling, *following)]
            ready(url)
            try:
                await stop.wait()
            finally:
                self._targets.stop_adding()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await self._targets.stop_runs("shutting down")
                await asyncio.gather(self._discoveries.close(), self._exporters.close())
                await self._schedule.stop()
                await self._targets.close()
        self.measurements.histories.store_now(self._clock.wall_s())
        self.measurements.days.store_now(self._clock.wall_s())
        self.measurements.store.close()
        _log.info("kneewatch stopped")

    # What the pages ask for.

    @property
    def is_ready(self) -> bool:
        return self._schedule.is_running

    @property
    def page(self) -> MetricsPage:
        return self.measurements.page

    @property
    def monitors(self) -> Mapping[str, TargetMonitor]:
        """Return the targets' monitors by name, in the configuration's order."""
        return self._targets.monitors

    def statuses(self) -> Sequence[TargetStatus]:
        """Return the status of each target, in the configuration's order."""
        histories, days = self.measurements.histories, self.measurements.days
        next_s = self._schedule.next_s
        return [
            replace(
                status,
                history=histories.get(status.name),
                latencies=days.get(status.name),
                next_run_s=next_s(TaskId("capacity", status.name)),
                next_forecast_s=self._forecasts.next_s(status.name),
            )
            for status in self._targets.statuses()
        ]

    def results(self, target: str | None = None) -> Sequence[CapacityResult]:
        """Return the latest capacity results, newest first."""
        return self.measurements.store.latest(target)

    def result_of(self, result_id: str) -> CapacityResult | None:
        """Return one capacity result, or None."""
        return self.measurements.store.get(result_id)

    def firing_alerts(self) -> FiringAlerts | None:
        """Return which alerts fire; None without a Prometheus."""
        return self._alerts.last

    def own_clock(self) -> OwnClock | None:
        """Return how late this process took its timestamps in the last minutes."""
        return self._self.clock

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Return the host names accepted for the pages: the one listened on, and the configured ones."""
        return self.config.page_hosts

    def discovery_problems(self) -> Mapping[str, str]:
        """Return why each failing discovery cannot be asked, or what it leaves out."""
        return self._targets.discovery_problems()

    def config_text(self) -> str:
        """Return the effective configuration, secrets hidden."""
        return show(self.config)

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        """Send one request now, of the canary's workload or the one named. Raise KeyError for an unknown name."""
        return await self.monitors[target].on_demand(workload)

    def measure_capacity_in(self, target: str, seconds: float) -> None:
        """Bring a target's next scheduled capacity run forward."""
        self._schedule.bring_forward(TaskId("capacity", target), seconds)

    # What changes the targets.

    async def reload(self) -> str | None:
        """Reload the configuration; unchanged targets go on. Return the error if it is refused, or None."""
        if self._file is None:
            return "there is no configuration file"
        async with self._one_change:
            failure = "could not be read, the previous one stays in use"
            try:
                config = await asyncio.to_thread(load_config, self._file)
                _check_fixed(self._file, self.config, config)
                failure = "was applied only in part"
                await self._apply(config)
            except ConfigError as error:
                self.measurements.health.publish_refused_config()
                _log.error("the configuration is refused, the previous one stays in use", detail=str(error))
                return str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is: later reloads must work
                self.measurements.health.publish_refused_config()
                _log.error(f"the configuration {failure}", exc_info=error)
                return f"{self._file}: it {failure} ({one_line(str(error) or type(error).__name__, 200)})"
            return None

    async def _apply(self, config: Config) -> None:
        self.config = config
        self._announce()
        self._targets.configure(config)
        self._discoveries.follow(config.discoveries)
        self._exporters.follow(config.exporters)
        await self._targets.reconcile()
        _log.info("the configuration is loaded", targets=len(self.monitors), hash=config_hash(config))

    def _announce(self) -> None:
        """Set the series that follow from the configuration alone."""
        self.measurements.promise([self.config.objectives_of(target) for target in self.config.targets])
        least = {name: found.min_targets for name, found in self.config.discoveries.items()}
        self.measurements.discovery.announce(least)
        links = {"pages": self.config.web_external_url or "", "grafana": self.config.grafana_url or ""}
        self.measurements.health.publish_config(config_hash(self.config), self._clock.wall_s(), **links)

    async def _discovered(self, discovery: str, servers: tuple[DiscoveredServer, ...]) -> None:
        async with self._one_change:
            self._targets.discovered(discovery, servers)
            await self._targets.reconcile()

    def _task_succeeded(self, task: TaskId) -> None:
        self.measurements.health.record_success(task.task, task.target, self._clock.wall_s())

    def _task_failed(self, task: TaskId, problem: str, error: BaseException | None) -> None:
        self.measurements.health.count_failure(task.task, task.target)
        self._task_log.add(task, problem, error)
        if problem == "late" and task.task == "capacity" and (monitor := self.monitors.get(task.target)) is not None:
            self._tasks.give_up(monitor)

    # Background work.

    async def _watch_others(self) -> None:
        """Follow which servers other probers load: their traffic must not be counted as user traffic."""
        await follow_others(lambda: self.config, self._targets.servers, self._clock, self._targets.set_other_probers)

    async def _watch_file(self) -> None:
        if self._file is None:
            await asyncio.Event().wait()
        else:
            async for _ in changes(self._file):
                await self.reload()

    async def _reload_when(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            await self.reload()


def _check_fixed(file: Path, now: Config, new: Config) -> None:
    """Raise ConfigError for a change that needs a restart."""
    changed = [key for key in _FIXED if getattr(now, key) != getattr(new, key)]
    if changed:
        raise ConfigError(f"{file}: {changed[0]}: cannot change while Kneewatch runs; restart it, or change it back")


_AGAIN_S = 60.0  # before background work that ended is started again: it should not have ended


async def keep_running(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work until cancelled. Log it and start it again when it ends or raises."""
    while True:
        try:
            await work()
            _log.error("background work has ended, restarting it", work=_name(work), in_s=_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - whatever it is: it would be lost with the task
            _log.error("background work broke, restarting it", work=_name(work), in_s=_AGAIN_S, exc_info=error)
        await asyncio.sleep(_AGAIN_S)


def _name(work: Callable[[], Awaitable[None]]) -> str:
    named = work.func if isinstance(work, partial) else work
    return getattr(named, "__name__", "").strip("_")


_EVERY_S = 15.0


class AlertWatch:
    """The last answer; None without a Prometheus, and before its first answer."""

    def __init__(self, config: Callable[[], Config], clock: Clock) -> None:
        """Take `config`, which returns the current configuration."""
        self._config, self._clock = config, clock
        self.last: FiringAlerts | None = None

    async def follow(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            prometheus = self._config().prometheus
            self.last = await self._ask(prometheus) if prometheus is not None else None
            await asyncio.sleep(_EVERY_S)

    async def _ask(self, prometheus: PrometheusConfig) -> FiringAlerts:
        from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

        try:
            alerts = await Prometheus(prometheus).firing_alerts()
        except TargetError as error:
            return FiringAlerts((), self._clock.wall_s(), str(error))
        return FiringAlerts(alerts, self._clock.wall_s())

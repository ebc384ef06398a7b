"""The composition root: wires configuration, targets, schedule, exporters, store and pages into the monitor.

    schedule --> TargetWatch.canary / .scrape / .capacity --> Sink (this App)
    App --> exporters (/metrics), store (/api/v1/runs), pages (/)

It is the only module that knows everyone; nothing here measures or decides.
"""

import asyncio
import gc
import signal
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from exporters.capacity import CapacityExporter
from exporters.gpu import GpuExporter
from exporters.health import HealthExporter
from exporters.joined import JoinedExporter
from exporters.page import Page
from exporters.probe import ProbeExporter
from exporters.server import ServerExporter, UsersExporter
from probe import __version__
from probe.capacity.fingerprint import figure
from probe.capacity.shift import shift, wants_confirmation
from probe.clock import Clock
from probe.config import Config, config_hash, show
from probe.config_watch import verdicts
from probe.errors import TargetError
from probe.gpu.readers import GpuReaders
from probe.load.lag import lags
from probe.load.plan import firing_pages
from probe.records import (
    CapacityResult,
    CrossChecks,
    Figure,
    GpuSnapshot,
    RequestRecord,
    ServerSnapshot,
    TargetStatus,
    Traffic,
    UsersTotals,
)
from probe.schedule import Schedule, TaskId
from probe.server.scrape import REASONS
from probe.store import Store
from probe.targets.static import page_of
from probe.users import UsersLedger
from probe.watch import TargetWatch
from probe.web.pages import build_pages
from probe.web.serve import serve

_log = structlog.get_logger()
_LAG_INTERVAL_S = 0.25
# New objects before the collector looks; 700 unless told otherwise, which a metrics page of two hundred targets makes
# a hundred times over, each tenth time with all of the heap to look at.
_GARBAGE = 10_000
# How long a thread that writes a page keeps the event loop waiting, 5 ms unless told otherwise: each stamp of a token
# would be as late.
_SWITCH_S = 0.0005


class App:
    """The monitor: everything of one process."""

    def __init__(self, config: Config, clock: Clock, file: Path | None = None) -> None:
        """`file`: where the configuration came from, to see when it changes.

        Raises ConfigError where the store cannot be opened.
        """
        self.config = config
        self._file = file
        self._clock = clock
        registry = CollectorRegistry()
        objectives = {target.name: config.objectives_of(target) for target in config.targets}
        self._client = ProbeExporter(objectives)
        self._server = ServerExporter(tuple(target.name for target in config.targets), REASONS)
        self._users = UsersExporter(objectives)
        self._joined = JoinedExporter()
        self._gpus = GpuExporter(tuple(target.name for target in config.targets if target.gpu.is_read))
        self._capacity = CapacityExporter(registry)
        self._health = HealthExporter(registry, __version__, config_hash(config))
        relays = (self._client.relay, self._server.relay, self._users.relay, self._joined.relay, self._gpus.relay)
        self.page = Page(registry, relays)
        self._store = Store(config.store.path)
        self._figures: dict[str, list[Figure]] = {}  # the history of capacity by target, oldest first
        self._forecasts: dict[str, CapacityResult] = {}  # the last of each target
        self._one_forecast = asyncio.Lock()
        self._schedule = Schedule(self._task_succeeded, self._task_failed, self._health.late)
        self._one_run = asyncio.Lock()
        self._readers = GpuReaders(clock)
        ledgers: dict[str, UsersLedger] = defaultdict(UsersLedger)  # by page: two targets may share one
        self.watches: dict[str, TargetWatch] = {}
        for i, target in enumerate(config.targets):
            watch = TargetWatch(
                config,
                target,
                clock,
                self,
                firing_pages(config, target.name),
                spent=partial(self._store.tokens_since, target.name),
                ledger=ledgers[page_of(target)],
                read_gpus=self._readers.reader(target.gpu),
            )
            self.watches[target.name] = watch
            self._plan(watch, i / len(config.targets))

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None] = lambda url: None) -> None:  # noqa: ARG005
        """Serves and measures until `stop` is set, or SIGTERM or SIGINT arrives.

        `ready` is called with the address of the pages. Raises ConfigError where it cannot listen.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with serve(build_pages(self), *self.config.listen_address) as url:
            _log.info("kneewatch watches", targets=len(self.watches), listen=url, version=__version__)
            # What is there now stays: the collector, which holds everything up, is spared looking at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GARBAGE)
            sys.setswitchinterval(_SWITCH_S)
            self._schedule.start()
            beside = [asyncio.create_task(self._watch_loop()), asyncio.create_task(self._watch_file())]
            ready(url)
            try:
                await stop.wait()
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*(watch.end_load() for watch in self.watches.values()))
                await self._schedule.stop()
                await asyncio.gather(*(watch.close() for watch in self.watches.values()), self._readers.close())
        self._store.close()
        _log.info("kneewatch stopped")

    # What the pages ask for.

    @property
    def ready(self) -> bool:
        return self._schedule.running

    def statuses(self) -> Sequence[TargetStatus]:
        """Every target, in the configuration's order."""
        return [watch.status() for watch in self.watches.values()]

    def results(self, target: str | None = None) -> Sequence[CapacityResult]:
        """The newest capacity results, newest first."""
        return self._store.latest(target)

    def result_of(self, result_id: str) -> CapacityResult | None:
        """One capacity result, or None."""
        return self._store.get(result_id)

    def config_text(self) -> str:
        """The effective configuration, secrets hidden."""
        return show(self.config)

    def measure_capacity_in(self, target: str, seconds: float) -> None:
        """Brings a target's next scheduled capacity run forward."""
        self._schedule.bring_forward(TaskId("capacity", target), seconds)

    # Sink: where the targets' measurements go.

    def record(self, record: RequestRecord) -> None:
        self._client.observe(record, self._clock.wall_s())

    def snapshot(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        self._server.observe(target, snapshot, seconds, page_bytes)

    def unread(self, target: str, reason: str) -> None:
        self._server.failed(target, reason)

    def users(self, target: str, totals: UsersTotals) -> None:
        self._users.observe(target, totals)

    def joined(self, target: str, found: CrossChecks) -> None:
        self._joined.observe(target, found)
        self._capacity.live(target, self.watches[target].users)

    def gpus(self, target: str, snapshot: GpuSnapshot | None) -> None:
        if snapshot is None:
            self._gpus.failed(target)
        else:
            self._gpus.observe(target, snapshot)

    def result(self, result: CapacityResult) -> None:
        loaded = self.watches[result.target].server
        for watch in self.watches.values():
            if watch.server == loaded:
                watch.load_ended()
        self._capacity.verified(result, self._forecasts.get(result.target))
        self._capacity.observe(result)  # first: a full disk takes the history, not the figure
        if (found := figure(result)) is not None:
            self._figures.setdefault(result.target, []).append(found)
            self._compare(result)
        self._store.add(result)

    def dropped(self, result: CapacityResult) -> bool:
        return figure(result) is not None and wants_confirmation(self._figures[result.target])

    def forecast(self, result: CapacityResult) -> None:
        self._capacity.restore(result)
        self._forecasts[result.target] = result

    def refused(self, target: str, reason: str) -> None:
        self._capacity.refused(target, reason)

    def _plan(self, watch: TargetWatch, position: float) -> None:
        """Its tasks. `position`: the target's place among all, from 0 to 1."""
        target = watch.config
        name, wall_s = target.name, self._clock.wall_s()
        for task, seconds, work in _tasks(watch):
            # A fleet's targets one after the other: two hundred canaries at once would be timed by a busy client.
            self._schedule.every(TaskId(task, name), seconds, work, first_s=position * seconds)
            self._health.expect(task, name, seconds, wall_s)
        if not target.passive:
            self._client.expect(name, watch.model, target.canary.workload, Traffic.CANARY)
        if target.capacity.mode != "off":
            every_s = target.capacity.forecast_every
            self._schedule.every(TaskId("forecast", name), every_s, partial(self._forecast, watch))
            self._health.expect("forecast", name, every_s, wall_s)
        if target.capacity.mode == "verify":
            schedule = target.capacity.schedule
            self._schedule.cron(
                TaskId("capacity", name), schedule.cron, schedule.timezone, partial(self._capacity_run, watch)
            )
            self._health.expect("capacity", name, None, wall_s)
            self._capacity.expect(name)
            self._figures[name] = self._store.figures(name)
            for known in self._store.latest_knees(name):
                self._capacity.restore(known)
                self._compare(known)
                watch.restore(known)

    async def _forecast(self, watch: TargetWatch) -> None:
        """One after the other: each takes a core for some seconds. The next one is sooner where too little was seen."""
        async with self._one_forecast:
            if self._schedule.running:
                again_s = await watch.forecast()
                if again_s is not None and again_s < watch.config.capacity.forecast_every and self._schedule.running:
                    self._schedule.bring_forward(TaskId("forecast", watch.config.name), again_s)

    async def _capacity_run(self, watch: TargetWatch) -> None:
        """One after the other: two at once would each measure the other's load, and share one client."""
        async with self._one_run:
            if self._schedule.running:
                await self._recall(watch.config.name)
                await watch.capacity()

    async def _recall(self, target: str) -> None:
        """Where the store has no capacity of a target, its history is what Prometheus remembers of it."""
        if self._figures.get(target) or self.config.prometheus is None:
            return
        from probe.prometheus import Prometheus  # noqa: PLC0415 - memory that only this option needs

        try:
            prometheus = Prometheus(self.config.prometheus.url)
            self._figures[target] = await prometheus.capacity_history(target, self._clock.wall_s())
        except TargetError as error:
            _log.warning("no history of capacity", target=target, detail=str(error))

    def _compare(self, result: CapacityResult) -> None:
        # Of its own kind: restored are a measurement and a forecast, and one of them is the older one.
        forecast = result.capacity.mode == "forecast"
        alike = [figure for figure in self._figures[result.target] if (figure.mode == "forecast") == forecast]
        self._capacity.compare(result, shift(alike))

    def _task_succeeded(self, task: TaskId) -> None:
        self._health.succeeded(task.task, task.target, self._clock.wall_s())

    def _task_failed(self, task: TaskId, problem: str, error: BaseException | None) -> None:
        self._health.failed(task.task, task.target)
        if error is not None:
            _log.error("task failed", task=task.task, target=task.target, exc_info=error)
        else:
            _log.warning("task did not run", task=task.task, target=task.target, problem=problem)

    async def _watch_loop(self) -> None:
        async for lag in lags(self._clock, _LAG_INTERVAL_S):
            self._health.loop_lag(lag)

    async def _watch_file(self) -> None:
        if self._file is not None:
            async for valid in verdicts(self._file):
                self._health.config_file(valid=valid)


def _tasks(watch: TargetWatch) -> Iterator[tuple[str, float, Callable[[], Awaitable[object]]]]:
    """What is done of a target again and again: its name, how often, and how."""
    target = watch.config
    if not target.passive:
        yield "canary", target.canary.every, watch.canary
    yield "scrape", target.scrape, watch.scrape
    if target.gpu.is_read:
        yield "gpu", target.gpu.every, watch.scrape_gpus

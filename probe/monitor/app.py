"""The composition root: wires configuration, targets, schedule, measurements and pages into the monitor.

    configuration, discoveries --> Roster --> one TargetWatch a target
    schedule --> TargetWatch.canary / .scrape / .capacity --> Measurements --> /metrics, store
    App --> pages

It is the only module that knows everyone; nothing here measures or decides.
"""

import asyncio
import gc
import signal
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from exporters.metrics_page import MetricsPage
from probe import __version__
from probe.capacity.run.other_probers import follow_others
from probe.capacity.run.plan import firing_pages
from probe.config.file_watch import changes
from probe.config.models import Config, config_hash, load_config, show
from probe.core.clock import Clock
from probe.core.errors import ConfigError, TargetError
from probe.core.request import RequestRecord
from probe.core.result import CapacityResult
from probe.core.target_status import TargetStatus
from probe.core.text import one_line
from probe.discovery.manager import DiscoveryManager
from probe.discovery.types import DiscoveredServer
from probe.load.loop_lag import lags
from probe.monitor.gpu_readers import GpuReaders
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_set import DesiredTarget, Shard, TargetSet
from probe.monitor.wiring import page_of, server_of
from probe.observe.user_traffic import UserTraffic
from probe.runtime.scheduler import Scheduler, TaskId
from probe.web.pages import build_pages
from probe.web.serve import serve

_log = structlog.get_logger()
_LAG_INTERVAL_S = 0.25
_AGAIN_S = 60.0  # after what should not have happened
# New objects before the collector looks; 700 unless told otherwise, which a metrics page of two hundred targets makes
# a hundred times over, each tenth time with all of the heap to look at.
_GARBAGE = 10_000
# How long a thread that writes a page keeps the event loop waiting, 5 ms unless told otherwise: each stamp of a token
# would be as late.
_SWITCH_S = 0.0005
# What is made when the process starts, and cannot be made again while it runs.
_FIXED = ("listen", "web_config_file", "store")


class App:
    """The monitor: everything of one process."""

    def __init__(self, config: Config, clock: Clock, file: Path | None = None, shard: Shard | None = None) -> None:
        """`file`: where the configuration came from, to take it anew when it changes. `shard`: which of the targets are
        ours; None: all.

        Raises ConfigError where the store cannot be opened.
        """
        self.config = config
        self._file = file
        self._clock = clock
        told = (shard.index, shard.total) if shard is not None else None
        self.measurements = MetricsSink(config.store.path, clock, told)
        self.watches: dict[str, TargetMonitor] = {}
        self._wanted: dict[str, DesiredTarget] = {}  # what each watch is there for, and made of
        self._ledgers: dict[str, UserTraffic] = defaultdict(UserTraffic)  # by page: two targets may share one
        self._pages: dict[str, str] = {}  # by target
        self._ending = False
        self._schedule = Scheduler(self._task_succeeded, self._task_failed, self.measurements.health.late)
        self._readers = GpuReaders(clock)
        self._one_change, self._one_run, self._one_forecast = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._problems: dict[str, str] = {}  # why a discovery cannot be asked
        self._told: dict[str, str] = {}  # what of it the log has already
        self._roster = TargetSet(config, shard)
        self._discoveries = DiscoveryManager(self._discovered, self._discovery_problem)
        self._promise()
        wanted = list(self._roster.wanted().values())
        for i, one in enumerate(wanted):
            self._begin(one, i / len(wanted))

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None] = lambda url: None) -> None:  # noqa: ARG005
        """Serves and measures until `stop` is set, or SIGTERM or SIGINT arrives. SIGHUP takes the configuration anew.

        `ready` is called with the address of the pages. Raises ConfigError where it cannot listen.
        """
        loop = asyncio.get_running_loop()
        again = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, again.set)
        async with serve(build_pages(self), *self.config.listen_address, self.config.web_config_file) as url:
            _log.info("kneewatch watches", targets=len(self.watches), listen=url, version=__version__)
            # What is there now stays: the collector, which holds everything up, is spared looking at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GARBAGE)
            sys.setswitchinterval(_SWITCH_S)
            self._schedule.start()
            self._discoveries.follow(self.config.templates)
            work = (self._watch_loop, self._watch_file, partial(self._reload_when, again), self._watch_others)
            beside = [asyncio.create_task(_kept_up(each)) for each in work]
            ready(url)
            try:
                await stop.wait()
            finally:
                self._ending = True
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
                await asyncio.gather(*(watch.end_load("shutting down") for watch in self.watches.values()))
                await self._discoveries.close()
                await self._schedule.stop()
                await asyncio.gather(*(watch.close() for watch in self.watches.values()), self._readers.close())
        self.measurements.store.close()
        _log.info("kneewatch stopped")

    # What the pages ask for.

    @property
    def ready(self) -> bool:
        return self._schedule.running

    @property
    def page(self) -> MetricsPage:
        """The series."""
        return self.measurements.page

    def statuses(self) -> Sequence[TargetStatus]:
        """Every target, in the configuration's order."""
        found = self._wanted
        return [
            replace(watch.status(), discovery=found[name].discovery, labels=found[name].labels)
            for name, watch in self.watches.items()
        ]

    def results(self, target: str | None = None) -> Sequence[CapacityResult]:
        """The newest capacity results, newest first."""
        return self.measurements.store.latest(target)

    def result_of(self, result_id: str) -> CapacityResult | None:
        """One capacity result, or None."""
        return self.measurements.store.get(result_id)

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """The names that pages are asked for by: the one listened on, and those of the configuration."""
        return (self.config.listen_address[0], *self.config.web_allowed_hosts)

    def discovery_problems(self) -> Mapping[str, str]:
        """Why a discovery cannot be asked, or what it leaves out, by its name; those that are well are not in it."""
        return {one.name: self._told[one.name] for one in self.config.templates if one.name in self._told}

    def config_text(self) -> str:
        """The effective configuration, secrets hidden."""
        return show(self.config)

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        """One request now, of the target's own workload or of another one. Raises KeyError where one is not known."""
        return await self.watches[target].on_demand(workload)

    def measure_capacity_in(self, target: str, seconds: float) -> None:
        """Brings a target's next scheduled capacity run forward."""
        self._schedule.bring_forward(TaskId("capacity", target), seconds)

    # What is watched.

    async def reload(self) -> str | None:
        """Takes the configuration anew: what is unchanged in it goes on. Returns why not, where it is refused."""
        if self._file is None:
            return "there is no configuration file"
        async with self._one_change:
            try:
                config = await asyncio.to_thread(load_config, self._file)
                _check_fixed(self._file, self.config, config)
            except ConfigError as error:
                self.measurements.health.refused()
                _log.error("the configuration is refused, the one before stands", detail=str(error))
                return str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is: what asks for reloads must go on
                self.measurements.health.refused()
                _log.error("the configuration could not be read, the one before stands", exc_info=error)
                return f"{self._file}: it could not be read ({one_line(str(error) or type(error).__name__, 200)})"
            try:
                self.config = config
                self._promise()
                self._roster.configured(config)
                for template in config.templates:
                    self.measurements.discovery.found(template.name, self._roster.count(template.name))
                self._discoveries.follow(config.templates)
                await self._settle()
            except Exception as error:  # noqa: BLE001 - whatever it is: what asks for reloads must go on
                self.measurements.health.refused()
                _log.error("the configuration could not be taken as a whole", exc_info=error)
                return f"{self._file}: it could not be taken as a whole ({type(error).__name__}); the log says more"
            _log.info("the configuration is taken", targets=len(self.watches), hash=config_hash(config))
            return None

    def _promise(self) -> None:
        """What the configuration says of all targets."""
        self.measurements.promise([self.config.objectives_of(target) for target in self.config.targets])
        self.measurements.discovery.announce(template.name for template in self.config.templates)
        self.measurements.health.configured(config_hash(self.config), self._clock.wall_s())

    async def _discovered(self, discovery: str, servers: tuple[DiscoveredServer, ...]) -> None:
        async with self._one_change:
            self._roster.found(discovery, servers)
            self.measurements.discovery.found(discovery, len(servers))
            await self._settle()

    def _discovery_problem(self, discovery: str, problem: str | None) -> None:
        if problem is None:
            self._problems.pop(discovery, None)
        else:
            self._problems[discovery] = problem
        self._tell(discovery)

    def _tell(self, discovery: str) -> None:
        """Whether all is well with a discovery, and what it found."""
        problem = self._problems.get(discovery) or self._roster.left_out.get(discovery)
        self.measurements.discovery.failing(discovery, failing=problem is not None)
        if problem == self._told.get(discovery):
            return
        if problem is None:
            del self._told[discovery]
            _log.info("discovery is well again", target=discovery)
        else:
            self._told[discovery] = problem
            _log.warning("discovery", target=discovery, problem=problem)

    async def _settle(self) -> None:
        """Ends the watches that are not wanted any more, or not as they are, and begins those that are missing.

        There may be a thousand of each: between any two the loop does what else is due. Load workers that hear nothing
        for two seconds end their load, whichever target's it is.
        """
        wanted = self._roster.wanted()
        kept = {name for name, had in self._wanted.items() if name in wanted and wanted[name].terms == had.terms}
        for name in kept:
            self._keep(name, wanted[name])
        async with asyncio.TaskGroup() as ending:
            for name in [name for name in self._wanted if name not in kept]:
                ending.create_task(self._end(name))
                await asyncio.sleep(0)
        new = [one for name, one in wanted.items() if name not in self.watches]
        for i, one in enumerate(new):
            await asyncio.sleep(0)
            if self._ending:
                return  # nobody would close it
            try:
                self._begin(one, i / len(new))
            except Exception as error:  # noqa: BLE001 - one that cannot be watched keeps no other from it
                _log.error("a target cannot be watched", target=one.config.name, exc_info=error)
                await self._end(one.config.name)
        self.watches = {name: self.watches[name] for name in wanted if name in self.watches}
        for template in self.config.templates:
            self._tell(template.name)

    def _keep(self, name: str, one: DesiredTarget) -> None:
        """A watch that goes on; what it is not made of may be another."""
        watch, had = self.watches[name], self._wanted[name]
        self._wanted[name] = one
        watch.hold_load(one.hold)
        watch.offer(self.config)
        if (one.discovery, one.labels) != (had.discovery, had.labels):
            self._describe(one)

    def _begin(self, one: DesiredTarget, position: float) -> None:
        """`position`: the target's place among those that are new, from 0 to 1."""
        target, name, page = one.config, one.config.name, page_of(one.config)
        watch = TargetMonitor(
            self.config,
            target,
            self._clock,
            self.measurements,
            firing_pages(self.config, name),
            spent=partial(self.measurements.tokens_since, name),
            loaded=partial(self._load_ended, server_of(target)),
            ledger=self._ledgers[page],
            read_gpus=self._readers.reader(target.gpu),
        )
        self.watches[name], self._wanted[name], self._pages[name] = watch, one, page
        watch.hold_load(one.hold)
        for known in self.measurements.add(target, watch.model, watch.objectives):
            watch.restore(known)
        self._describe(one)
        self._plan(watch, position)

    def _describe(self, one: DesiredTarget) -> None:
        if one.discovery is not None:
            self.measurements.discovery.describe(one.config.name, one.discovery, one.labels)

    async def _end(self, name: str) -> None:
        """Takes a target away, whatever breaks."""
        try:
            await self._remove(name)
        except Exception as error:  # noqa: BLE001 - one that does not end well keeps no other from it
            _log.error("a target that is gone did not end well", target=name, exc_info=error)

    async def _remove(self, name: str) -> None:
        """Ends all that is under way for a target, and takes its series away."""
        watch = self.watches.pop(name, None)
        self._wanted.pop(name, None)
        if watch is None:
            return
        try:
            await watch.end_load("the target is not watched any more")
            await self._schedule.drop(name)
            await watch.close()
        finally:
            self.measurements.forget(name)
            page = self._pages.pop(name)
            if page not in self._pages.values():
                self._ledgers.pop(page, None)

    def _load_ended(self, server: str) -> None:
        for watch in self.watches.values():
            if watch.server == server:
                watch.load_ended()

    # What is done.

    def _plan(self, watch: TargetMonitor, position: float) -> None:
        """Its tasks, spread over their intervals by its position."""
        target, health = watch.config, self.measurements.health
        name, wall_s = target.name, self._clock.wall_s()
        for task, seconds, work in _tasks(watch):
            # A fleet's targets one after the other: two hundred canaries at once would be timed by a busy client.
            self._schedule.every(TaskId(task, name), seconds, work, first_s=position * seconds)
            health.expect(task, name, seconds, wall_s)
        if target.capacity.mode != "off":
            every_s = target.capacity.forecast_every
            self._schedule.every(TaskId("forecast", name), every_s, partial(self._forecast, watch))
            health.expect("forecast", name, every_s, wall_s)
        if target.capacity.mode == "verify":
            schedule = target.capacity.schedule
            self._schedule.cron(
                TaskId("capacity", name), schedule.cron, schedule.timezone, partial(self._capacity_run, watch)
            )
            health.expect("capacity", name, None, wall_s)

    async def _forecast(self, watch: TargetMonitor) -> None:
        """One after the other: each takes a core for some seconds. The next one is sooner where too little was seen."""
        async with self._one_forecast:
            if self._schedule.running:
                again_s = await watch.forecast()
                if again_s is not None and again_s < watch.config.capacity.forecast_every and self._schedule.running:
                    self._schedule.bring_forward(TaskId("forecast", watch.config.name), again_s)

    async def _capacity_run(self, watch: TargetMonitor) -> None:
        """One after the other: two at once would each measure the other's load, and share one client."""
        async with self._one_run:
            if self._schedule.running:
                await self._recall(watch.config.name)
                await watch.capacity()

    async def _recall(self, target: str) -> None:
        """Where the store has no capacity of a target, its history is what Prometheus remembers of it."""
        if self.measurements.has_history(target) or self.config.prometheus is None:
            return
        from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

        try:
            prometheus = Prometheus(self.config.prometheus.url)
            self.measurements.recalled(target, await prometheus.capacity_history(target, self._clock.wall_s()))
        except TargetError as error:
            _log.warning("no history of capacity", target=target, detail=str(error))

    def _task_succeeded(self, task: TaskId) -> None:
        self.measurements.health.succeeded(task.task, task.target, self._clock.wall_s())

    def _task_failed(self, task: TaskId, problem: str, error: BaseException | None) -> None:
        self.measurements.health.failed(task.task, task.target)
        if error is not None:
            _log.error("task failed", task=task.task, target=task.target, exc_info=error)
        else:
            _log.warning("task did not run", task=task.task, target=task.target, problem=problem)

    async def _watch_loop(self) -> None:
        async for lag in lags(self._clock, _LAG_INTERVAL_S):
            self.measurements.health.loop_lag(lag)

    async def _watch_others(self) -> None:
        """Users are not told from what another prober sends."""
        await follow_others(lambda: self.config, self._servers, self._clock, self._others_load)

    def _servers(self) -> set[str]:
        return {watch.server for watch in self.watches.values()}

    def _others_load(self, servers: Collection[str]) -> None:
        for watch in self.watches.values():
            watch.others_load(loading=watch.server in servers)

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


async def _kept_up(work: Callable[[], Awaitable[None]]) -> None:
    """Work that goes on beside the schedule until it is cancelled: begun again where it ends, and that is said."""
    while True:
        try:
            await work()
            _log.error("background work has ended, it is begun again", work=_name(work), in_s=_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - whatever it is: nobody else would see it
            _log.error("background work broke, it is begun again", work=_name(work), in_s=_AGAIN_S, exc_info=error)
        await asyncio.sleep(_AGAIN_S)


def _name(work: Callable[[], Awaitable[None]]) -> str:
    named = work.func if isinstance(work, partial) else work
    return getattr(named, "__name__", "").strip("_")


def _tasks(watch: TargetMonitor) -> Iterator[tuple[str, float, Callable[[], Awaitable[object]]]]:
    """What is done of a target again and again: its name, how often, and how."""
    target = watch.config
    if not target.passive:
        yield "canary", target.canary.every, watch.canary
    yield "scrape", target.scrape, watch.scrape
    if target.gpu.is_read:
        yield "gpu", target.gpu.every, watch.scrape_gpus


def _check_fixed(file: Path, now: Config, new: Config) -> None:
    """Raises ConfigError for a change that only a restart can make."""
    changed = [key for key in _FIXED if getattr(now, key) != getattr(new, key)]
    if changed:
        raise ConfigError(f"{file}: {changed[0]}: cannot change while Kneewatch runs; restart it, or change it back")

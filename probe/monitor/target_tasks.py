"""The scheduled tasks of each target: canary, scrape, GPU scrape, forecast and capacity run."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import structlog

from probe.config.canaries import MAX_CANARIES
from probe.config.config import Config
from probe.config.prometheus import PrometheusConfig
from probe.config.schedule_checks import run_times
from probe.config.time_limits import canary_limits
from probe.core.clock import Clock
from probe.core.durations import format_duration
from probe.core.errors import TargetError
from probe.monitor.forecast_queue import FORECAST, ForecastQueue
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.run_slots import RunSlots
from probe.monitor.target_monitor import TargetMonitor
from probe.runtime.scheduler import Scheduler, TaskId

_log = structlog.get_logger()
# More than a valid configuration can reach: at most MAX_CANARIES are due within a timeout, a question with a known
# answer may take another one, and asking for the model and an early timer add a few. So no canary is skipped because
# the server is slow.
_CANARIES_AT_ONCE = 3 * MAX_CANARIES
# What disturbs one run often disturbs the next one at once, and hardly one an hour later; a nightly drop still pages
# before the day's peak.
_CONFIRMED_IN_S = 3600.0
# A confirmation that a restart interrupted goes on soon, with time for the first canary, and not in the next morning.
_GOES_ON_IN_S = 60.0
_GOES_ON_FOR_S = 3 * 3600.0
_ASKED_EVERY_S = 600.0


class TargetTasks:
    """The tasks of all targets of one process."""

    def __init__(
        self,
        schedule: Scheduler,
        sink: MetricsSink,
        clock: Clock,
        forecasts: ForecastQueue,
        runs_at_once: Callable[[], int] = lambda: 1,
    ) -> None:
        """Take `runs_at_once`: returns how many capacity runs may go on at once."""
        self._schedule, self._sink, self._clock, self._forecasts = schedule, sink, clock, forecasts
        self._slots, self._one_question = RunSlots(runs_at_once), asyncio.Lock()
        self._recalled: set[str] = set()  # targets whose history Prometheus has told
        self._began_s: dict[str, float] = {}  # when a target's last run began, whatever became of it

    def plan(self, monitor: TargetMonitor, config: Config, position: float, *, is_found: bool = False) -> None:
        """Schedule a target's tasks. `position`, from 0 to 1, is where in its interval each one first runs.

        `is_found`: it is one of a discovery's, whose capacity runs are spread.
        """
        target, health = monitor.config, self._sink.health
        name, wall_s = target.name, self._clock.wall_s()
        # Spread the targets of a fleet: two hundred canaries at once would be timed by a busy client.
        for task, seconds, work in _interval_tasks(monitor):
            self._schedule.every(TaskId(task, name), seconds, work, first_s=position * seconds)
            health.announce_task(task, name, seconds, wall_s)
        if not target.passive:
            self._plan_canaries(monitor, config, position, wall_s)
        if target.capacity.mode != "off":
            every_s = target.capacity.forecast_every
            self._forecasts.add(name, every_s, monitor.forecast)
            health.announce_task(FORECAST, name, every_s, wall_s)
        if target.capacity.mode == "verify":
            run = partial(self.capacity_run, monitor, config.prometheus)
            grace_s = target.capacity.schedule.grace
            self._schedule.cron(TaskId("capacity", name), run_times(target, is_found=is_found), run, grace_s=grace_s)
            health.announce_task("capacity", name, None, wall_s)
            self._go_on(name)
            if config.prometheus is not None:
                health.announce_task("history", name, None, wall_s)
                ask = partial(self.recall, name, monitor.capacity_workload, config.prometheus)
                self._schedule.every(TaskId("history", name), _ASKED_EVERY_S, ask)

    def _plan_canaries(self, monitor: TargetMonitor, config: Config, position: float, wall_s: float) -> None:
        """Schedule each kind of canary. They share their series, with the shortest interval and the longest timeout."""
        name, kinds = monitor.config.name, [kind.canary for kind in monitor.config.kinds]
        for i, kind in enumerate(kinds):
            first_s = (
                (position + i / len(kinds)) % 1.0 * kind.every
            )  # apart, so that they do not time each other's load
            work = partial(monitor.send_canary, i)
            self._schedule.every(
                TaskId("canary", name, i), kind.every, work, first_s=first_s, at_once=_CANARIES_AT_ONCE
            )
        self._sink.health.announce_task("canary", name, min(kind.every for kind in kinds), wall_s)
        limits_s = (canary_limits(config, kind).answer_s() for kind in monitor.config.kinds)
        self._sink.health.publish_canary_timeout(name, max(limits_s))

    async def drop(self, target: str) -> None:
        """Remove a target's tasks. Cancel those that run, and wait until they have ended."""
        await asyncio.gather(self._schedule.drop(target), self._forecasts.drop(target))
        self._recalled.discard(target)
        self._began_s.pop(target, None)

    async def capacity_run(self, monitor: TargetMonitor, prometheus: PrometheusConfig | None, due_s: float) -> None:
        """Measure a target's capacity, and once more within an hour where a drop has to be confirmed.

        Wait until other runs have ended, and give the run up where it cannot begin within the grace of its time.
        """
        name, grace_s = monitor.config.name, monitor.config.capacity.schedule.grace
        within_s = max(due_s + grace_s - self._clock.wall_s(), 0.0)
        async with self._slots.hold(monitor.server, within_s, self._measured_s(monitor)) as is_free:
            if not self._schedule.is_running:
                return
            if not is_free or self._clock.wall_s() - due_s > grace_s:
                self.give_up(monitor, due_s)
                return
            self._began_s[name] = self._clock.wall_s()
            await self.recall(name, monitor.capacity_workload, prometheus)
            if await monitor.capacity() and self._schedule.is_running:
                self._schedule.bring_forward(TaskId("capacity", name), _CONFIRMED_IN_S)

    def _measured_s(self, monitor: TargetMonitor) -> float:
        """Return the wall time of a target's last run, before a restart too; 0 without one, and to confirm a drop."""
        name, last = monitor.config.name, monitor.last_result
        if self._sink.unconfirmed_drop(name) is not None:
            return 0.0
        return max(self._began_s.get(name, 0.0), last.ended_s if last is not None else 0.0)

    def give_up(self, monitor: TargetMonitor, due_s: float | None = None) -> None:
        """Report that a run could not begin within the grace of its time, `due_s`.

        None: the scheduler has left it out.
        """
        grace = format_duration(monitor.config.capacity.schedule.grace)
        if due_s is None:
            monitor.give_up_run(f"this machine was suspended, or its clock was set, for more than {grace}")
        else:
            due = datetime.fromtimestamp(due_s, UTC)
            monitor.give_up_run(f"it was due at {due:%H:%M} UTC, and for {grace} there were as many runs as may be")

    async def recall(self, target: str, workload: str, prometheus: PrometheusConfig | None) -> None:
        """Load what Prometheus knows of a target's capacity and the store does not, unless it has answered before."""
        if prometheus is None:
            return
        from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

        async with self._one_question:
            if target in self._recalled:
                return
            since_s, now_s = self._sink.history_since_s(target), self._clock.wall_s()
            try:
                history = await Prometheus(prometheus).capacity_history(target, workload, now_s, since_s)
            except TargetError as error:
                _log.warning("no history of capacity, it is asked for again", target=target, detail=str(error))
                return
            self._recalled.add(target)
        self._sink.add_history(target, workload, history)
        self._go_on(target)

    def _go_on(self, target: str) -> None:
        """Go on with the confirmation of a drop that a restart, a reload or another shard's end interrupted."""
        drop = self._sink.unconfirmed_drop(target)
        ago_s = self._clock.wall_s() - drop.at_s if drop is not None else math.inf
        if drop is not None and 0 <= ago_s < _GOES_ON_FOR_S:
            due_s = 0.0 if drop.confirms is None else _CONFIRMED_IN_S - ago_s
            self._schedule.bring_forward(TaskId("capacity", target), max(due_s, _GOES_ON_IN_S))


def _interval_tasks(monitor: TargetMonitor) -> Iterator[tuple[str, float, Callable[[], Awaitable[object]]]]:
    """Yield the name, the interval in seconds and the work of each task that runs at an interval, but for canaries."""
    target = monitor.config
    yield "scrape", target.scrape, monitor.scrape
    if target.gpu.is_read:
        yield "gpu", target.gpu.every, monitor.scrape_gpus

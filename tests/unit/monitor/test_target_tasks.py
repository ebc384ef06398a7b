"""When a target's capacity runs are made."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_time import VirtualClock, virtually

from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_tasks import TargetTasks
from probe.runtime.scheduler import Scheduler, TaskId

HOUR_S = 3600.0
NIGHTLY, HALF_HOURLY = "30 3 * * *", "0,30 * * * *"


@dataclass
class Measured:
    """A monitor whose capacity has dropped in the first `drops` runs."""

    drops: int
    capacity_workload: str = "default"
    began: list[float] = field(default_factory=list)
    config: Any = field(default_factory=lambda: SimpleNamespace(name="a"))

    async def capacity(self) -> bool:
        self.began.append(asyncio.get_running_loop().time())
        return len(self.began) <= self.drops


def _began(monitor: Measured, cron: str, *, hours: float) -> list[float]:
    """Return when runs began, in hours after the first one."""
    clock = VirtualClock()
    schedule = Scheduler(clock, lambda _: None, lambda *problem: pytest.fail(f"{problem}"))
    sink = cast("MetricsSink", SimpleNamespace(has_history=lambda _: True))
    tasks = TargetTasks(schedule, sink, clock)

    async def run() -> None:
        work = partial(tasks.capacity_run, cast("TargetMonitor", monitor), None)
        schedule.cron(TaskId("capacity", "a"), cron, "UTC", work)
        schedule.start()
        await asyncio.sleep(hours * HOUR_S)
        await schedule.stop()

    virtually(run(), within_s=hours * HOUR_S + 60)
    return [round((at - monitor.began[0]) / HOUR_S, 2) for at in monitor.began]


def test_a_drop_is_measured_again_an_hour_later_and_not_again_before_the_next_night() -> None:
    assert _began(Measured(drops=1), NIGHTLY, hours=48) == [0.0, 1.0, 24.0]


def test_a_night_without_a_drop_has_one_run() -> None:
    assert _began(Measured(drops=0), NIGHTLY, hours=48) == [0.0, 24.0]


def test_a_run_that_is_due_sooner_confirms_a_drop() -> None:
    assert _began(Measured(drops=1), HALF_HOURLY, hours=2.1) == [0.0, 0.5, 1.0, 1.5]

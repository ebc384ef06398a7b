"""When a target's capacity runs are made, and which of them are given up."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_time import WALL_S, VirtualClock, virtually

from probe.monitor.forecast_queue import ForecastQueue
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_tasks import TargetTasks
from probe.runtime.cron import cron_trigger
from probe.runtime.scheduler import Scheduler, TaskId

HOUR_S = 3600.0
NIGHTLY, SIX_HOURLY, HALF_HOURLY = "30 3 * * *", "30 */6 * * *", "0,30 * * * *"


@dataclass
class Measured:
    """A monitor whose capacity has dropped in the first `drops` runs."""

    drops: int = 0
    takes_s: float = 0.0
    server: str = "a:8000"
    name: str = "a"
    grace_s: float = 1800.0
    capacity_workload: str = "default"
    began: list[float] = field(default_factory=list)
    given_up: list[tuple[float, str]] = field(default_factory=list)
    config: Any = None
    last_result: Any = None

    def __post_init__(self) -> None:
        schedule = SimpleNamespace(grace=self.grace_s)
        self.config = SimpleNamespace(name=self.name, capacity=SimpleNamespace(schedule=schedule))

    async def capacity(self) -> bool:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        return len(self.began) <= self.drops

    def give_up_run(self, detail: str) -> None:
        self.given_up.append((asyncio.get_running_loop().time(), detail))


def _run(monitors: Mapping[str, tuple[Measured, float]], cron: str, *, hours: float, at_once: int = 1) -> None:
    """Run the schedules of some targets, each with the seconds by which it is later than the expression."""
    clock = VirtualClock()
    schedule = Scheduler(clock, lambda _: None, lambda *problem: pytest.fail(f"{problem}"))
    sink = cast("MetricsSink", SimpleNamespace(has_history=lambda _: True, unconfirmed_drop=lambda _: None))
    forecasts = ForecastQueue(clock, lambda: 1.0, lambda _: None, lambda *_: None)
    tasks = TargetTasks(schedule, sink, clock, forecasts, lambda: at_once)

    async def run() -> None:
        for name, (monitor, later_s) in monitors.items():
            work = partial(tasks.capacity_run, cast("TargetMonitor", monitor), None)
            schedule.cron(TaskId("capacity", name), cron_trigger(cron), work)
            if later_s:
                schedule.bring_forward(TaskId("capacity", name), later_s)
        schedule.start()
        await asyncio.sleep(hours * HOUR_S)
        await schedule.stop()

    virtually(run(), within_s=hours * HOUR_S + 60)


def _began(monitor: Measured, cron: str, *, hours: float) -> list[float]:
    """Return when runs began, in hours after the first one."""
    _run({"a": (monitor, 0.0)}, cron, hours=hours)
    return [round((at - monitor.began[0]) / HOUR_S, 2) for at in monitor.began]


def test_a_drop_is_measured_again_an_hour_later_and_not_again_before_the_next_time() -> None:
    assert _began(Measured(drops=1), SIX_HOURLY, hours=12) == [0.0, 1.0, 6.0]


def test_without_a_drop_each_time_has_one_run() -> None:
    assert _began(Measured(drops=0), SIX_HOURLY, hours=12) == [0.0, 6.0]


def test_a_run_that_is_due_sooner_confirms_a_drop() -> None:
    assert _began(Measured(drops=1), HALF_HOURLY, hours=2.1) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.fault(
    "TI31",
    "Other capacity runs take longer than a run may wait",
    area="Time",
    users_see="`late` in `kneewatch_capacity_refusals_total`, on the page and in the log",
    stays="no run begins hours after its time",
)
def test_a_run_that_cannot_begin_within_the_grace_of_its_time_is_given_up() -> None:
    first, second, third = (Measured(name=name, server=name, takes_s=1500.0) for name in "abc")
    _run({"a": (first, 10.0), "b": (second, 20.0), "c": (third, 30.0)}, NIGHTLY, hours=2)
    assert second.began == [first.began[0] + 1500.0]
    assert (third.began, second.given_up) == ([], [])
    ((at, words),) = third.given_up
    due = datetime.fromtimestamp(WALL_S + at - 1800.0, UTC)
    assert words == f"it was due at {due:%H:%M} UTC, and for 30m there were as many runs as may be"
    assert at - first.began[0] == pytest.approx(1800.0 + 20.0, abs=0.1)


@pytest.mark.fault(
    "TI110",
    "More capacity runs are due each night than fit",
    area="Time",
    users_see="`late`, each night of other targets",
    stays="no target is left out for ever, after restarts too",
)
@pytest.mark.parametrize("restarts", [False, True])
def test_where_not_all_runs_fit_each_target_has_its_turn(restarts: bool) -> None:  # noqa: FBT001
    """Three of ten fit into half an hour. Each process but the last knows of earlier runs by their results alone."""
    targets = [Measured(name=f"{i}", server=f"{i}", takes_s=850.0) for i in range(10)]
    for _ in range(4 if restarts else 1):
        began = [len(each.began) for each in targets]
        _run({each.name: (each, 0.0) for each in targets}, NIGHTLY, hours=24 if restarts else 96)
        for before, each in zip(began, targets, strict=True):
            if len(each.began) > before:
                each.last_result = SimpleNamespace(ended_s=float(sum(map(len, (each.began for each in targets)))))
    assert {len(each.began) for each in targets} == {1, 2}


def test_a_run_that_comes_to_wait_for_less_than_its_grace_begins() -> None:
    first, second = Measured(server="a", takes_s=1500.0), Measured(server="b", grace_s=1600.0, name="b")
    _run({"a": (first, 10.0), "b": (second, 20.0)}, NIGHTLY, hours=1)
    assert len(second.began) == 1


@pytest.mark.parametrize(
    ("servers", "at_once", "waits_s"),
    [("ab", 1, 600.0), ("ab", 2, 0.0), ("aa", 2, 600.0), ("abc", 2, 600.0), ("aab", 2, 0.0)],
)
@pytest.mark.fault("CO26")
def test_runs_of_several_servers_overlap_up_to_the_limit_and_those_of_one_do_not(
    servers: str, at_once: int, waits_s: float
) -> None:
    """How long the last one waits for those before it, of ten minutes each."""
    targets = [Measured(name=f"{i}", server=server, takes_s=600.0) for i, server in enumerate(servers)]
    _run({each.name: (each, 10.0 + i / 1000) for i, each in enumerate(targets)}, NIGHTLY, hours=1, at_once=at_once)
    assert targets[-1].began[0] - targets[0].began[0] == pytest.approx(waits_s, abs=0.1)
    assert not any(each.given_up for each in targets)

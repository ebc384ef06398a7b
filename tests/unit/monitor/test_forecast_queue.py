"""Forecasts of many targets: oldest evidence first, within a budget of cores, whatever happens to one of them."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from virtual_time import VirtualClock, virtually

from probe.monitor.forecast_queue import ForecastQueue
from probe.runtime.helper_process import HelperError
from probe.runtime.scheduler import TaskId

EVERY_S = 1800.0


@dataclass
class Fleet:
    """Targets whose forecasts take some seconds of CPU each, on a machine without other work."""

    cores: float = 0.25
    began: list[tuple[float, str]] = field(default_factory=list)
    done: list[tuple[float, str, float]] = field(default_factory=list)  # when, of whom, with how much CPU
    problems: list[tuple[float, str]] = field(default_factory=list)
    spent_s: list[float] = field(default_factory=list)
    processes: list["Process"] = field(default_factory=list)

    def __post_init__(self) -> None:
        callbacks = self._succeeded, self._failed
        self.queue = ForecastQueue(
            VirtualClock(), lambda: self.cores, *callbacks, on_cpu=self.spent_s.append, new_process=self._process
        )

    def add(self, target: str, cpu_s: float, *, finds: bool = True, dies: Callable[[], bool] = lambda: False) -> None:
        async def work(compute: Any) -> float | None:
            self.began.append((now_s(), target))
            await compute("sleeps", cpu_s, dies())
            self.done.append((now_s(), target, cpu_s))
            return None if finds else 120.0

        self.queue.add(target, EVERY_S, work)

    def run(self, seconds: float, *then: Callable[[], Any]) -> None:
        """Let the queue run, and do something after each equal part of the time."""

        async def follow() -> None:
            self.zero_s = now_s()
            following = asyncio.create_task(self.queue.follow())
            for do in then:
                await asyncio.sleep(seconds / (len(then) + 1))
                if asyncio.iscoroutine(done := do()):
                    await done
            await asyncio.sleep(seconds / (len(then) + 1))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

        virtually(follow(), within_s=seconds + 10)

    def of(self, target: str) -> list[float]:
        """Return when a target's forecasts began."""
        return [at_s - self.zero_s for at_s, one in self.began if one == target]

    def _process(self) -> "Process":
        assert sum(process.is_open for process in self.processes) < math.ceil(self.cores)
        self.processes.append(Process())
        return self.processes[-1]

    def _succeeded(self, task: TaskId) -> None:
        assert task.task == "forecast"

    def _failed(self, task: TaskId, problem: str, error: BaseException | None) -> None:
        self.problems.append((now_s(), f"{task.target} {problem}: {error}"))


@dataclass
class Process:
    """In place of probe.runtime.helper_process.KeptHelper."""

    cpu_s: float = 0.0
    is_open: bool = False
    is_busy: bool = False

    async def compute(self, name: str, cpu_s: float, dies: bool) -> None:  # noqa: ARG002, FBT001
        assert not self.is_busy
        self.is_open = self.is_busy = True
        began_s = now_s()
        try:
            await asyncio.sleep(cpu_s)
            if dies:
                self.is_open = False
                raise HelperError("the helper process was killed by signal 9")
        finally:
            self.is_busy = False
            self.cpu_s += now_s() - began_s

    def close(self) -> None:
        self.is_open = False


def now_s() -> float:
    return asyncio.get_running_loop().time()


@given(
    cores=st.sampled_from([0.05, 0.25, 1.0, 2.5]),
    costs_s=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=30),
)
@examples(40)
def test_together_they_take_no_more_than_the_budget_and_the_oldest_comes_first(
    cores: float, costs_s: list[float]
) -> None:
    fleet = Fleet(cores)
    for i, cpu_s in enumerate(costs_s):
        fleet.add(f"t{i}", cpu_s)
    fleet.run(4 * EVERY_S)
    processes = math.ceil(cores)
    ends = [(at_s - fleet.zero_s, cpu_s) for at_s, _, cpu_s in fleet.done]
    for at_s, _ in ends:
        used_s = sum(cpu_s for end_s, cpu_s in ends if end_s <= at_s)
        assert used_s <= cores * at_s + processes * max(costs_s) + 1e-6
    seen: dict[str, float] = {}
    for at_s, target in fleet.began:
        waiting = [
            one for one in (f"t{i}" for i in range(len(costs_s))) if seen.get(one, -math.inf) < at_s - 0.9 * EVERY_S
        ]
        assert all(seen.get(target, -math.inf) <= seen.get(one, -math.inf) for one in waiting)
        seen[target] = at_s
    assert sum(fleet.spent_s) == pytest.approx(sum(cpu_s for _, cpu_s in ends))
    assert all(
        later - before >= 0.9 * EVERY_S - 1e-6 for i in range(len(costs_s)) for before, later in _pairs(fleet, i)
    )


def _pairs(fleet: Fleet, i: int) -> list[tuple[float, float]]:
    times_s = fleet.of(f"t{i}")
    return list(pairwise(times_s))


@pytest.mark.fault(
    "ST120",
    "More forecasts are due than the budget of cores allows",
    area="Starvation",
    users_see="forecasts of a known age: the oldest is made next, so all are equally old",
    stays="canaries, scrapes and load in time; no line in the log for a forecast that waits",
)
def test_with_too_small_a_budget_each_target_has_its_turn() -> None:
    fleet = Fleet(0.25)
    for i in range(200):
        fleet.add(f"t{i}", 4.0)  # 3,200 s for all of them, and 1,800 is the interval
    fleet.run(9 * 3200.0)
    turns = [len(fleet.of(f"t{i}")) for i in range(200)]
    assert set(turns) == {9}
    assert fleet.problems == []


@pytest.mark.fault(
    "ST121",
    "The process that computes forecasts is killed, such as for memory",
    area="Starvation",
    users_see="a failed task `forecast`; the last forecast, until it is out of date",
    stays="forecasts of other targets",
)
def test_after_the_death_of_a_process_others_go_on_and_that_forecast_is_made_at_its_next_turn() -> None:
    fleet, deaths = Fleet(1.0), iter([True, False])
    fleet.add("dies", 1.0, dies=lambda: next(deaths, False))
    fleet.add("lives", 1.0)
    fleet.run(1.5 * EVERY_S)
    assert fleet.of("dies") == pytest.approx([0.0, 0.9 * EVERY_S])
    assert fleet.of("lives") == pytest.approx([1.0, 0.9 * EVERY_S + 1.0])
    assert [words for _, words in fleet.problems] == ["dies failed: the helper process was killed by signal 9"]
    assert [target for _, target, _ in fleet.done] == ["lives", "dies", "lives"]


def test_without_evidence_a_forecast_is_tried_again_sooner() -> None:
    fleet = Fleet()
    fleet.add("new", 0.1, finds=False)
    fleet.run(500.0)
    assert fleet.of("new") == pytest.approx([0.0, 120.0, 240.0, 360.0, 480.0])


def test_a_target_that_goes_ends_its_forecast_and_others_begin() -> None:
    fleet = Fleet(1.0)
    fleet.add("goes", 60.0)
    fleet.add("waits", 1.0)
    fleet.run(60.0, lambda: fleet.queue.drop("goes"), lambda: fleet.add("comes", 1.0))
    assert [target for _, target, _ in fleet.done] == ["waits", "comes"]
    assert fleet.queue.next_s("goes") is None


def test_a_larger_budget_counts_from_the_next_forecast_on() -> None:
    fleet = Fleet(0.01)
    for i in range(6):
        fleet.add(f"t{i}", 1.0)

    def reload() -> None:
        fleet.cores = 2.0

    fleet.run(300.0, reload)
    assert [round(at_s - fleet.zero_s) for at_s, _ in fleet.began] == [0, 100, 200, 200, 201, 201]


@pytest.mark.fault(
    "SI120",
    "Kneewatch ends, or its configuration is reloaded, while a forecast is computed",
    area="Signals",
    users_see="nothing: the process that computes ends with it",
    stays="the end within two seconds",
)
def test_the_end_waits_for_no_forecast_and_leaves_no_process() -> None:
    fleet = Fleet(3.0)
    for i in range(5):
        fleet.add(f"t{i}", 60.0)
    fleet.run(5.0)
    assert [process.is_open or process.is_busy for process in fleet.processes] == [False] * 3
    assert fleet.done == []


def test_a_process_that_has_nothing_to_compute_for_a_minute_ends() -> None:
    fleet, seen = Fleet(), list[bool]()
    fleet.add("one", 1.0)
    fleet.run(60.0, lambda: seen.append(fleet.processes[0].is_open))
    assert seen == [False]

"""What goes wrong while a search is on its way: no figure is published that is not true, and the load ends.

The real ramp, guard, summary and search, on a server in virtual time.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.capacity.cases import CASES, Case
from benchmarks.capacity.play import Played, play
from probe.capacity.run.request import Budget
from probe.capacity.search.search import Search
from probe.core.errors import TargetError
from probe.core.objectives import Objective, Objectives
from probe.core.request import Outcome
from probe.core.result import Stopped
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.simulator.cost import FrontEnd
from tests.virtual_time import VirtualClock

TINY, TRUTH_RPS = CASES["tiny"], 14.43
PLENTY = Budget(10**9, 1800, 20)
BROKEN_AT_S = 50.0  # after it watched for 20 s, in a step


# These faults do not depend on the last digit.
pytestmark = pytest.mark.usefixtures("short_simulations")


def _as_it_is(_: float, snapshot: ServerSnapshot) -> ServerSnapshot:
    return snapshot


def _run(
    case: Case = TINY,
    page: Callable[[float, ServerSnapshot], ServerSnapshot] = _as_it_is,
    budget: Budget = PLENTY,
    clock: VirtualClock | None = None,
) -> Played:
    search = Search(case.workload, case.objectives, explain=False, observe_s=20.0)
    return play(case, TRUTH_RPS, 4, search, budget=budget, page=page, clock=clock)


def _slower(histogram: Histogram, times: float) -> Histogram:
    return Histogram(tuple((bound, count * times) for bound, count in histogram.buckets), histogram.sum * times)


def _anew(at_s: float, snapshot: ServerSnapshot) -> ServerSnapshot:
    """Return a server restarted at BROKEN_AT_S that has counted a tenth since."""
    if at_s < BROKEN_AT_S or snapshot.prompt_tokens is None or snapshot.generation_tokens is None:
        return snapshot
    return replace(
        snapshot,
        prompt_tokens=snapshot.prompt_tokens / 10,
        generation_tokens=snapshot.generation_tokens / 10,
        histograms={name: _slower(each, 0.1) for name, each in snapshot.histograms.items()},
    )


def test_a_server_that_restarts_under_a_search_ends_it_without_a_figure() -> None:
    result = _run(page=_anew).result
    assert result.stopped == Stopped("guard", "server_restarted")
    assert result.capacity.requests_per_second is None
    assert "restarted" in str(result.capacity.reason)
    assert result.cost.seconds < BROKEN_AT_S + 3


@pytest.mark.long
def test_metrics_that_can_no_longer_be_read_end_the_load_and_leave_no_more_than_a_forecast() -> None:
    def page(at_s: float, snapshot: ServerSnapshot) -> ServerSnapshot:
        if at_s > BROKEN_AT_S:
            raise TargetError("no answer", Outcome.TIMEOUT)
        return snapshot

    result = _run(page=page).result
    assert result.stopped == Stopped("guard", "server_unreadable")
    assert result.cost.seconds < BROKEN_AT_S + 5
    assert result.capacity.mode == "forecast"


def test_a_server_that_never_answers_gets_a_single_request() -> None:
    """A front end that takes an hour for each. A request's own limit, 60 s, is not simulated."""
    stuck = replace(TINY, profile=replace(TINY.profile, front_end=FrontEnd(per_request_s=3600.0)))
    result = _run(stuck, budget=Budget(10**9, 90, 20)).result
    assert result.stopped == Stopped("budget", "seconds")
    assert result.cost.requests == 1
    assert result.capacity.requests_per_second is None
    assert result.capacity.reason


def test_an_objective_that_no_load_can_meet_is_said_so_after_little_load() -> None:
    promised = Objectives(name="dream", ttft=Objective(0.95, 1e-4), tpot=Objective(0.95, 1e-5))
    result = _run(replace(TINY, objectives=promised)).result
    assert result.capacity.requests_per_second is None
    assert result.capacity.reason
    assert result.cost.over_objective_seconds <= 21
    assert result.cost.seconds < 120


@pytest.mark.long
@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (Budget(10_000, 1800, 20), "tokens"),
        pytest.param(Budget(10**9, 45, 20), "seconds", marks=pytest.mark.long),
    ],
)
def test_a_budget_that_ends_before_the_knee_leaves_a_forecast_and_never_a_verified_figure(
    budget: Budget, spent: str
) -> None:
    result = _run(budget=budget).result
    assert result.stopped.by == "budget"
    assert spent in str(result.stopped.reason)
    assert result.capacity.mode == "forecast"
    assert result.capacity.lower is not None
    assert result.capacity.upper is not None, "a pulse of 12 requests has shown that 8 run at a time"
    assert result.capacity.lower < TRUTH_RPS < result.capacity.upper
    assert "`kneewatch ramp --max-seconds " in str(result.capacity.reason)


class Jumping(VirtualClock):
    """Somebody sets the clock back by an hour in the middle of it."""

    def wall_s(self) -> float:
        now_s = super().wall_s()
        return now_s - 3600.0 if self.monotonic_ns() * 1e-9 > 150.0 else now_s


@pytest.mark.long
def test_a_wall_clock_that_jumps_changes_nothing_of_a_search() -> None:
    short = Budget(10**9, 40, 20)
    steady, jumping = _run(budget=short).result, _run(budget=short, clock=Jumping()).result
    assert jumping.capacity == steady.capacity
    assert jumping.steps == steady.steps
    assert steady.steps

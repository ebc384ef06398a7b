"""What may go wrong while we load: the server, its metrics, the clock. The load ends, and no wrong figure is told."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from example_records import CHAT
from fake_request import LocalLoad
from fake_server import Asked, FakeMetrics, FakeServer, job, ready
from virtual_time import VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.capacity.run.seams import Load
from probe.core.clock import Clock
from probe.core.reasons import CLIENT_LATE
from probe.core.request import Outcome, RequestRecord
from probe.core.result import CapacityResult, Stopped
from probe.core.snapshot import Histogram
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.load.sent_request import SendableRequest

pytestmark = pytest.mark.slow

INF = float("inf")
PLENTY = Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6)


def _job(*plans: StepPlan, budget: Budget = PLENTY) -> Asked:
    return Asked(job(CHAT, budget), plans)


def _closed(*concurrency: int, step_s: float = 4.0) -> tuple[StepPlan, ...]:
    return tuple(StepPlan(concurrency=c, seconds=step_s) for c in concurrency)


def _open(rate_rps: float, step_s: float = 10.0) -> StepPlan:
    return StepPlan(1000, step_s, loop="open", arrivals=Arrivals(Pattern.CONSTANT, rate_rps=rate_rps))


def _run(
    asked: Asked,
    server: FakeServer | None = None,
    values: Callable[[float], dict[str, Any] | None] = lambda _: {},
    clock: VirtualClock | None = None,
    load: Callable[[Iterator[SendableRequest], Clock], Load] = LocalLoad,
) -> tuple[CapacityResult, float]:
    """Return the result and the time it took, and assert that nothing is in flight afterwards."""
    server, clock = server or FakeServer(), clock or VirtualClock()

    async def run() -> tuple[CapacityResult, float]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        result = await asked.ramp(load(ready(server), clock), FakeMetrics(values), clock).run()
        assert server.in_flight == 0
        return result, loop.time() - before

    return virtually(run(), within_s=600.0)


# The server.


def _restarts(field: str, at_s: float) -> Callable[[float], dict[str, Any]]:
    """Return a counter that grows and then restarts."""
    return lambda now_s: {field: 1000.0 + now_s if now_s < at_s else now_s - at_s}


@pytest.mark.parametrize("field", ["prompt_tokens", "generation_tokens", "preemptions"])
@pytest.mark.fault(
    "TR11",
    "A restart during a run",
    area="Truth",
    users_see="`server_restarted`",
    stays="nothing is published",
)
def test_a_server_that_restarts_ends_the_run_which_publishes_nothing(field: str) -> None:
    """The steps before it were of another process, perhaps of another version."""
    counted = _restarts(field, 6.0) if field != "preemptions" else lambda now_s: {field: 5.0 if now_s < 6.0 else 0.0}
    server = FakeServer()
    result, took_s = _run(_job(*_closed(4, 8, 16)), server, counted)
    assert result.stopped == Stopped("guard", "server_restarted")
    assert server.sent_s[-1] - server.sent_s[0] < 6.75
    assert took_s < 7.5 + 3.0, "it watches on, for the old server might answer again"
    assert [step.valid for step in result.steps] == [True, False]
    assert result.capacity.requests_per_second is None
    assert result.capacity.limiting is None
    assert "restarted during the run" in str(result.capacity.reason)


@pytest.mark.fault(
    "TR12",
    "A restart that happens while the page cannot be read",
    area="Truth",
    users_see="`server_restarted`",
    stays="nothing is published",
)
def test_a_restart_is_seen_although_a_reading_failed_meanwhile() -> None:
    def values(now_s: float) -> dict[str, Any] | None:
        return None if 5.7 < now_s < 6.3 else _restarts("prompt_tokens", 6.0)(now_s)

    result, _ = _run(_job(*_closed(4, 8)), values=values)
    assert result.stopped == Stopped("guard", "server_restarted")


@pytest.mark.fault(
    "TR5",
    "A server that hangs",
    area="Truth",
    users_see="`no_first_token` after twice the objective",
    stays="no figure",
)
def test_a_server_that_accepts_and_never_answers_is_left_alone_after_twice_the_objective() -> None:
    server = FakeServer()
    server.seconds = lambda _: 0.1 if len(server.sent_s) <= 20 else 10_000.0
    result, took_s = _run(_job(*_closed(4, step_s=60.0)), server)
    assert result.stopped == Stopped("guard", "no_first_token")
    assert took_s < 0.6 + 1.0 + 0.5  # the answers, twice the TTFT objective, a look of the guard
    assert len(server.sent_s) <= 24
    assert result.capacity.requests_per_second is None


class LateLoad(LocalLoad):
    """Tells of what is in flight as it was when it last looked, which it does when it is allowed to."""

    def __init__(self, requests: Iterator[SendableRequest], clock: Clock, looks: Callable[[float], bool]) -> None:
        super().__init__(requests, clock)
        self._looks, self._at = looks, clock
        self._seen: list[RequestRecord] = []
        self._seen_ns = 0

    def _look(self) -> None:
        if self._looks(self._at.monotonic_ns() * 1e-9):
            self._seen, self._seen_ns = super().in_flight(), self._at.monotonic_ns()

    def in_flight(self) -> list[RequestRecord]:
        self._look()
        return self._seen

    def reported_ns(self) -> int | None:
        self._look()
        return self._seen_ns if self._step else None


def _told(looks: Callable[[float], bool]) -> Callable[[Iterator[SendableRequest], Clock], Load]:
    return lambda requests, clock: LateLoad(requests, clock, looks)


@pytest.mark.fault(
    "ST3",
    "Reports of the workers come late for 2.4 s of every 3 s",
    area="Starvation",
    users_see="nothing: the guard does not blame the server",
    stays="the run goes on",
)
def test_a_server_is_not_blamed_for_what_we_heard_of_it_late() -> None:
    """Its answers take 0.1 s; for 2.4 s of every three nobody here tells of them."""
    began = _began()
    result, _ = _run(_job(*_closed(4, step_s=30.0)), load=_told(lambda now_s: (now_s - began()) % 3 < 0.6))
    assert result.stopped == Stopped("done")
    assert [step.valid for step in result.steps] == [True]


@pytest.mark.fault(
    "ST4",
    "Reports of the workers are always late",
    area="Starvation",
    users_see="the run ends as `client_late`: move the client",
    stays="no figure",
)
def test_reports_that_are_always_late_end_the_run_as_a_fault_of_the_client() -> None:
    began = _began()
    result, took_s = _run(_job(*_closed(4, step_s=60.0)), load=_told(lambda now_s: now_s - began() < 5))
    assert result.stopped == Stopped("error", CLIENT_LATE.word)
    assert 5 + 2.5 < took_s < 5 + 3.5
    assert result.capacity.reason == "requests were reported too late for the guard (client_late)"
    assert "dedicated nodes" in str(result.capacity.advice)
    assert result.capacity.requests_per_second is None
    assert result.capacity.limiting is None


@pytest.mark.fault(
    "LO6",
    "A server that hangs, seen through reports that are a little late",
    area="Load",
    users_see="`no_first_token`",
    stays="-",
)
def test_a_server_that_hangs_is_seen_through_reports_that_are_a_little_late() -> None:
    server = FakeServer()
    server.seconds = lambda _: 0.1 if len(server.sent_s) <= 20 else 10_000.0
    began = _began()
    result, took_s = _run(
        _job(*_closed(4, step_s=60.0)), server, load=_told(lambda now_s: (now_s - began()) % 0.4 < 0.26)
    )
    assert result.stopped == Stopped("guard", "no_first_token")
    assert took_s < 0.6 + 1.0 + 0.5 + 0.4


def _began() -> Callable[[], float]:
    """Return when it was first called."""
    times: list[float] = []

    def began() -> float:
        times.append(asyncio.get_running_loop().time())
        return times[0]

    return began


@pytest.mark.fault(
    "LO8",
    "A cold server whose first answer takes 20 s",
    area="Load",
    users_see="nothing",
    stays="the run goes on",
)
def test_the_first_answer_of_a_cold_server_may_take_its_time() -> None:
    server = FakeServer()
    server.seconds = lambda _: 20.0 if len(server.sent_s) == 1 else 0.1
    result, _ = _run(_job(*_closed(2, 4)), server)
    assert result.stopped == Stopped("done")


@pytest.mark.fault(
    "LO7",
    "A first answer that never comes",
    area="Load",
    users_see="`server_errors` at the request's limit",
    stays="one request was sent, no step begins",
)
def test_a_first_answer_that_never_comes_is_one_request_until_its_time_is_up() -> None:
    """A request's own limit makes it a failure; no step begins."""
    server = FakeServer(seconds=lambda _: 30.0, outcome=lambda _: Outcome.TIMEOUT)
    result, took_s = _run(_job(*_closed(4)), server)
    assert result.stopped == Stopped("guard", "server_errors")
    assert (len(server.sent_s), result.steps) == (1, ())
    assert took_s == pytest.approx(30.0, abs=1.0)


def _slow_users(now_s: float) -> dict[str, Any]:
    """Users get their first token within the objective, until 5 s: then after two seconds, five of them a second."""
    quick, slow = 50 * min(now_s, 5.0), 5 * max(now_s - 5.0, 0.0)
    ttft = Histogram(((0.5, quick), (1.0, quick), (2.5, quick + slow), (INF, quick + slow)), 0.0)
    return {"histograms": {"ttft": ttft}}


@pytest.mark.fault(
    "TR10",
    "Users' first tokens become slow while probe requests are fast",
    area="Truth",
    users_see="`users_latency`: the guard stops the run",
    stays="-",
)
def test_users_who_wait_too_long_end_the_load_although_probe_requests_are_fast() -> None:
    result, took_s = _run(_job(*_closed(4, step_s=60.0)), values=_slow_users)
    assert result.stopped == Stopped("guard", "users_latency")
    assert 5.0 < took_s < 8.0


def test_an_open_loop_may_have_as_many_waiting_as_will_be_served_in_time() -> None:
    """At 40 requests/s 20 arrive within the TTFT objective; the same queue stops a step whose rate is unknown."""

    def values(_: float) -> dict[str, Any]:
        return {"waiting": 15.0}

    result, _ = _run(_job(_open(40.0)), values=values)
    assert result.stopped == Stopped("done")
    assert result.steps[0].valid
    for plan in (_open(25.0), *_closed(4, step_s=10.0)):
        assert _run(_job(plan), values=values)[0].stopped == Stopped("guard", "queue")


# The question.


def test_an_objective_that_no_load_can_meet_is_no_knee_and_the_first_step_says_so() -> None:
    result, _ = _run(_job(*_closed(1, 2, step_s=30.0)), _slow(0.8))
    assert [step.broken for step in result.steps] == [("ttft",)]
    assert result.stopped == Stopped("done", "concurrency 1 broke ttft")
    assert result.capacity.requests_per_second is None
    assert result.capacity.limiting == "ttft"
    assert "one request in flight is too much already" in str(result.capacity.reason)


def _slow(seconds: float) -> FakeServer:
    return FakeServer(seconds=lambda _: seconds)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(10**9, 10.0, 10**6), "seconds"),
        (Budget(5_000, 10**6, 10**6), "tokens_per_run"),
        (Budget(5_000, 10**6, 10**6, "tokens_per_day"), "tokens_per_day"),
    ],
)
def test_an_objective_that_nothing_breaks_within_the_budget_is_a_lower_bound_and_says_so(
    budget: Budget, reason: str
) -> None:
    result, _ = _run(_job(*_closed(2, 4, 8, 16), budget=budget))
    assert result.stopped == Stopped("budget", reason)
    assert result.capacity.requests_per_second is not None
    assert result.capacity.upper is None
    assert "at least this" in str(result.capacity.reason)
    assert reason in str(result.capacity.reason)


# The clock.


class Jumping(VirtualClock):
    """The wall clock is set by a day, ahead and back, at each look."""

    def __init__(self) -> None:
        self._looks = count()

    def wall_s(self) -> float:
        return super().wall_s() + 86_400.0 * (-1) ** next(self._looks)


@pytest.mark.parametrize(
    ("server", "values", "budget"),
    [
        (lambda: FakeServer(seconds=lambda n: 0.2 + 0.1 * max(n - 8, 0)), lambda _: {}, PLENTY),
        (FakeServer, lambda now_s: {"preemptions": 3.0 if now_s > 5.0 else 0.0}, PLENTY),
        (FakeServer, lambda _: {}, Budget(10**9, 7.0, 10**6)),
        (lambda: _slow(0.9), lambda _: {}, Budget(10**9, 10**6, 2.0)),
    ],
)
@pytest.mark.fault(
    "TI1",
    "The wall clock jumps by a day, forth and back, during a capacity run",
    area="Time",
    users_see="nothing",
    stays="steps, budget and capacity are those of a steady clock",
)
def test_a_wall_clock_that_jumps_changes_nothing(
    server: Callable[[], FakeServer], values: Callable[[float], dict[str, Any]], budget: Budget
) -> None:
    job = _job(*_closed(2, 4, 8, 16), budget=budget)
    (steady, took_s), (jumping, jumped_s) = (
        _run(job, server(), values, clock) for clock in (VirtualClock(), Jumping())
    )
    assert (jumping.steps, jumping.capacity, jumping.stopped) == (steady.steps, steady.capacity, steady.stopped)
    assert (jumping.cost, jumped_s) == (steady.cost, took_s)

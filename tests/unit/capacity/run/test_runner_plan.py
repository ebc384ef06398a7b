"""What a run does for a load plan that watches first, thinks, and outlives an overload."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from example_records import CHAT, record
from fake_request import LocalLoad
from fake_server import Asked, FakeMetrics, FakeServer, Timed, at_once, job, ready
from virtual_time import Jumpy, VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess, Think
from probe.core.clock import SystemClock
from probe.core.request import Traffic
from probe.core.result import Capacity, CapacityResult, Phase, Stopped
from probe.core.snapshot import Histogram, ServerSnapshot, UserLoad
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun, StepSummary, TrafficBeside
from probe.observe.server_state import ServerState

pytestmark = pytest.mark.slow

_T = TypeVar("_T")
INF = float("inf")
PLENTY = Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6)
Values = Callable[[float], dict[str, Any] | None]


@dataclass
class Scripted:
    """A load plan that takes the plans it is given, and keeps what it was told."""

    plans: list[StepPlan]
    observe_s: float = 0.0
    survives_overload: bool = True
    saw_s: list[tuple[float, float]] = field(default_factory=list)  # the first and last reading that it saw
    baseline: list[StepSummary] = field(default_factory=list)
    trips: list[str | None] = field(default_factory=list)
    beside: list[TrafficBeside] = field(default_factory=list)  # of the observation, and of each step
    began_s: list[float] = field(default_factory=list)
    works: Callable[[], None] = lambda: None  # at each `step_finished`

    def observe_idle(self, readings: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        self.beside.append(beside)
        self.saw_s += [(readings[0].at_ns * 1e-9, readings[-1].at_ns * 1e-9)] if readings else []
        self.baseline.append(baseline)

    def next_step(self) -> StepPlan | None:
        return self.plans.pop(0) if self.plans else None

    def step_finished(
        self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        assert step.plan == run.plan
        assert readings
        self.works()
        self.trips.append(tripped)
        self.beside.append(TrafficBeside(step.users, run.other_probes))

    def end_reason(self) -> str | None:
        return None if self.plans else "that is all"

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        return Capacity(mode="verified", requests_per_second=float(len(steps)), reason=stopped.reason)


def _open(rate_rps: float, *, seconds: float = 10.0, cap: int = 1000) -> StepPlan:
    return StepPlan(cap, seconds, loop="open", arrivals=Arrivals(Pattern.CONSTANT, rate_rps=rate_rps))


def _asked(load_plan: Scripted, budget: Budget = PLENTY) -> Asked:
    return Asked(job(CHAT, budget), load_plan=load_plan)


@dataclass
class Ran:
    result: CapacityResult
    took_s: float
    sent_s: list[float]
    doing: list[str]


def _run(
    load_plan: Scripted,
    values: Values = lambda _: {},
    *,
    server: FakeServer | None = None,
    budget: Budget = PLENTY,
    stop_after_s: float | None = None,
    think: Think = at_once,
    access: dict[str, Any] | None = None,
    client_clock: VirtualClock | None = None,
) -> Ran:
    """Run in virtual time, and assert that nothing is in flight afterwards."""
    server = server or FakeServer()
    doing: list[Phase] = []

    async def run() -> tuple[CapacityResult, float]:
        loop, clock = asyncio.get_running_loop(), VirtualClock()
        before = loop.time()
        load = LocalLoad(ready(server), client_clock or clock)
        seams = {"think": think, "access": access, "on_phase": doing.append}
        ramp = _asked(load_plan, budget).ramp(load, Timed(values), clock, **seams)
        if stop_after_s is not None:
            loop.call_later(stop_after_s, ramp.stop, "interrupt", "signal")
        result = await ramp.run()
        assert server.in_flight == 0
        return result, loop.time() - before

    result, took_s = virtually(run(), within_s=600.0)
    return Ran(result, took_s, [at - server.sent_s[0] for at in server.sent_s], [phase.text for phase in doing])


# Watching.


def test_live_traffic_is_watched_for_as_long_as_the_course_wants_without_load() -> None:
    load_plan = Scripted([_open(20)], observe_s=30.0)
    ran = _run(load_plan)
    assert len([at for at in ran.sent_s if at < 30.0]) == 1, "the baseline request"
    ((first_s, last_s),) = load_plan.saw_s
    assert last_s - first_s >= 29.0
    assert [baseline.requests.ok for baseline in load_plan.baseline] == [1]
    assert ran.took_s == pytest.approx(0.1 + 30 + 10, abs=1.0)


def test_a_course_that_wants_to_see_nothing_first_waits_for_nothing() -> None:
    assert _run(Scripted([_open(20)])).took_s < 12.0


def test_each_phase_is_reported_as_it_begins() -> None:
    ran = _run(Scripted([_open(20), StepPlan(4, 2.0)], observe_s=5.0))
    assert [words for words in ran.doing if not words.startswith("computing")] == [
        *("a first request", "watching live traffic", "step 1: 20 requests/s", "step 2: concurrency 4"),
    ]
    assert "computing the next step" in ran.doing
    assert ran.doing[-1] == "computing the result"


def test_stop_while_it_watches_ends_the_run_at_once() -> None:
    load_plan = Scripted([_open(20)], observe_s=30.0)
    ran = _run(load_plan, stop_after_s=5.05)
    assert ran.result.stopped == Stopped("interrupt", "signal")
    assert ran.took_s < 5.3
    assert (len(ran.sent_s), load_plan.baseline) == (1, [])


def _rising(users_rps: float) -> Values:
    """A server whose users get so many first tokens a second, of 50 tokens each; ours are not in it."""

    def values(now_s: float) -> dict[str, Any]:
        count = users_rps * now_s
        return {"histograms": {"ttft": Histogram(((INF, count),), 0.0)}, "generation_tokens": 50 * count}

    return values


def test_user_load_is_reported_for_the_time_the_run_observed() -> None:
    ran = _run(Scripted([], observe_s=20.0), _rising(4.0))
    assert ran.result.users == UserLoad(pytest.approx(4.0), pytest.approx(200.0))
    assert _run(Scripted([], observe_s=20.0)).result.users == UserLoad(None, None)


def test_a_server_without_users_is_not_watched_for_longer_than_that_takes_to_see() -> None:
    def polls(users_rps: float) -> Values:
        return lambda now_s: {**(_rising(users_rps)(now_s) or {}), "running": 0.0, "waiting": 0.0}

    idle, busy = (_run(Scripted([], observe_s=40.0), polls(rate)) for rate in (0.0, 0.2))
    assert idle.took_s == pytest.approx(10, abs=1.0)
    assert busy.took_s == pytest.approx(40, abs=1.0)


def test_the_canaries_beside_each_step_reach_the_course_and_are_no_users() -> None:
    """A canary every 2 s is all that the server counts beside the run's own requests."""
    canaries = [record(start_s=float(at), traffic=Traffic.CANARY) for at in range(100, 160, 2)]
    state = ServerState()
    state.begin(0, is_load=True)
    for canary in canaries:
        state.add_record(canary)
    load_plan, server = Scripted([_open(20, seconds=10.0)], observe_s=20.0), FakeServer()

    def values(_: float) -> dict[str, Any]:
        now_s = asyncio.get_running_loop().time()
        own = sum(at + 0.1 <= now_s for at in server.sent_s)
        count = own + sum(canary.events.at_ns[0] * 1e-9 <= now_s for canary in canaries)
        return {"histograms": {"ttft": Histogram(((INF, float(count)),), 0.0)}}

    access = {name: getattr(state, name) for name in ("users_between", "other_probes")}
    ran = _run(load_plan, values, server=server, access=access)
    assert ran.result.users.requests_per_second == 0.0
    assert [each.users.requests_per_second for each in load_plan.beside] == [0.0, 0.0]
    idle, beside = (each.probes for each in load_plan.beside)
    assert len(idle) - len(beside) == 10, "of the 20 s before the step"


def _counting(server: FakeServer, users: Callable[[float], float]) -> Values:
    """A page that counts what the server answers, and so many requests of users so many seconds after the first one."""

    def values(_: float) -> dict[str, Any]:
        now_s = asyncio.get_running_loop().time()
        own = sum(at + 0.1 <= now_s for at in server.sent_s)
        count = own + int(users(now_s - server.sent_s[0])) if server.sent_s else 0
        return {"histograms": {"ttft": Histogram(((INF, float(count)),), 0.0)}}

    return values


def test_the_users_of_a_step_are_those_while_it_is_judged() -> None:
    """Ten a second until the warm-up ends: at 15 s."""
    load_plan, server = Scripted([replace(_open(20, seconds=10.0), warm_up_s=15.0)]), FakeServer()
    _run(load_plan, _counting(server, lambda s: 10 * min(s, 15.0)), server=server)
    assert load_plan.beside[-1].users.requests_per_second == pytest.approx(0.0, abs=0.6)


@pytest.mark.fault(
    "LO68",
    "Users surge in a step of a search",
    area="Load",
    users_see="the step ends within seconds, and is neither held nor broken",
    stays="the search goes on, with the users of now",
)
def test_users_who_bring_a_step_to_its_bound_end_it_and_not_the_run() -> None:
    plan, server = replace(_open(20, seconds=30.0), most_users_rps=2.0), FakeServer()
    load_plan = Scripted([plan, _open(5, seconds=5.0)])
    ran = _run(load_plan, _counting(server, lambda s: s + 20 * max(s - 10.0, 0.0)), server=server)
    assert load_plan.trips == ["users_changed", None]
    assert ran.result.steps[0].tripped == "users_changed"
    assert 10.0 < ran.result.steps[0].seconds < 14.0
    assert ran.result.stopped == Stopped("done", "that is all")


def test_a_plan_that_ends_for_a_reason_of_the_guard_ends_the_run_with_it() -> None:
    class Changed(Scripted):
        def end_reason(self) -> str | None:
            return "users_changed"

    assert _run(Changed([])).result.stopped == Stopped("guard", "users_changed")


# An overload.


def _overloaded(begin_s: float, end_s: float, **shown: Any) -> Values:
    return lambda now_s: (shown or {"waiting": 99.0}) if begin_s <= now_s < end_s else {}


def test_a_course_outlives_an_overload_and_goes_on_when_the_server_is_calm() -> None:
    load_plan = Scripted([_open(20, seconds=30), _open(5)])
    ran = _run(load_plan, _overloaded(5.0, 15.0))
    tripped, after = ran.result.steps
    assert (tripped.valid, tripped.reason, tripped.tripped) == (False, "cut_short", "queue")
    assert (after.valid, after.tripped) == (True, None)
    assert load_plan.trips == ["queue", None]
    assert ran.result.stopped == Stopped("done", "that is all")
    assert not [at for at in ran.sent_s if 7.5 < at < 15.0], "no load until the server was calm"
    assert "waiting for the server to be idle" in ran.doing


def test_a_step_of_a_search_ends_as_soon_as_it_is_certain_to_break_an_objective() -> None:
    """Each request takes 0.6 s to its first token, and 0.5 s were promised: of 100 a twentieth may."""
    load_plan = Scripted([_open(10.0)])
    ran = _run(load_plan, server=FakeServer(seconds=lambda _: 0.6))
    assert load_plan.trips == ["objective_broken"]
    assert ran.result.steps[0].tripped == "objective_broken"
    assert 10 <= ran.result.steps[0].requests.ok <= 12


@pytest.mark.slow
@pytest.mark.fault(
    "LO82",
    "In a step of a search more requests miss an objective than may, by no more than this machine was late",
    area="Starvation",
    users_see="the step ends early, as `client_bound`, and is repeated at most twice",
    stays="the load does not count as too high",
)
@pytest.mark.parametrize(
    ("took_s", "reason", "trip"), [(0.55, "client_bound", None), (0.9, "cut_short", "objective_broken")]
)
def test_a_load_is_not_too_high_by_what_a_late_client_missed(took_s: float, reason: str, trip: str | None) -> None:
    load_plan = Scripted([_open(10.0)])
    ran = _run(load_plan, server=FakeServer(seconds=lambda _: took_s), client_clock=Jumpy())
    (step,) = ran.result.steps
    assert (step.is_late, step.valid, step.reason, step.tripped) == (True, False, reason, trip)
    assert step.requests.ok < 50
    assert load_plan.trips == [trip]


def test_fixed_steps_run_to_their_end_whatever_they_break() -> None:
    load_plan = Scripted([_open(10.0)], survives_overload=False)
    ran = _run(load_plan, server=FakeServer(seconds=lambda _: 0.6))
    assert ran.result.steps[0].requests.ok == 100


def test_preemptions_of_before_do_not_end_the_next_step() -> None:
    load_plan = Scripted([_open(20, seconds=30), _open(5)])
    ran = _run(load_plan, lambda now_s: {"preemptions": 10.0 if now_s > 5 else 0.0})
    assert [step.tripped for step in ran.result.steps] == ["preemptions", None]
    assert ran.result.steps[1].valid


def test_an_overload_of_the_run_does_not_become_what_is_usual() -> None:
    """Three first tokens of ten are late in both steps; before the run none was, and in the overload three of five."""

    def values(now_s: float) -> dict[str, Any]:
        is_over, after_s = 5.0 <= now_s < 15.0, max(now_s - 15.0, 0.0)
        during_s = min(max(now_s - 5.0, 0.0), 10.0)
        count, slow = 300 + 15 * during_s + 20 * after_s, 9 * during_s + 6 * after_s
        quick = count - slow
        ttft = Histogram(((0.5, quick), (1.0, quick), (2.5, count), (INF, count)), 0.0)
        return {"waiting": 99.0 if is_over else 0.0, "histograms": {"ttft": ttft}}

    ran = _run(Scripted([_open(20, seconds=30), _open(5, seconds=20)]), values)
    assert ran.result.steps[1].tripped == "users_latency"


@pytest.mark.parametrize("counted_s", [15.1, 15.3])
def test_what_an_overload_still_does_when_its_queue_is_gone_ends_no_run(counted_s: float) -> None:
    """As the first tokens of steps that were planned when the load ended."""

    def values(now_s: float) -> dict[str, Any]:
        return {"waiting": 99.0 if 5.0 <= now_s < 15.0 else 0.0, "preemptions": 10.0 if now_s >= counted_s else 0.0}

    ran = _run(Scripted([_open(20, seconds=30), _open(5)]), values)
    assert [step.tripped for step in ran.result.steps] == ["queue", None]
    assert ran.result.stopped == Stopped("done", "that is all")


def test_a_server_that_stays_busy_after_an_overload_ends_the_run() -> None:
    load_plan = Scripted([_open(20, seconds=30), _open(5)])
    ran = _run(load_plan, _overloaded(5.0, INF))
    assert ran.result.stopped == Stopped("guard", "queue")
    assert len(ran.result.steps) == 1
    assert 30.0 < ran.took_s < 45.0
    assert max(ran.sent_s) < 7.5


def test_stop_while_it_waits_for_calm_ends_the_run_at_once() -> None:
    ran = _run(Scripted([_open(20, seconds=30), _open(5)]), _overloaded(5.0, INF), stop_after_s=12.05)
    assert ran.result.stopped == Stopped("interrupt", "signal")
    assert ran.took_s < 12.5


def test_a_trip_that_is_no_overload_ends_the_run_also_while_it_waits_for_calm() -> None:
    def values(now_s: float) -> dict[str, Any] | None:
        return None if now_s > 12.0 else {"waiting": 99.0} if now_s > 5.0 else {}

    ran = _run(Scripted([_open(20, seconds=30), _open(5)]), values)
    assert ran.result.stopped == Stopped("guard", "server_unreadable")
    assert ran.took_s < 15.0


@pytest.mark.fault(
    "LO29",
    "The server restarts while the run waits for calm after an overload",
    area="Load",
    users_see="the run ends",
    stays="-",
)
def test_a_server_that_restarts_while_it_calms_down_ends_the_run() -> None:
    def values(now_s: float) -> dict[str, Any]:
        counted = 1000.0 + now_s if now_s < 10.0 else 0.0
        return {"prompt_tokens": counted, "waiting": 99.0 if 5.0 <= now_s < 10.0 else 0.0}

    ran = _run(Scripted([_open(20, seconds=30), _open(5)]), values)
    assert ran.result.stopped == Stopped("guard", "server_restarted")


def test_a_course_that_does_not_outlive_an_overload_ends_with_it() -> None:
    load_plan = Scripted([_open(20, seconds=30), _open(5)], survives_overload=False)
    ran = _run(load_plan, _overloaded(5.0, 15.0))
    assert ran.result.stopped == Stopped("guard", "queue")
    assert [step.tripped for step in ran.result.steps] == ["queue"]
    assert load_plan.trips == [None], "it is told of trips that it outlives"


@pytest.mark.parametrize("begin_s", [3.0, 0.0])
def test_an_overload_without_probe_traffic_ends_the_run(begin_s: float) -> None:
    """It is not ours, and ours would make it worse. Also where the baseline request is on its way."""
    load_plan = Scripted([_open(20)], observe_s=30.0)
    slow_first = FakeServer(seconds=lambda _: 3.0)
    ran = _run(load_plan, _overloaded(begin_s, INF), server=slow_first)
    assert ran.result.stopped == Stopped("guard", "queue")
    assert (len(ran.sent_s), ran.result.steps) == (1, ())
    assert ran.took_s < begin_s + 3.0


def test_as_many_in_flight_as_may_be_is_an_overload_that_a_course_outlives() -> None:
    """20 requests/s that take 0.4 s are 8 in flight; 40 would be 16, and 10 may be."""
    load_plan = Scripted([_open(20, cap=10), _open(40, cap=10), _open(10, cap=10)])
    ran = _run(load_plan, server=FakeServer(seconds=lambda _: 0.4))
    assert load_plan.trips == [None, "in_flight_cap", None]
    assert [step.valid for step in ran.result.steps] == [True, False, True]
    assert ran.result.stopped.by == "done"


def test_for_a_course_of_fixed_steps_it_ends_the_run() -> None:
    load_plan = Scripted([_open(40, cap=10), _open(10, cap=10)], survives_overload=False)
    ran = _run(load_plan, server=FakeServer(seconds=lambda _: 0.4))
    assert ran.result.stopped == Stopped("guard", "in_flight_cap")
    assert [step.tripped for step in ran.result.steps] == ["in_flight_cap"]


# Thinking.


def test_the_guard_goes_on_while_the_course_thinks() -> None:
    ran = _run(Scripted([_open(20)]), _overloaded(60.0, INF), think=_slowly(200.0))
    assert ran.result.stopped == Stopped("guard", "queue")
    assert ran.result.steps == ()
    assert len(ran.sent_s) == 1


def test_the_budget_of_seconds_holds_while_the_course_thinks_and_no_step_begins_after_it() -> None:
    ran = _run(Scripted([_open(20), _open(20)]), budget=Budget(10**9, 30.0, 10**6), think=_slowly(20.0))
    assert ran.result.stopped == Stopped("budget", "seconds")
    assert len(ran.result.steps) == 0


def test_stop_while_the_course_thinks_sends_no_more() -> None:
    ran = _run(Scripted([_open(20)]), think=_slowly(20.0), stop_after_s=25.0)
    assert ran.result.stopped == Stopped("interrupt", "signal")
    assert ran.result.capacity.requests_per_second == 0.0
    assert len(ran.sent_s) == 1


def test_computing_after_the_last_request_costs_no_seconds() -> None:
    """20 s each: the baseline request, the choice of a step, its result, the end of the load plan, the capacity."""
    ran = _run(Scripted([_open(20)]), think=_slowly(20.0))
    assert ran.took_s == pytest.approx(0.1 + 40 + 10 + 60, abs=1.0)
    assert ran.result.cost.seconds == pytest.approx(0.1 + 40 + 10, abs=1.0)


def _slowly(seconds: float) -> Think:
    async def think(work: Callable[[], _T], /) -> _T:
        await asyncio.sleep(seconds)
        return work()

    return think


def test_by_default_a_load_plan_computes_in_a_thread_while_the_server_is_read() -> None:
    """In real time: what blocks the thread must not block the loop."""
    threads: set[int] = set()
    may_go_on = threading.Event()

    def works() -> None:
        threads.add(threading.get_ident())
        assert may_go_on.wait(10.0), "the loop went on while the load plan was thinking"

    load_plan = Scripted([StepPlan(1, 0.05, requests=2)], works=works)
    metrics = FakeMetrics()

    async def run() -> CapacityResult:
        clock = SystemClock()
        job = _asked(load_plan).job
        ramp = CapacityRun(
            job, load_plan, LocalLoad(ready(FakeServer(seconds=lambda _: 0.001)), clock), ServerAccess(metrics), clock
        )
        running = asyncio.create_task(ramp.run())
        async with asyncio.timeout(10):
            while not threads:  # noqa: ASYNC110 - another thread changes it
                await asyncio.sleep(0.01)
            seen = len(metrics.read_s)
            while len(metrics.read_s) < seen + 2:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        may_go_on.set()
        return await running

    result = asyncio.run(run())
    assert threads != {threading.get_ident()}
    assert result.stopped == Stopped("done", "that is all")


@pytest.mark.fault(
    "LO21",
    "A step of the load plan that fails",
    area="Load",
    users_see="the run ends with its error",
    stays="its cost is reported",
)
def test_a_load_plan_that_fails_ends_the_run_with_its_error_and_the_cost_is_reported() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    async def run() -> CapacityResult:
        load_plan = Scripted([_open(20)], works=fails)
        load_plan.capacity = lambda *_: fails()  # type: ignore[method-assign, assignment]
        load = LocalLoad(ready(FakeServer()), VirtualClock())
        ramp = _asked(load_plan).ramp(load, FakeMetrics(), VirtualClock())
        with pytest.raises(ZeroDivisionError):
            await ramp.run()
        return await ramp.result()

    result = virtually(run())
    assert result.cost.requests > 100
    assert result.capacity.requests_per_second is None
    assert "could not be computed (ZeroDivisionError)" in str(result.capacity.reason)

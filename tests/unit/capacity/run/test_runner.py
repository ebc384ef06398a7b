"""A capacity run: what ends it, that nothing is in flight afterwards, and that the figure is earned."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from example_records import CHAT
from fake_request import LocalLoad, Send
from fake_server import Asked, FakeMetrics, FakeServer, Timed, job, ready, specs
from virtual_time import Jumpy, VirtualClock, virtually

from probe.capacity.run.request import Budget
from probe.capacity.run.runner import CapacityRun
from probe.core.request import Outcome, RequestRecord, RequestSpec
from probe.core.result import CapacityResult, Stopped
from probe.core.snapshot import Histogram, ServerSnapshot
from probe.core.step import StepPlan, StepSummary
from probe.core.time_limits import out_of_time

PLENTY = Budget(tokens=10**9, seconds=10**6, over_objective_seconds=10**6)
CALM: dict[str, Any] = {}


def _job(
    *concurrency: int,
    step_s: float = 4.0,
    budget: Budget = PLENTY,
    is_guarded: bool = True,
    requests: int | None = None,
) -> Asked:
    steps = tuple(StepPlan(concurrency=c, seconds=step_s, requests=requests) for c in concurrency)
    return Asked(job(CHAT, budget, is_guarded=is_guarded), steps)


def _load(to: Send) -> LocalLoad:
    return LocalLoad(ready(to), VirtualClock())


@dataclass
class Run:
    """A ramp against fakes, and what it told its caller on the way."""

    asked: Asked
    server: FakeServer = field(default_factory=FakeServer)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    prompt_tokens: int = 8
    output_tokens: int = 3
    steps: list[StepSummary] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    took_s: float = 0.0

    def ramp(self) -> CapacityRun:
        return self.asked.ramp(
            LocalLoad(ready(self.server, specs(self.prompt_tokens, self.output_tokens)), VirtualClock()),
            self.metrics,
            VirtualClock(),
            on_step=self.steps.append,
            on_record=self.records.append,
        )

    def to_its_end(self, *, stop_after_s: float | None = None, within_s: float = 600.0) -> CapacityResult:
        async def run() -> CapacityResult:
            loop = asyncio.get_running_loop()
            before = loop.time()
            ramp = self.ramp()
            if stop_after_s is not None:
                loop.call_later(stop_after_s, ramp.stop, "interrupt", "signal")
            result = await ramp.run()
            self.took_s = loop.time() - before
            self.harmless()
            return result

        return virtually(run(), within_s=within_s)

    def harmless(self) -> None:
        assert self.server.in_flight == 0


def _at(seconds: float, values: dict[str, Any] | None) -> Callable[[float], dict[str, Any] | None]:
    """Return a quiet server until `seconds` after the load began, then `values`."""
    return lambda now_s: values if now_s >= seconds else CALM


# Guard.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "values"),
    [
        ("preemptions", {"preemptions": 3.0}),
        ("queue", {"waiting": 9.0}),
        ("kv_cache", {"kv_cache_usage": 0.99}),
        ("server_unreadable", None),
    ],
)
def test_the_guard_stops_the_load_soon_after_the_server_shows_it(reason: str, values: dict[str, Any] | None) -> None:
    run = Run(_job(4, 8, step_s=30.0), metrics=FakeMetrics(_at(5.0, values)))
    result = run.to_its_end()
    assert result.stopped == Stopped("guard", reason)
    assert run.took_s < 7.0
    (step,) = result.steps
    assert (step.valid, step.reason) == (False, "cut_short")
    assert step.requests.aborted == 4
    assert result.capacity.requests_per_second is None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.SERVER_ERROR, "server_errors"),
        (Outcome.REJECTED, "rate_limited"),
        (Outcome.UNREACHABLE, "server_errors"),
        (Outcome.TIMEOUT, "server_errors"),
        (Outcome.WRONG_ANSWER, "failed_requests"),
        (Outcome.BAD_REQUEST, "failed_requests"),
        (Outcome.BROKEN_STREAM, "failed_requests"),
    ],
)
def test_a_failing_request_stops_the_load(outcome: Outcome, reason: str) -> None:
    server = FakeServer(outcome=lambda number: outcome if number >= 30 else Outcome.OK)
    run = Run(_job(4, 8, step_s=30.0), server)
    result = run.to_its_end()
    assert result.stopped == Stopped("guard", reason)
    assert run.took_s < 2.0
    assert len(server.sent_s) < 60


@pytest.mark.fault("CO62")
def test_an_answer_that_kneewatchs_own_limit_cut_is_not_the_servers_error() -> None:
    limit = out_of_time("no full answer within 30 s", "--timeout")
    server = FakeServer(outcome=lambda number: Outcome.TIMEOUT if number >= 30 else Outcome.OK, detail=limit)
    result = Run(_job(4, 8, step_s=30.0), server).to_its_end()
    assert result.stopped == Stopped("guard", "time_limit")
    assert result.first_failure == f"timeout: {limit}"
    assert "raise --timeout" in str(result.capacity.advice)
    assert "log" not in str(result.capacity.advice)


@pytest.mark.fault(
    "TR6",
    "Requests that were cancelled by Kneewatch",
    area="Truth",
    users_see="not counted as failures of the server",
    stays="-",
)
def test_requests_that_we_cancelled_ourselves_are_no_failures() -> None:
    result = Run(_job(4, step_s=30.0)).to_its_end(stop_after_s=5.0)
    assert result.stopped == Stopped("interrupt", "signal")
    assert result.steps[0].requests.failed == 0


@pytest.mark.slow
def test_a_knee_below_a_guarded_stop_is_published_with_what_stopped_it() -> None:
    run = Run(_job(4, 8, 16, step_s=4.0), metrics=FakeMetrics(_at(6.0, {"waiting": 9.0})))
    result = run.to_its_end()
    assert (result.capacity.knee_concurrency, result.capacity.upper) == (None, None)
    assert result.capacity.requests_per_second == pytest.approx(40.0, rel=0.02)
    assert result.capacity.limiting == "queue"
    assert [step.plan.concurrency for step in result.steps] == [4, 8]


def test_without_the_guard_every_step_runs_whatever_the_server_says() -> None:
    server = FakeServer(outcome=lambda number: Outcome.SERVER_ERROR if number % 3 else Outcome.OK)
    run = Run(
        _job(1, 2, 4, is_guarded=False),
        server,
        FakeMetrics(lambda now_s: {"waiting": 50.0, "kv_cache_usage": 1.0, "preemptions": now_s * 10}),
    )
    result = run.to_its_end()
    assert [step.plan.concurrency for step in result.steps] == [1, 2, 4]
    assert result.stopped == Stopped("done")


def test_a_preemption_belongs_to_the_step_that_caused_it() -> None:
    # The first step sends until 2.1 s; what the server counts from 2.5 s on is the second's.
    run = Run(_job(4, 8, step_s=2.0), metrics=FakeMetrics(lambda now_s: {"preemptions": 2.0 if now_s > 2.5 else 0.0}))
    result = run.to_its_end()
    assert [step.server.preemptions for step in result.steps] == [0.0, 2.0]


def test_the_server_is_read_before_and_after_each_step() -> None:
    run = Run(_job(4, 8, step_s=2.0))
    result = run.to_its_end()
    assert len(result.steps) == 2
    first_load_s, last_load_s = run.server.sent_s[1], run.server.sent_s[-1] + 0.1
    assert any(read <= first_load_s for read in run.metrics.read_s)
    assert any(read >= last_load_s - 1e-6 for read in run.metrics.read_s)
    assert max(run.metrics.read_s) - min(run.metrics.read_s) >= run.took_s - 0.5


# Budgets.


def test_a_run_ends_with_its_budget_of_tokens() -> None:
    run = Run(_job(4, 8, step_s=60.0, budget=Budget(1000, 10**6, 10**6)))
    result = run.to_its_end()
    assert result.stopped.by == "budget"
    assert result.stopped.reason == "tokens_per_run"
    assert result.capacity.requests_per_second is None
    # 440 tokens/s: half a second late at most.
    assert 1000 <= result.cost.tokens < 1400


@pytest.mark.slow
@pytest.mark.fault(
    "LO22",
    "A run that spends its tokens",
    area="Load",
    users_see="`budget`",
    stays="what is in flight counts",
)
def test_tokens_that_are_in_flight_count_against_the_budget() -> None:
    """64 prompts of 10 000 tokens are 640 000 for the server, answered or not."""
    run = Run(
        _job(64, step_s=60.0, budget=Budget(100_000, 10**6, 10**6)),
        FakeServer(seconds=lambda in_flight: 0.1 if in_flight == 1 else 50.0),
        prompt_tokens=10_000,
    )
    result = run.to_its_end()
    assert result.stopped.by == "budget"
    assert run.took_s < 2.0


def test_a_run_ends_with_its_budget_of_seconds() -> None:
    run = Run(_job(4, 8, step_s=60.0, budget=Budget(10**9, 7.0, 10**6)))
    result = run.to_its_end()
    assert result.stopped == Stopped("budget", "seconds")
    assert run.took_s == pytest.approx(7.0, abs=0.6)
    assert result.cost.seconds == pytest.approx(run.took_s, abs=0.05)


def test_a_run_ends_with_its_budget_of_seconds_over_an_objective() -> None:
    slow = FakeServer(seconds=lambda _: 0.8)
    run = Run(_job(4, step_s=60.0, budget=Budget(10**9, 10**6, 5.0)), slow)
    result = run.to_its_end()
    assert result.stopped == Stopped("budget", "over_objective_seconds")
    # Of every answer's 0.8 s the last 0.3 s are over: 5 s of these are reached in the 17th round.
    assert run.took_s == pytest.approx(0.8 + 16.7 * 0.8, abs=1.5)


@pytest.mark.slow
def test_a_step_that_spends_the_budget_over_an_objective_bounds_the_knee_as_one_that_broke_it() -> None:
    # 2 in flight hold; 8 take 0.9 s an answer, and a step is long enough to spend 20 s over TTFT.
    server = FakeServer(seconds=lambda in_flight: 0.1 if in_flight <= 2 else 0.9)

    def no_users(_: float) -> dict[str, Any]:
        own = float(len(server.sent_s) - server.in_flight)
        return {"histograms": {"ttft": Histogram(((float("inf"), own),), 0.0)}}

    run = Run(_job(2, 8, step_s=60.0, budget=Budget(10**9, 10**6, 20.0)), server, Timed(no_users))
    result = run.to_its_end()
    assert result.stopped == Stopped("budget", "over_objective_seconds")
    assert (result.capacity.knee_concurrency, result.capacity.limiting) == (2, "ttft")
    assert result.capacity.upper is not None
    alone = Run(_job(8, step_s=60.0, budget=Budget(10**9, 10**6, 20.0)), FakeServer(seconds=lambda _: 0.9))
    assert "begin lower" in str(alone.to_its_end().capacity.advice)


def test_a_server_that_hangs_is_time_over_an_objective() -> None:
    # Four requests hang; 500 ms and two tokens at 50 ms after their start they are over, answered or not.
    server = FakeServer()
    server.seconds = lambda _: 0.1 if len(server.sent_s) == 1 else 500.0
    run = Run(_job(4, step_s=60.0, budget=Budget(10**9, 10**6, 2.0), is_guarded=False), server)
    result = run.to_its_end()
    assert result.stopped == Stopped("budget", "over_objective_seconds")
    assert run.took_s == pytest.approx(0.1 + 0.6 + 2.0, abs=0.6)
    assert result.cost.over_objective_seconds == pytest.approx(2.0, abs=0.5)


def test_output_tokens_in_flight_count_against_the_budget() -> None:
    server = FakeServer()
    server.seconds = lambda _: 0.1 if len(server.sent_s) == 1 else 50.0
    run = Run(_job(8, step_s=60.0, budget=Budget(10_000, 10**6, 10**6)), server, output_tokens=4000)
    assert run.to_its_end().stopped.by == "budget"
    assert run.took_s < 1.0


@pytest.mark.fault(
    "LO9",
    "A server that is slow to be read",
    area="Load",
    users_see="the guard goes on without",
    stays="-",
)
def test_a_server_that_is_slow_to_be_read_does_not_hold_up_the_guard() -> None:
    # A reading takes 10 s, and from the 20th on every request fails: the first failure ends the load.
    server = FakeServer(outcome=lambda number: Outcome.SERVER_ERROR if number >= 20 else Outcome.OK)
    run = Run(_job(4, step_s=60.0), server, FakeMetrics(takes_s=10.0))
    assert run.to_its_end().stopped == Stopped("guard", "server_errors")
    assert len(server.sent_s) <= 24


@pytest.mark.fault(
    "LO10",
    "A server that cannot be read in time",
    area="Load",
    users_see="`server_unreadable`",
    stays="it is not loaded on",
)
def test_a_server_that_cannot_be_read_in_time_is_not_loaded_on() -> None:
    run = Run(_job(4, step_s=60.0), metrics=FakeMetrics(takes_s=10.0))
    assert run.to_its_end().stopped == Stopped("guard", "server_unreadable")
    assert run.took_s < 3.5


@pytest.mark.fault(
    "LO23",
    "A run without a guard",
    area="Load",
    users_see="budgets still end it",
    stays="-",
)
def test_budgets_hold_without_the_guard_too() -> None:
    run = Run(_job(4, step_s=60.0, is_guarded=False, budget=Budget(10**9, 3.0, 10**6)))
    assert run.to_its_end().stopped.by == "budget"
    assert run.took_s < 4.0


# The caller.


def test_stop_ends_the_load_at_once_and_the_result_says_who_asked() -> None:
    job = _job(4, 8, step_s=60.0, is_guarded=False)
    run = Run(job, FakeServer(seconds=lambda _: 20.0 if len(run.server.sent_s) > 1 else 0.1))
    result = run.to_its_end(stop_after_s=3.05)
    assert result.stopped == Stopped("interrupt", "signal")
    assert run.took_s == pytest.approx(3.05, abs=0.1)
    assert result.steps[0].requests.aborted == 4


def test_stop_ends_a_warm_up_that_hangs() -> None:
    run = Run(_job(4), FakeServer(seconds=lambda _: 500.0))
    result = run.to_its_end(stop_after_s=2.0, within_s=30.0)
    assert result.stopped == Stopped("interrupt", "signal")
    assert run.took_s < 3.0


def test_the_guard_and_the_budget_end_a_warm_up_that_hangs() -> None:
    budget = Budget(10**9, 5.0, 10**6)
    run = Run(_job(4, budget=budget), FakeServer(seconds=lambda _: 500.0))
    assert run.to_its_end(within_s=30.0).stopped == Stopped("budget", "seconds")
    run = Run(_job(4), FakeServer(seconds=lambda _: 500.0), FakeMetrics(_at(1.0, None)))
    assert run.to_its_end(within_s=30.0).stopped == Stopped("guard", "server_unreadable")


def test_stop_before_the_run_sends_nothing() -> None:
    async def begin() -> CapacityResult:
        ramp = run.ramp()
        ramp.stop("interrupt", "signal")
        return await ramp.run()

    run = Run(_job(4))
    result = virtually(begin())
    assert run.server.sent_s == []
    assert result.stopped == Stopped("interrupt", "signal")


def test_stop_between_two_steps_sends_no_more() -> None:
    # A reading of the server takes a second: the stop arrives while the second step waits for its first one.
    metrics = FakeMetrics(takes_s=1.0)
    run = Run(_job(4, 8, requests=40), metrics=metrics)
    # Warm-up 0.1 s, reading 1 s, forty requests in 1 s, readings until 3.1 s and 4.1 s.
    run.to_its_end(stop_after_s=3.5)
    assert len(run.server.sent_s) == 41


def test_the_first_reason_to_stop_is_the_one_reported() -> None:
    async def begin() -> CapacityResult:
        ramp = run.ramp()

        def stop_twice() -> None:
            ramp.stop("interrupt", "first")
            ramp.stop("budget", "second")

        asyncio.get_running_loop().call_later(1.0, stop_twice)
        return await ramp.run()

    run = Run(_job(4, step_s=30.0))
    assert virtually(begin()).stopped == Stopped("interrupt", "first")


@pytest.mark.fault(
    "LO12",
    "A run is cancelled",
    area="Load",
    users_see="nothing",
    stays="nothing in flight, no watcher",
)
def test_a_run_that_is_cancelled_leaves_nothing_in_flight_and_no_watcher() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(run.ramp().run())
        await asyncio.sleep(2.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        run.harmless()

    run = Run(_job(4, step_s=60.0))
    virtually(cancelled())


# What breaks.


@pytest.mark.parametrize("after_s", [0.0, 1.3])
@pytest.mark.fault(
    "LO11",
    "The guard's watcher dies",
    area="Load",
    users_see="the run ends with its error",
    stays="no load without it",
)
def test_without_its_watcher_the_load_ends_and_the_error_is_not_lost(after_s: float) -> None:
    class BrokenError(Exception):
        pass

    begun: list[float] = []

    async def read() -> ServerSnapshot:
        now_s = asyncio.get_running_loop().time()
        begun.append(now_s)
        if now_s - begun[0] >= after_s:
            raise BrokenError
        return await FakeMetrics()()

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(BrokenError):
            await _job(4, step_s=60.0).ramp(_load(server), read, VirtualClock()).run()
        assert loop.time() - before < after_s + 1.0
        assert server.in_flight == 0

    server = FakeServer()
    virtually(watched())


@pytest.mark.fault(
    "LO13",
    "Sending raises",
    area="Load",
    users_see="the run ends with that error",
    stays="nothing in flight",
)
def test_a_send_that_raises_ends_the_run_with_that_error() -> None:
    run = Run(_job(4, step_s=60.0))

    async def send(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        if len(run.server.sent_s) > 20:
            raise ZeroDivisionError
        return await run.server(spec, scheduled_ns)

    async def failing() -> None:
        with pytest.raises(ZeroDivisionError):
            await run.asked.ramp(_load(send), run.metrics, VirtualClock()).run()
        run.harmless()

    virtually(failing())


def test_a_caller_that_raises_ends_the_run_with_that_error() -> None:
    def on_step(_: StepSummary) -> None:
        raise ZeroDivisionError

    async def failing() -> None:
        ramp = _job(4, 8).ramp(_load(FakeServer()), FakeMetrics(), VirtualClock(), on_step=on_step)
        with pytest.raises(ZeroDivisionError):
            await ramp.run()

    virtually(failing())


# What is found.


@pytest.mark.slow
def test_the_ramp_finds_the_knee_and_goes_no_further_than_the_step_that_broke() -> None:
    # Up to 8 in flight every answer takes 0.2 s; beyond, each one more costs 0.1 s: TTFT breaks 500 ms at 16.
    server = FakeServer(seconds=lambda in_flight: 0.2 + 0.1 * max(in_flight - 8, 0))
    run = Run(_job(2, 4, 8, 16, 32), server)
    result = run.to_its_end()
    assert [step.plan.concurrency for step in result.steps] == [2, 4, 8, 16]
    assert [step.broken for step in result.steps] == [(), (), (), ("ttft",)]
    assert result.stopped.by == "done"
    assert "16" in (result.stopped.reason or "")
    assert result.capacity.knee_concurrency == 8
    assert result.capacity.limiting == "ttft"
    assert result.capacity.requests_per_second == pytest.approx(40.0, rel=0.02)
    assert server.peak == 16
    assert run.steps == list(result.steps)


def test_when_nothing_breaks_the_figure_is_a_lower_bound() -> None:
    result = Run(_job(2, 4)).to_its_end()
    assert result.stopped == Stopped("done")
    assert (result.capacity.knee_concurrency, result.capacity.upper) == (None, None)
    assert "at least" in (result.capacity.reason or "")


@pytest.mark.fault(
    "TR7",
    "Too few requests in a step",
    area="Truth",
    users_see="no knee",
    stays="the last capacity",
)
def test_steps_with_too_few_requests_publish_no_knee() -> None:
    run = Run(_job(1, 2, step_s=1.0, requests=19))
    result = run.to_its_end()
    assert [step.valid for step in result.steps] == [False, False]
    assert result.capacity.requests_per_second is None
    assert "too_few_requests" in (result.capacity.reason or "")


@pytest.mark.slow
@pytest.mark.fault(
    "ST2",
    "A client that is late in a step",
    area="Starvation",
    users_see="the step is void (`client_bound`) and publishes no knee",
    stays="the last capacity",
)
def test_a_step_in_which_the_client_was_late_publishes_no_knee_ends_no_ramp_and_wants_more_workers() -> None:
    async def begin() -> tuple[CapacityResult, int]:
        slow = FakeServer(seconds=lambda _: 0.8)
        clock = Jumpy()
        load = LocalLoad(ready(slow), clock)
        return await _job(2, 4, requests=40).ramp(load, FakeMetrics(), clock).run(), load.added

    result, added = virtually(begin())
    assert added == 2
    assert [step.reason for step in result.steps] == ["client_bound", "client_bound"]
    assert result.capacity.requests_per_second is None
    assert result.stopped.by == "done"


@pytest.mark.slow
def test_the_warm_up_is_no_part_of_any_step_but_of_the_cost() -> None:
    # The very first answer takes 30 s: a cold server.
    server = FakeServer()
    server.seconds = lambda _: 30.0 if len(server.sent_s) == 1 else 0.1
    run = Run(_job(4, requests=40), server)
    result = run.to_its_end()
    assert result.steps[0].requests.ok == 40
    assert result.steps[0].ttft_s.max == pytest.approx(0.1, abs=0.01)
    assert result.cost.requests == 41
    assert result.cost.over_objective_seconds == 0.0


def test_a_failed_warm_up_means_no_load() -> None:
    server = FakeServer(outcome=lambda _: Outcome.SERVER_ERROR)
    result = Run(_job(4, 8), server).to_its_end()
    assert len(server.sent_s) == 1
    assert result.stopped.by == "guard"
    assert result.steps == ()
    assert result.capacity.requests_per_second is None


def test_every_request_is_reported_once_and_accounted_for() -> None:
    run = Run(_job(4, 8, step_s=2.0))
    result = run.to_its_end(stop_after_s=3.15)
    assert len(run.records) == len(run.server.sent_s) == result.cost.requests
    assert len({id(r) for r in run.records}) == len(run.records)
    ok = sum(r.outcome is Outcome.OK for r in run.records)
    aborted = len(run.records) - ok
    assert aborted == 8
    assert result.cost.tokens == ok * 11 + aborted * 11  # what was cancelled may have been worked on to its end
    assert sum(step.requests.ok + step.requests.aborted for step in result.steps) == len(run.records) - 1


def test_results_have_ids_of_their_own_and_the_moment_they_began() -> None:
    first, second = (Run(_job(4, requests=20)).to_its_end() for _ in range(2))
    assert first.id != second.id
    assert first.started.utcoffset() is not None
    assert first.id.startswith(f"{first.started:%Y%m%dT%H%M%S}-")
    assert (first.target, first.model, first.schema) == ("a", "m", "kneewatch.result/1")

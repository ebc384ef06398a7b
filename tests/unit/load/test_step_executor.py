"""One closed-loop step: what is in flight, when it ends, and that stopping it stops it."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from example_records import CHAT, record
from example_records import spec as one_spec
from fake_request import FakeAnswer, FakeRequest
from fake_server import FakeServer, ready, specs
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from virtual_time import VirtualClock, virtually

from probe.core.latency import ttft_s
from probe.core.reasons import MIN_REQUESTS
from probe.core.request import Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun
from probe.load import step_summary as summary
from probe.load.messages import WorkerShare
from probe.load.sent_request import PACKED, unpack
from probe.load.step_executor import StepExecution

FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.OK]


async def _run(server: FakeServer, plan: StepPlan, *, stop_after_s: float | None = None) -> StepRun:
    stop = asyncio.Event()
    if stop_after_s is not None:
        asyncio.get_running_loop().call_later(stop_after_s, stop.set)
    return await StepExecution(plan, ready(server), VirtualClock()).run(stop)


def _seconds(run: StepRun) -> float:
    return (run.window_ns[1] - run.window_ns[0]) * 1e-9


@pytest.mark.slow
@examples(40)
@given(
    concurrency=st.integers(1, 40),
    seconds=st.floats(0.5, 5.0),
    latency_s=st.floats(0.01, 3.0),
    requests=st.none() | st.integers(1, 60),
)
def test_never_more_in_flight_than_asked_and_nothing_is_lost(
    concurrency: int, seconds: float, latency_s: float, requests: int | None
) -> None:
    server = FakeServer(seconds=lambda _: latency_s)
    run = virtually(_run(server, StepPlan(concurrency, seconds, requests)), within_s=600)
    assert server.peak <= concurrency
    assert server.in_flight == 0
    assert len(run.records) == len(server.sent_s)
    assert list(run.records) == server.ended
    assert run.is_cut_short is False
    start, end = run.window_ns
    assert all(start <= r.scheduled_ns <= end or r.scheduled_ns == end for r in run.records)
    assert end <= max(r.done_ns for r in run.records)
    if requests is not None:
        assert len(run.records) == requests


def test_a_successor_is_sent_as_soon_as_its_predecessor_is_answered() -> None:
    server = FakeServer(seconds=lambda _: 0.5)
    virtually(_run(server, StepPlan(1, 1.0, requests=4)))
    gaps = [round(b - a, 6) for a, b in itertools.pairwise(server.sent_s)]
    assert gaps == [0.5, 0.5, 0.5]


def test_a_step_by_time_counts_to_the_end_of_sending_and_not_to_the_end_of_the_drain() -> None:
    server = FakeServer(seconds=lambda _: 0.07)
    run = virtually(_run(server, StepPlan(10, 2.0)))
    assert _seconds(run) == pytest.approx(2.0, abs=1e-6)
    # 28 whole rounds of ten fit; the next is sent inside the window and ends at 2.03 s.
    assert len(run.records) == 290
    summed = summary.summarize(run, CHAT)
    assert summed.throughput_rps == pytest.approx(10 / 0.07)  # that last round counts with its share inside
    assert summed.offered_rps == pytest.approx(145.0)


def test_a_step_by_number_counts_to_the_last_answer() -> None:
    run = virtually(_run(FakeServer(seconds=lambda _: 0.25), StepPlan(5, 1.0, requests=50)))
    assert len(run.records) == 50
    assert _seconds(run) == pytest.approx(2.5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("answer_s", [6.0, 10.0, 20.0])
@pytest.mark.parametrize("concurrency", [32, 64])
@pytest.mark.fault(
    "TR8",
    "Answers as long as a step",
    area="Truth",
    users_see="throughput is not understated",
    stays="-",
)
def test_answers_as_long_as_a_step_do_not_read_as_little_throughput(concurrency: int, answer_s: float) -> None:
    """A long answer (1000 tokens at 20 ms take 20 s) in a step of 15 s: 32 in flight are 1.6 requests/s, not 0."""
    run = virtually(_run(FakeServer(seconds=lambda _: answer_s), StepPlan(concurrency, 15.0)))
    relaxed = summary.summarize(run, CHAT)
    assert not relaxed.valid or relaxed.throughput_rps == pytest.approx(concurrency / answer_s, rel=0.1)


def test_a_step_with_too_few_requests_goes_on_until_it_has_enough() -> None:
    server = FakeServer(seconds=lambda _: 0.25)
    run = virtually(_run(server, StepPlan(1, 4.0)))
    assert len(run.records) == MIN_REQUESTS
    assert _seconds(run) == pytest.approx(0.25 * MIN_REQUESTS, abs=1e-6)


def test_a_slow_server_stretches_a_step_to_three_times_its_length_at_most() -> None:
    server = FakeServer(seconds=lambda _: 1.0)
    run = virtually(_run(server, StepPlan(1, 2.0)))
    assert len(run.records) == 6
    assert server.sent_s[-1] - server.sent_s[0] < 6.0


def test_the_last_answers_of_a_stretched_step_dilute_no_rate() -> None:
    """8 in flight, 6 s an answer. The 20th is sent at 12 s, and four users go home; its answer comes at 18 s."""
    run = virtually(_run(FakeServer(seconds=lambda _: 6.0), StepPlan(8, 10.0)))
    assert len(run.records) == MIN_REQUESTS
    assert _seconds(run) == pytest.approx(12.0, abs=1e-6)
    assert summary.summarize(run, CHAT).throughput_rps == pytest.approx(8 / 6)


def test_stop_cancels_everything_in_flight_at_once_and_records_it_as_aborted() -> None:
    async def run() -> tuple[StepRun, float]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        ended = await _run(server, StepPlan(7, 60.0), stop_after_s=1.05)
        return ended, loop.time() - before

    server = FakeServer(seconds=lambda _: 0.5)
    ended, took_s = virtually(run())
    assert took_s == pytest.approx(1.05, abs=0.02)
    assert server.in_flight == 0
    aborted = [r for r in ended.records if r.outcome is Outcome.ABORTED]
    assert len(aborted) == 7
    assert len(ended.records) == len(server.sent_s)
    assert {r.traffic for r in aborted} == {Traffic.CAPACITY}
    assert {(r.target, r.model) for r in aborted} == {("a", "m")}
    assert all(r.done_ns - r.scheduled_ns == pytest.approx(0.05e9, abs=0.02e9) for r in aborted)
    assert ended.is_cut_short


def test_a_step_that_is_stopped_before_it_begins_sends_nothing() -> None:
    async def run() -> StepRun:
        stop = asyncio.Event()
        stop.set()
        return await StepExecution(StepPlan(16, 5.0), ready(server), VirtualClock()).run(stop)

    server = FakeServer()
    ended = virtually(run())
    assert server.sent_s == []
    assert ended.records == ()
    assert ended.is_cut_short


@pytest.mark.fault(
    "LO14",
    "A request that ignores its cancellation",
    area="Load",
    users_see="nothing",
    stays="the load ends all the same",
)
def test_a_send_that_swallows_the_cancellation_does_not_keep_the_load_going() -> None:
    sent = 0

    async def stubborn(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:  # noqa: ARG001
        nonlocal sent
        sent += 1
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            return record(asked=spec, outcome=Outcome.UNREACHABLE)
        return record(asked=spec)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(1.1, stop.set)
        await StepExecution(StepPlan(4, 30.0), ready(stubborn), VirtualClock()).run(stop)

    virtually(run())
    assert sent == 12


@pytest.mark.parametrize("outcome", FAILURES)
@pytest.mark.fault(
    "LO15",
    "A server that fails at once",
    area="Load",
    users_see="each user asks ever more rarely",
    stays="it is not hammered",
)
def test_a_server_that_fails_at_once_is_not_hammered(outcome: Outcome) -> None:
    server = FakeServer(seconds=lambda _: 0.0, outcome=lambda _: outcome)
    run = virtually(_run(server, StepPlan(4, 2.0)))
    assert len(run.records) <= 4 * (2.0 / 0.2 + 1)
    assert len(run.records) >= MIN_REQUESTS


@dataclass
class Seeming(FakeAnswer):
    """One whose look and content differ: a complete stream of the wrong thing, or one that ends in an unusual way."""

    good: bool = True

    @property
    def looks_good(self) -> bool:
        return self.good


@dataclass
class SeemingRequest(FakeRequest):
    good: bool = True

    async def send(self, scheduled_ns: int) -> FakeAnswer:
        return Seeming(await self.to(self.spec, scheduled_ns), self.good)


def _seeming(server: FakeServer, plan: StepPlan, *, good: bool) -> StepRun:
    return virtually(
        StepExecution(plan, (SeemingRequest(one, server, good) for one in specs()), VirtualClock()).run(asyncio.Event())
    )


def test_a_failure_that_only_reading_shows_is_not_hammered_either() -> None:
    server = FakeServer(seconds=lambda _: 0.001, outcome=lambda _: Outcome.WRONG_ANSWER)
    _seeming(server, StepPlan(4, 10.0), good=True)
    assert len(server.sent_s) < 4 * 12


def test_a_good_answer_with_an_unusual_end_costs_no_throughput() -> None:
    run = _seeming(FakeServer(seconds=lambda _: 0.1), StepPlan(4, 10.0), good=False)
    assert summary.summarize(run, CHAT).throughput_rps == pytest.approx(40.0, rel=0.01)


@pytest.mark.slow
@pytest.mark.fault("LO15")
def test_users_that_keep_failing_ask_ever_more_rarely() -> None:
    server = FakeServer(seconds=lambda _: 0.0, outcome=lambda _: Outcome.UNREACHABLE)
    virtually(_run(server, StepPlan(512, 20.0)))
    last_second = [at for at in server.sent_s if at > server.sent_s[0] + 19]
    assert len(last_second) <= 512
    assert len(server.sent_s) < 512 * 15


def test_a_user_whose_failures_end_is_back_at_once() -> None:
    server = FakeServer(outcome=lambda number: Outcome.REJECTED if number < 3 else Outcome.OK)
    virtually(_run(server, StepPlan(1, 10.0, requests=6)))
    pauses = [round(b - a - 0.1, 3) for a, b in itertools.pairwise(server.sent_s)]
    assert pauses == [0.2, 0.4, 0.8, 0.0, 0.0]


def test_a_send_that_raises_ends_the_step_with_that_error_and_nothing_in_flight() -> None:
    good = FakeServer(seconds=lambda _: 5.0)

    async def send(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        if len(good.sent_s) == 3:
            await asyncio.sleep(0.1)
            raise ZeroDivisionError
        return await good(spec, scheduled_ns)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(ZeroDivisionError):
            await StepExecution(StepPlan(8, 30.0), ready(send), VirtualClock()).run(asyncio.Event())
        assert loop.time() - before < 0.2

    virtually(run())
    assert good.in_flight == 0


def test_requests_that_run_out_are_an_error_and_no_endless_step() -> None:
    async def run() -> None:
        few = iter([one_spec(), one_spec()])
        with pytest.raises(RuntimeError):
            await StepExecution(StepPlan(1, 30.0), ready(FakeServer(), few), VirtualClock()).run(asyncio.Event())

    virtually(run())


def test_the_same_request_twice_in_flight_is_two_requests() -> None:
    async def run() -> StepRun:
        same: Iterator[RequestSpec] = itertools.repeat(one_spec())
        plan = StepPlan(4, 1.0, requests=40)
        return await StepExecution(plan, ready(FakeServer(), same), VirtualClock()).run(asyncio.Event())

    assert len(virtually(run()).records) == 40


@pytest.mark.slow
@pytest.mark.fault(
    "ME4",
    "Answers that wait to be read",
    area="Memory",
    users_see="nothing",
    stays="they do not pile up",
)
def test_answers_that_wait_to_be_read_do_not_pile_up() -> None:
    """Answers come in faster than a portion a turn: a thousand may wait, and no more."""
    peak = 0

    async def run() -> None:
        def look(_: RequestRecord) -> None:
            nonlocal peak
            if next(looks) % 50 == 0:
                peak = max(peak, len(step.in_flight_numbers()) // PACKED - step.sending)

        looks, plan = itertools.count(), StepPlan(500, 1.0, requests=6_000)
        step = StepExecution(plan, ready(FakeServer(seconds=lambda _: 0.0)), VirtualClock(), on_record=look)
        await step.run(asyncio.Event())

    virtually(run())
    assert peak < 2000


def test_making_the_first_requests_lets_others_have_their_turn() -> None:
    async def run() -> None:
        step = StepExecution(StepPlan(100, 1.0), ready(FakeServer()), VirtualClock())
        preparing = asyncio.create_task(step.prepare())
        turns = 0
        while not preparing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 100

    virtually(run())


def test_a_step_that_is_cancelled_from_outside_leaves_nothing_in_flight() -> None:
    async def run() -> None:
        task = asyncio.create_task(_run(server, StepPlan(8, 60.0)))
        await asyncio.sleep(1.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.in_flight == 0

    server = FakeServer(seconds=lambda _: 0.5)
    virtually(run())


def test_the_loop_lag_is_sampled_over_the_whole_step() -> None:
    run = virtually(_run(FakeServer(), StepPlan(2, 3.0)))
    assert 250 < len(run.loop_lag_s) <= 310


# Warm-up.


def test_a_warm_up_is_loaded_and_not_judged() -> None:
    server = FakeServer(seconds=lambda _: 0.5)
    run = virtually(_run(server, StepPlan(4, 10.0, warm_up_s=4.0)))
    assert _seconds(run) == pytest.approx(10.0, abs=1e-6)
    assert server.sent_s[-1] - server.sent_s[0] > 13
    summed = summary.summarize(run, CHAT)
    assert summed.requests.ok == sum(r.scheduled_ns >= run.window_ns[0] for r in run.records) < len(run.records)
    assert summed.throughput_rps == pytest.approx(8.0)


def test_users_join_one_after_the_other_over_half_of_the_warm_up() -> None:
    server = FakeServer(seconds=lambda _: 100.0)
    virtually(_run(server, StepPlan(8, 1.0, warm_up_s=4.0), stop_after_s=4.9))
    begun = [at - server.sent_s[0] for at in server.sent_s]
    assert begun == pytest.approx([i * 0.25 for i in range(8)], abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_users_join_one_after_the_other_over_all_workers_too(count: int) -> None:
    async def begun() -> list[float]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(4.9, stop.set)
        shares = [WorkerShare(i, count) for i in range(count)]
        plan = StepPlan(8, 1.0, warm_up_s=4.0)
        await asyncio.gather(
            *(StepExecution(plan, ready(server), VirtualClock(), share=share).run(stop) for share in shares)
        )
        return [at - server.sent_s[0] for at in server.sent_s]

    server = FakeServer(seconds=lambda _: 100.0)
    assert virtually(begun()) == pytest.approx([i * 0.25 for i in range(8)], abs=1e-6)


# Open loop.


def _open(rate_rps: float, seconds: float = 10.0, cap: int = 1000, **others: Any) -> StepPlan:
    pattern = others.pop("pattern", Pattern.CONSTANT)
    return StepPlan(cap, seconds, loop="open", arrivals=Arrivals(pattern, rate_rps), **others)


@pytest.mark.slow
@pytest.mark.parametrize("answer_s", [0.01, 0.5, 7.0])
def test_an_open_loop_sends_when_requests_are_due_however_slow_the_answers(answer_s: float) -> None:
    server = FakeServer(seconds=lambda _: answer_s)
    run = virtually(_run(server, _open(20.0)))
    assert len(run.records) == 200
    assert [at - server.sent_s[0] for at in server.sent_s] == pytest.approx([i / 20 for i in range(200)], abs=1e-6)
    assert all(r.sent_ns - r.scheduled_ns == pytest.approx(0, abs=2) for r in run.records)
    assert summary.summarize(run, CHAT).offered_rps == pytest.approx(20.0, rel=0.01)


@pytest.mark.fault(
    "TR9",
    "A slow client or server in an open loop",
    area="Truth",
    users_see="latency counts from when the request was due",
    stays="no coordinated omission",
)
def test_a_late_request_is_timed_from_when_it_was_due() -> None:
    """The loop is blocked for a second: nothing is lost, and the wait is in TTFT (no coordinated omission)."""

    def blocked() -> None:
        asyncio.get_running_loop()._leaping.now_s += 1.0  # type: ignore[attr-defined]

    async def run() -> StepRun:
        asyncio.get_running_loop().call_later(2.0, blocked)
        return await _run(FakeServer(seconds=lambda _: 0.1), _open(10.0, 5.0))

    ended = virtually(run())
    assert len(ended.records) == 50
    assert max(ttft_s(r) or 0.0 for r in ended.records) == pytest.approx(1.0, abs=0.1)


@pytest.mark.fault(
    "LO16",
    "More in flight than allowed in an open loop",
    area="Load",
    users_see="the step ends",
    stays="what is in flight is cancelled",
)
def test_more_in_flight_than_allowed_ends_the_step_and_cancels_what_is_in_flight() -> None:
    server = FakeServer(seconds=lambda _: 60.0)
    run = virtually(_run(server, _open(10.0, 30.0, cap=12)))
    assert (run.is_capped, run.is_cut_short) == (True, True)
    assert server.peak == 12
    assert server.in_flight == 0
    assert [r.outcome for r in run.records] == [Outcome.ABORTED] * 12
    assert summary.summarize(run, CHAT).valid is False


def test_a_step_that_holds_sends_as_fast_as_its_limit_allows_and_counts_the_wait() -> None:
    """Two in flight, a second each: 2 of the 10 requests/s are sent, and each later one waited longer."""
    server = FakeServer(seconds=lambda _: 1.0)
    run = virtually(_run(server, _open(10.0, 10.0, cap=2, holds=True)))
    found = summary.summarize(run, CHAT)
    assert (server.peak, run.is_capped, run.is_cut_short) == (2, False, False)
    pairs = [i + late for i in range(10) for late in (0.0, 0.1)]
    assert [at - server.sent_s[0] for at in server.sent_s] == pytest.approx(pairs, abs=1e-6)
    waited = [record.held_ns * 1e-9 for record in sorted(run.records, key=lambda r: r.scheduled_ns)]
    assert waited == pytest.approx([0.8 * i for i in range(10) for _ in range(2)], abs=1e-6)
    ttfts = [ttft_s(record) or 0.0 for record in sorted(run.records, key=lambda r: r.scheduled_ns)]
    assert [ttft - held for ttft, held in zip(ttfts, waited, strict=True)] == pytest.approx([ttfts[0]] * 20, abs=1e-6)
    assert found.schedule_lag_s.max == pytest.approx(0.0, abs=1e-6), "which is no lateness of the client"
    assert found.held_s.max == pytest.approx(7.2, abs=1e-6)


def test_a_step_that_holds_stops_at_once() -> None:
    server = FakeServer(seconds=lambda _: 100.0)
    run = virtually(_run(server, _open(10.0, 60.0, cap=3, holds=True), stop_after_s=5.0))
    assert (len(run.records), server.in_flight, run.is_cut_short) == (3, 0, True)


def test_an_open_loop_by_number_ends_after_that_many_requests() -> None:
    run = virtually(_run(FakeServer(), _open(10.0, 1.0, requests=35)))
    assert len(run.records) == 35


@pytest.mark.slow
def test_shares_together_send_what_the_whole_would() -> None:
    async def sent(count: int) -> list[int]:
        async def one(index: int) -> StepRun:
            step = StepExecution(plan, ready(FakeServer()), VirtualClock(), share=WorkerShare(index, count), seed=5)
            return await step.run(asyncio.Event(), start_ns)

        start_ns = VirtualClock().monotonic_ns() + 10**9
        runs = await asyncio.gather(*(one(i) for i in range(count)))
        return sorted(r.scheduled_ns - start_ns for run in runs for r in run.records)

    plan = _open(40.0, 5.0, pattern=Pattern.POISSON)
    assert virtually(sent(1)) == virtually(sent(3))


@given(st.integers(1, 1024), st.integers(1, 64))
def test_shares_add_up(whole: int, count: int) -> None:
    shares = [WorkerShare(i, count).part_of(whole) for i in range(count)]
    assert sum(shares) == whole
    assert max(shares) - min(shares) <= 1


@pytest.mark.fault(
    "LO17",
    "A schedule that cannot be kept",
    area="Load",
    users_see="nothing",
    stays="stop still stops it",
)
def test_a_schedule_that_cannot_be_kept_does_not_keep_stop_out() -> None:
    """All of it is overdue at once, and the cap is far away."""

    async def send(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
        stop.set()
        return await server(spec, scheduled_ns)

    async def run() -> StepRun:
        plan = StepPlan(10**6, 60.0, loop="open", arrivals=Arrivals(Pattern.REPLAY, times_s=(0.0,) * 5000))
        return await StepExecution(plan, ready(send), VirtualClock()).run(stop)

    stop, server = asyncio.Event(), FakeServer()
    ended = virtually(run())
    assert len(ended.records) < 100
    assert server.in_flight == 0


def test_recorded_times_that_end_early_end_the_step() -> None:
    times_s = tuple(i / 10 for i in range(50))
    plan = StepPlan(100, 60.0, loop="open", arrivals=Arrivals(Pattern.REPLAY, times_s=times_s))
    run = virtually(_run(FakeServer(), plan))
    assert _seconds(run) == pytest.approx(5.0, abs=0.01)
    assert summary.summarize(run, CHAT).throughput_rps == pytest.approx(10.0, rel=0.03)


def test_stopping_an_open_loop_cancels_at_once() -> None:
    server = FakeServer(seconds=lambda _: 5.0)
    run = virtually(_run(server, _open(20.0, 60.0), stop_after_s=2.025))
    assert server.in_flight == 0
    assert run.is_cut_short
    assert len(run.records) == len(server.sent_s) == 41


def test_an_error_in_an_open_loop_is_not_lost() -> None:
    async def send(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:  # noqa: ARG001
        await asyncio.sleep(0.1)
        raise ZeroDivisionError

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await StepExecution(_open(20.0, 60.0), ready(send), VirtualClock()).run(asyncio.Event())

    virtually(run())


def test_a_request_in_flight_shows_whether_its_answer_has_begun() -> None:
    async def asked() -> None:
        async def never(spec: RequestSpec, scheduled_ns: int) -> RequestRecord:
            await asyncio.sleep(1000)
            raise AssertionError((spec, scheduled_ns))

        begun, waiting = (FakeRequest(one, never, reads) for one, reads in zip(specs(), (7, 0), strict=False))
        step = StepExecution(StepPlan(2, 10.0), iter((begun, waiting, waiting, waiting)), VirtualClock())
        stop = asyncio.Event()
        running = asyncio.create_task(step.run(stop))
        await asyncio.sleep(1.0)
        assert [reads for *_, reads in unpack(step.in_flight_numbers())] == [7, 0]
        assert [record.reads for record in step.in_flight()] == [7, 0]
        stop.set()
        assert [record.reads for record in (await running).records] == [7, 0]

    virtually(asked())

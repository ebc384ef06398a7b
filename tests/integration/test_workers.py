"""Load in processes of their own: what they measure together, and that it never outlives who watches over it."""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from mock_servers import MockServer, mock_server
from starlette.types import Message, Receive, Scope
from starlette.types import Send as AsgiSend

from probe.capacity.run.load_plan import replay_steps
from probe.capacity.run.request import Budget, Replay, RunJob, RunRequest
from probe.capacity.run.runner import CapacityRun
from probe.capacity.run.seams import ServerAccess
from probe.capacity.search.fixed_steps import FixedSteps
from probe.client.endpoint import Endpoint
from probe.client.secrets import AuthHeader, Secrets
from probe.core.clock import SystemClock
from probe.core.errors import LoadError
from probe.core.objectives import Objective, Objectives
from probe.core.reasons import CLIENT_LATE, WORKER_LOST
from probe.core.request import Api, Outcome, RequestRecord
from probe.core.result import CapacityResult, RunContext, Stopped
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun
from probe.core.trace import TraceRequest, trace_of, trace_workload
from probe.core.workload import Workload
from probe.load import worker_step
from probe.load import worker_step as module
from probe.load.local_backend import LocalBackend, WorkerLink
from probe.load.messages import CONTROLLER_LOST_S, Command, Failed, Heartbeat, Ready, Setup, connect, receive, send
from probe.load.request_source import RequestSource
from probe.load.step_summary import summarize
from probe.load.worker_pool import WorkerPool, workers_for
from probe.mock_server.driver import Faults
from probe.scrape.scraper import Scraper

pytestmark = pytest.mark.alone

CLOCK = SystemClock()
SHORT = Workload("short", Api.COMPLETIONS, 16, 8)
LONG = Workload("long", Api.COMPLETIONS, 16, 800)
SLOW = Faults(extra_step_s=0.02)
CONTROLLER = Path(__file__).parent / "controller.py"

Work = Callable[[MockServer, WorkerPool], Awaitable[None]]


def _with(work: Work, *, load: Workload = SHORT, count: int = 2, endpoint: Endpoint | None = None) -> None:
    async def main() -> None:
        async with mock_server() as server:
            where = replace(endpoint or Endpoint("a", ""), base_url=server.url)
            async with WorkerPool(RequestSource(where, "tiny", load, limits=60.0), count, CLOCK) as workers:
                pids = [worker.process.pid for worker in workers._workers]
                await work(server, workers)
            assert not any(_alive(pid) for pid in pids)

    asyncio.run(main())


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # ended; its parent has not looked yet


async def _run(workers: WorkerPool, plan: StepPlan, reported: list[RequestRecord] | None = None) -> StepRun:
    reported = [] if reported is None else reported
    return await workers.run(plan, asyncio.Event(), reported.append)


async def _until(condition: Callable[[], bool], within_s: float) -> float:
    """Wait for the condition. Return the seconds it took. Raises TimeoutError."""
    begin = CLOCK.monotonic_ns()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is another process that changes it
            await asyncio.sleep(0.01)
    return (CLOCK.monotonic_ns() - begin) * 1e-9


def _loaded(server: MockServer) -> bool:
    return server.driver.engine.running + server.driver.engine.waiting > 0


# What they measure.


def test_a_step_by_several_workers_is_one_step() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        reported: list[RequestRecord] = []
        run = await _run(workers, StepPlan(5, 30.0, requests=40), reported)
        assert len(run.records) == server.generated == len(reported) == 40
        assert {r.outcome for r in run.records} == {Outcome.OK}
        assert all(r.output_tokens == len(r.events) == 8 for r in run.records)
        assert (run.is_cut_short, run.is_capped, run.problem) == (False, False, None)
        assert max(r.done_ns for r in run.records) == run.window_ns[1]
        assert workers.in_flight() == []
        assert run.loop_lag_s
        again = await _run(workers, StepPlan(1, 30.0, requests=3))
        assert len(again.records) == 3

    _with(work)


def test_workers_are_doubled_as_far_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Setup] = []
    send_message = worker_step.WorkerHandle.send

    def recorded(worker: worker_step.WorkerHandle, message: Command) -> None:
        sent.extend([message] if isinstance(message, Setup) else [])
        send_message(worker, message)

    monkeypatch.setattr(worker_step.WorkerHandle, "send", recorded)

    async def work(server: MockServer) -> None:
        async with WorkerPool(_source(server), 1, CLOCK, most=3) as workers:
            sizes = []
            for _ in range(3):
                await workers.add_workers()
                sizes.append(len(workers._workers))
            assert sizes == [2, 3, 3]
            run = await _run(workers, StepPlan(6, 30.0, requests=30))
            assert [len(run.records), server.generated] == [30, 30]
            pids = [worker.process.pid for worker in workers._workers]
        assert not any(_alive(pid) for pid in pids)

    async def main() -> None:
        async with mock_server() as server:
            await work(server)

    asyncio.run(main())
    shares = [(one.index, one.count) for one in sent]
    assert shares == [(0, 1)] * 3, "an added worker shares no prompts with those that have begun"
    assert len({(one.seed, one.salt) for one in sent}) == 3


def test_where_no_further_worker_starts_the_load_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:  # noqa: ARG001
        workers._most = 4
        monkeypatch.setattr(sys, "executable", "/bin/false")
        await workers.add_workers()
        assert len((await _run(workers, StepPlan(4, 30.0, requests=20))).records) == 20

    _with(work)


def test_an_open_loop_by_several_workers_keeps_one_schedule() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:  # noqa: ARG001
        run = await _run(workers, StepPlan(64, 1.0, loop="open", arrivals=Arrivals(Pattern.CONSTANT, rate_rps=40.0)))
        due = sorted(r.scheduled_ns for r in run.records)
        assert [(at - due[0]) * 1e-9 for at in due] == pytest.approx([i / 40 for i in range(40)], abs=1e-6)
        assert summarize(run, _promised()).schedule_lag_s.p50 == pytest.approx(0.0, abs=0.02)

    _with(work)


def test_a_trace_is_sent_at_its_times_and_with_its_lengths_by_several_workers() -> None:
    requests = [TraceRequest(20 + 3 * i, 2 + i % 5, 0.02 * i + 0.005 * (i % 3), (0, 1), 8) for i in range(60)]
    trace = trace_of(requests)
    load = trace_workload(trace, "trace", Api.COMPLETIONS)

    async def main() -> None:
        async with mock_server() as server:
            source = RequestSource(Endpoint("a", server.url), "tiny", load, limits=60.0, trace=trace)
            async with WorkerPool(source, 2, CLOCK) as workers:
                for speed in (1.0, 2.0):
                    (plan,) = replay_steps(Replay(trace, (speed,)), 64, holds=False)
                    run = await _run(workers, plan)
                    sent = sorted(run.records, key=lambda record: record.scheduled_ns)
                    begin = sent[0].scheduled_ns
                    assert [(r.scheduled_ns - begin) * 1e-9 for r in sent] == pytest.approx(
                        trace.due_s(speed, 1e3)[:60]
                    )
                    counted = [(r.prompt_tokens, r.output_tokens, r.outcome) for r in sent]
                    assert counted == [(one.prompt_tokens, one.output_tokens, Outcome.OK) for one in trace.requests]
                    found = summarize(run, _promised())
                    assert found.tokens.prompts == found.tokens.counted_prompts
                    assert found.schedule_lag_s.p50 == pytest.approx(0.0, abs=0.02)

    asyncio.run(main())


def test_prompts_are_never_sent_twice_and_secrets_are_sent_along() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        prompts, keys = list[str](), set[str]()
        inner = server.app

        async def listening(scope: Scope, receive: Receive, send: AsgiSend) -> None:
            async def received() -> Message:
                message = await receive()
                prompts.append(str(json.loads(message["body"])["prompt"]) if message.get("body") else "")
                return message

            headers = dict(scope["headers"])
            keys.add(" ".join(headers[name].decode() for name in (b"api-key", b"x-gateway-key", b"x-tenant")))
            await inner(scope, received, send)

        server.instead["/v1/completions"] = listening
        await _run(workers, StepPlan(4, 30.0, requests=30))
        asked = [prompt for prompt in prompts if prompt]
        assert len(asked) == len(set(asked)) == 30
        assert keys == {"sk-for-the-workers sk-for-the-gateway team-a"}

    where = Endpoint(
        "a",
        "",
        secret=lambda: "sk-for-the-workers",
        secret_headers=lambda: {"x-gateway-key": "sk-for-the-gateway"},
        plain_headers={"x-tenant": "team-a"},
        auth_header=AuthHeader("api-key", ""),
    )
    _with(work, endpoint=where)


# That it ends.


def test_stop_ends_the_load_within_a_second() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(workers.run(StepPlan(6, 60.0), stop, lambda _: None))
        await _until(lambda: len(workers.in_flight()) == 6, 10)
        stop.set()
        assert await _until(lambda: not _loaded(server), 2) < 1.0
        run = await running
        assert run.is_cut_short
        assert [r.outcome for r in run.records].count(Outcome.ABORTED) == 6
        assert workers.in_flight() == []

    _with(work, load=LONG)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.fault(
    "SI8",
    "SIGKILL to a worker",
    area="Signals",
    users_see="the step is void: `worker_lost`",
    stays="load gone within 2 s; every request is accounted for",
)
@pytest.mark.fault(
    "SI9",
    "SIGSTOP to a worker",
    area="Signals",
    users_see="the step is void: `worker_lost`",
    stays="load gone within 2 s",
)
def test_a_worker_that_dies_or_falls_silent_ends_the_step_marked_so(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_step, "WORKER_LOST_S", 1.0)

    async def work(server: MockServer, workers: WorkerPool) -> None:
        reported: list[RequestRecord] = []
        running = asyncio.create_task(_run(workers, StepPlan(6, 60.0), reported))
        await _until(lambda: len(workers.in_flight()) == 6, 10)
        os.kill(workers._workers[0].process.pid, how)
        async with asyncio.timeout(6):
            run = await running
        assert run.problem == WORKER_LOST.word
        assert len(run.records) == len(reported) == 6  # what the lost one had in flight is accounted for
        summed = summarize(run, _promised())
        assert (summed.valid, summed.reason) == (False, WORKER_LOST.word)
        await _until(lambda: not _loaded(server), 2)

    _with(work, load=LONG)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.fault(
    "SI6",
    "SIGKILL to the controller of a ramp",
    area="Signals",
    users_see="nothing",
    stays="load gone within 2 s, workers end",
)
@pytest.mark.fault(
    "SI7",
    "SIGSTOP to the controller of a ramp",
    area="Signals",
    users_see="nothing",
    stays="load gone within 2 s, workers end",
)
def test_load_ends_within_two_seconds_of_losing_its_controller(how: signal.Signals) -> None:
    """Of three times the quickest: the machine may have other things to do for a while."""
    took_s = [asyncio.run(_seconds_of_load_after(how))]
    while took_s[-1] >= 2.0 and len(took_s) < 3:
        took_s.append(asyncio.run(_seconds_of_load_after(how)))
    assert min(took_s) < 2.0
    assert max(took_s) < 4.0


async def _seconds_of_load_after(how: signal.Signals) -> float:
    """Return how long load goes on after the controller gets the signal. Its workers end too."""
    async with mock_server() as server:
        server.driver.faults = SLOW
        controller = await asyncio.create_subprocess_exec(
            sys.executable, str(CONTROLLER), server.url, "6", stdout=asyncio.subprocess.PIPE
        )
        assert controller.stdout is not None
        pids = [int(word) for word in (await controller.stdout.readline()).split()]
        try:
            await _until(lambda: server.driver.engine.running + server.driver.engine.waiting == 6, 10)
            controller.send_signal(how)
            took_s = await _until(lambda: not _loaded(server), 5)
            await _until(lambda: not any(_alive(pid) for pid in pids), 5)
        finally:
            with suppress(ProcessLookupError):
                controller.kill()
            await controller.wait()
    return took_s


@pytest.mark.fault(
    "SI10",
    "A worker that ignores the stop",
    area="Signals",
    users_see="it is killed",
    stays="load gone within 2 s",
)
def test_a_worker_that_does_not_obey_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.5)

    async def work(server: MockServer, workers: WorkerPool) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(workers.run(StepPlan(6, 60.0), stop, lambda _: None))
        await _until(lambda: len(workers.in_flight()) == 6, 10)
        os.kill(workers._workers[0].process.pid, signal.SIGSTOP)
        stop.set()
        await _until(lambda: not _loaded(server), 2.0)
        assert [r.outcome for r in (await running).records].count(Outcome.ABORTED) == 6

    _with(work, load=LONG)


@pytest.mark.fault(
    "LO18",
    "Requests hang in an open loop that several workers send",
    area="Load",
    users_see="the step is capped and void",
    stays="the load of all workers ends",
)
def test_as_many_in_flight_over_all_workers_as_may_be_end_the_load_of_all() -> None:
    """Six that hang end it, with one worker or three with each; three with one, its even share, do not."""

    async def work(server: MockServer, workers: WorkerPool) -> None:
        inner = server.app

        async def run(hanging: set[int], for_s: float, seconds: float) -> StepRun:
            number = itertools.count()

            async def app(scope: Scope, receive: Receive, send: AsgiSend) -> None:
                if next(number) in hanging:
                    await asyncio.sleep(for_s)
                await inner(scope, receive, send)

            server.instead["/v1/completions"] = app
            arrivals = Arrivals(Pattern.CONSTANT, rate_rps=10.0)
            async with asyncio.timeout(12):
                return await _run(workers, StepPlan(6, seconds, loop="open", arrivals=arrivals))

        spared = await run({1, 3, 5}, 1.0, 2.0)
        assert (spared.is_capped, spared.is_cut_short, spared.problem) == (False, False, None)
        for hanging in (set(range(6)), set(range(1, 13, 2))):
            ended = await run(hanging, 60.0, 30.0)
            assert (ended.is_capped, ended.is_cut_short, ended.problem) == (True, True, None)
            assert sum(record.outcome is Outcome.ABORTED for record in ended.records) <= 8, "a report is 0.1 s old"

    _with(work)


def test_a_cancelled_run_leaves_no_load_and_no_worker() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        running = asyncio.create_task(_run(workers, StepPlan(6, 60.0)))
        await _until(lambda: len(workers.in_flight()) == 6, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await _until(lambda: not _loaded(server), 2)
        assert len(workers.in_flight()) == 6  # and they have been paid for
        again = await _run(workers, StepPlan(6, 60.0))
        assert (again.problem, again.records) == (WORKER_LOST.word, ())

    _with(work, load=LONG)


def test_a_callback_that_raises_ends_the_load() -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        def broken(_: RequestRecord) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await workers.run(StepPlan(6, 60.0), asyncio.Event(), broken)
        await _until(lambda: not _loaded(server), 2)

    _with(work)


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.025, 0.03, 0.05, 0.1])
def test_stop_at_any_moment_of_a_beginning_ends_the_step_and_not_the_next_one(after_s: float) -> None:
    async def work(server: MockServer, workers: WorkerPool) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(after_s, stop.set)
        run = await workers.run(StepPlan(20, 60.0), stop, lambda _: None)
        assert (run.is_cut_short, run.problem) == (True, None)
        await _until(lambda: not _loaded(server), 2)
        again = await _run(workers, StepPlan(4, 30.0, requests=8))
        assert (len(again.records), again.is_cut_short, again.problem) == (8, False, None)

    _with(work)


@pytest.mark.fault(
    "LO19",
    "Stop while connections are not answered",
    area="Load",
    users_see="nothing",
    stays="the step ends",
)
def test_stop_ends_a_step_whose_connections_are_not_answered() -> None:
    """A full backlog: connecting hangs, and stopping must not wait for it."""

    async def main() -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            filling = [socket.socket() for _ in range(3)]
            for one in filling:
                one.setblocking(False)  # noqa: FBT003 - its only parameter
                one.connect_ex(deaf.getsockname())
            source = RequestSource(
                Endpoint("a", f"http://127.0.0.1:{deaf.getsockname()[1]}"), "tiny", SHORT, limits=60.0
            )
            async with WorkerPool(source, 1, CLOCK) as workers:
                stop = asyncio.Event()
                asyncio.get_running_loop().call_later(0.5, stop.set)
                begin = CLOCK.monotonic_ns()
                run = await workers.run(StepPlan(4, 60.0), stop, lambda _: None)
                assert (CLOCK.monotonic_ns() - begin) * 1e-9 < 1.5
                assert (run.records, run.is_cut_short, run.problem) == ((), True, None)
            for one in filling:
                one.close()

    asyncio.run(main())


def test_workers_that_are_cancelled_while_they_start_are_ended() -> None:
    async def main() -> None:
        workers = WorkerPool(RequestSource(Endpoint("a", "http://127.0.0.1:1"), "m", SHORT, 1.0), 2, CLOCK)
        starting = asyncio.create_task(workers.__aenter__())
        await _until(lambda: len(_children() - others) == 2, 10)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert _children() - others == set()

    others = _children()  # servers of other tests
    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(main())
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.fault(
    "ST5",
    "A machine that cannot start a process",
    area="Starvation",
    users_see="one line",
    stays="no load",
)
def test_a_machine_that_cannot_start_a_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def main() -> None:
        with pytest.raises(LoadError, match="did not start"):
            async with WorkerPool(RequestSource(Endpoint("a", "http://127.0.0.1:1"), "m", SHORT, 1.0), 2, CLOCK):
                pass

    asyncio.run(main())


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.fault(
    "LO20",
    "Workers that cannot start",
    area="Load",
    users_see="one line",
    stays="no load",
)
def test_workers_that_cannot_start_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        with pytest.raises(LoadError, match="did not start") as caught:
            async with WorkerPool(RequestSource(Endpoint("a", "http://127.0.0.1:1"), "m", SHORT, 1.0), 2, CLOCK):
                pass
        assert "\n" not in str(caught.value)

    asyncio.run(main())


# That slow ways between them are no fault of anybody else.


@dataclass
class Slowly(LocalBackend):
    """Workers of which the second starts late, and whose words arrive late. With a `node` they are elsewhere."""

    second_s: float = 0.0
    words_s: float = 0.0
    node: str | None = None
    carrying: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def spawn(self, index: int) -> WorkerLink:
        await asyncio.sleep(self.second_s * index)
        link = await super().spawn(index)
        reader = asyncio.StreamReader()
        self.carrying.append(asyncio.create_task(self._carry(link.reader, reader)))
        return replace(link, reader=reader, node=self.node)

    async def _carry(self, there: asyncio.StreamReader, here: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while data := await there.read(65536):
            loop.call_later(self.words_s, here.feed_data, data)
        loop.call_later(self.words_s, here.feed_eof)


@pytest.mark.long
@pytest.mark.fault(
    "ST6",
    "A worker that starts much later than the others",
    area="Starvation",
    users_see="the load begins when all are there",
    stays="one schedule",
)
def test_a_worker_that_has_started_waits_for_one_that_starts_late() -> None:
    """Three seconds, in which the first one would end by itself if it heard of nobody."""

    async def main() -> None:
        async with (
            mock_server() as server,
            WorkerPool(_source(server), 2, CLOCK, Slowly(second_s=CONTROLLER_LOST_S + 1.3)) as workers,
        ):
            run = await _run(workers, StepPlan(4, 30.0, requests=20))
            assert (run.problem, len(run.records)) == (None, 20)
            assert {r.outcome for r in run.records} == {Outcome.OK}

    asyncio.run(main())


@pytest.mark.long
def test_a_server_is_not_blamed_for_reports_that_come_late() -> None:
    """Each answer begins at once, and would seem to take 0.8 s: four times what the objective lets a hang last."""

    async def main() -> None:
        async with mock_server() as server:
            async with WorkerPool(_source(server), 1, CLOCK, Slowly(words_s=0.8)) as workers:
                result = await _guarded(server, workers)
            assert result.stopped == Stopped("error", CLIENT_LATE.word)
            assert 2 < result.cost.seconds < 10
            assert not _loaded(server)

    asyncio.run(main())


@pytest.mark.long
def test_a_worker_that_says_nothing_is_lost_and_not_late() -> None:
    async def main() -> None:
        async with mock_server() as server, WorkerPool(_source(server), 2, CLOCK) as workers:
            running = asyncio.create_task(_guarded(server, workers))
            await _until(lambda: len(workers.in_flight()) == 4, 10)
            os.kill(workers._workers[0].process.pid, signal.SIGSTOP)
            assert (await running).stopped == Stopped("error", WORKER_LOST.word)

    asyncio.run(main())


async def _guarded(server: MockServer, workers: WorkerPool) -> CapacityResult:
    """Run one long step with a guard that trips after 0.2 s without a first token."""
    promised = Objectives("o", ttft=Objective(0.1, 0.9), tpot=Objective(1.0, 0.9))
    job = RunJob(RunRequest("a", promised, Budget(10**9, 60.0, 60.0)), "tiny", RunContext({"name": "w"}, {}))
    scraper = Scraper(Endpoint("a", server.url), CLOCK, timeout_s=1.0)
    try:
        plans = FixedSteps([StepPlan(concurrency=4, seconds=40.0)])
        return await CapacityRun(job, plans, workers, ServerAccess(scraper.read), CLOCK).run()
    finally:
        await scraper.close()


def test_requests_in_flight_have_the_state_of_the_last_report() -> None:
    async def main() -> None:
        async with mock_server(faults=SLOW) as server:
            source = replace(_source(server), workload=LONG)
            async with WorkerPool(source, 1, CLOCK, Slowly(words_s=0.5)) as workers:
                assert workers.reported_ns() is None
                stop = asyncio.Event()
                running = asyncio.create_task(workers.run(StepPlan(2, 60.0), stop, lambda _: None))
                await _until(lambda: len(workers.in_flight()) == 2, 10)
                reported_ns = workers.reported_ns()
                assert reported_ns is not None
                assert CLOCK.monotonic_ns() - reported_ns > 0.45e9
                assert {record.done_ns for record in workers.in_flight()} == {reported_ns}
                stop.set()
                await running
                assert workers.reported_ns() is None

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.fault(
    "TI10",
    "A worker whose clock cannot be compared",
    area="Time",
    users_see="the run is refused: it gets no load",
    stays="no latency of unknown error",
)
def test_a_worker_whose_clock_cannot_be_known_gets_no_load() -> None:
    async def main() -> None:
        async with mock_server() as server:
            with pytest.raises(LoadError, match=r"the Ray node n7 answers after 0\.[6-9]\d s") as caught:
                async with WorkerPool(_source(server), 1, CLOCK, Slowly(words_s=0.6, node="n7")):
                    pass
            assert "\n" not in str(caught.value)
            assert server.generated == 0

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.parametrize("dated", [True, False])
def test_a_worker_goes_by_when_its_controller_was_there_and_not_by_when_it_heard_so(*, dated: bool) -> None:
    """Words that were on their way for long say nothing of now; without a date they have to."""

    async def main() -> None:
        link = await LocalBackend().spawn(0)
        setup = Setup(Endpoint("a", "http://127.0.0.1:1"), "m", frozenset(), SHORT, 1.0, 0, "salt", 0, 1, Secrets())
        send(link.writer, setup)
        async with asyncio.timeout(20):
            assert await receive(link.reader) == Ready()
        at_ns = CLOCK.monotonic_ns()
        heard = asyncio.create_task(receive(link.reader))
        while not heard.done() and CLOCK.monotonic_ns() - at_ns < 3e9:
            send(link.writer, Heartbeat(Secrets(), at_ns if dated else None))
            await asyncio.sleep(0.1)
        took_s = (CLOCK.monotonic_ns() - at_ns) * 1e-9
        if dated:
            assert isinstance(await heard, Failed)
            assert CONTROLLER_LOST_S - 0.1 < took_s < 3
        else:
            assert not heard.done()
            heard.cancel()
        link.writer.close()
        await link.process.wait()

    asyncio.run(main())


@pytest.mark.parametrize("ways", ["told", "unread"])
def test_the_last_message_of_a_worker_is_read_after_it_has_ended(ways: str) -> None:
    """Also where we have told it something since, or it left something unread."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        (reader, writer), (_, there) = await connect(ours), await connect(theirs)
        if ways == "unread":
            assert isinstance(there.transport, asyncio.Transport)
            there.transport.pause_reading()
            send(writer, Heartbeat(Secrets()))
        send(there, Failed("why"))
        there.transport.abort()
        await asyncio.sleep(0.05)
        for _ in range(3):
            send(writer, Heartbeat(Secrets()))
            await asyncio.sleep(0.01)
        assert await receive(reader) == Failed("why")
        with pytest.raises(EOFError):
            await receive(reader)
        writer.close()

    asyncio.run(main())


def _source(server: MockServer) -> RequestSource:
    return RequestSource(Endpoint("a", server.url), "tiny", SHORT, limits=60.0)


@pytest.mark.parametrize(
    ("streams", "cores", "asked", "count"),
    [(1, 8, None, 1), (128, 8, None, 1), (129, 8, None, 2), (4096, 8, None, 7), (512, 1, None, 1), (1, 2, 5, 5)],
)
def test_workers_are_as_many_as_the_streams_want_and_the_cores_allow(
    streams: int, cores: int, asked: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers_for(streams, asked) == count


def _promised() -> Objectives:
    return Objectives("none")

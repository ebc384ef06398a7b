"""The controller of the load workers: starts them, gives each its share of a step, and collects their records.

In: a StepPlan. Out: a StepRun, as if one process had run it. A worker that dies or falls silent ends the step, whose
StepRun says so. Stopping stops all workers.
"""

import asyncio
import os
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import structlog

from probe.client.endpoint import Endpoint, no_secret
from probe.client.exchange import aborted
from probe.core.clock import Clock
from probe.core.errors import LoadError
from probe.core.request import RequestRecord, RequestSpec, Traffic
from probe.core.step import StepPlan, StepRun
from probe.core.workload import Workload
from probe.load.clock_sync import SAME_CLOCK, ClockOffset, ClockRound, offset_of, to_controller_time, to_worker_time
from probe.load.local_backend import Backend, LocalBackend, WorkerLink, WorkerProcess
from probe.load.messages import (
    HEARTBEAT_S,
    WORKER_LOST_S,
    ClockReply,
    ClockRequest,
    Command,
    Failed,
    Heartbeat,
    Ready,
    Report,
    RunStep,
    Setup,
    Start,
    StepFinished,
    Stop,
    receive,
    send,
)
from probe.load.step_executor import FIGURES, WorkerShare

_log = structlog.get_logger()

WORKER_LOST = "worker_lost"
# As many streams as one process keeps up with on one core (benchmarks/results/client-*.json).
STREAMS_PER_WORKER = 128
_START_S = 20.0
# Between sending Start and beginning: every worker has received it by then, and all begin together.
_LEAD_S = 0.02
_STOP_S = 2.0
# The most that a worker's clock offset may be wrong by: a lost controller is noticed that much later.
_CLOCK_ERROR_S = 0.25
# How often a worker with another clock is asked for the time: the quickest answer counts.
_ROUNDS = 8


def workers_for(streams: int, asked: int | None = None) -> int:
    """Return the number of workers for this number of streams: as asked for, or as the cores allow.

    One core is left free where there are several.
    """
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0))
    return max(min(-(-streams // STREAMS_PER_WORKER), cores - 1), 1)


@dataclass(frozen=True, slots=True)
class RequestSource:
    """What to send: the endpoint, the model, the workload, and how long to wait for an answer."""

    endpoint: Endpoint
    model: str
    workload: Workload
    timeout_s: float
    seed: int = 0


@dataclass(slots=True)
class _Worker:
    """One worker as the controller sees it."""

    link: WorkerLink
    clock: ClockOffset | None  # by how much it is ahead of ours; None: not known yet
    records: list[RequestRecord] = field(default_factory=list)
    in_flight: "array[int]" = field(default_factory=lambda: array("q"))
    sending: int = 0
    reported_ns: int | None = None  # when that was so; None where it has no share of a step any more
    standing: bool = False

    @property
    def process(self) -> WorkerProcess:
        return self.link.process

    def tell(self, message: Command) -> None:
        """Sends it a message."""
        send(self.link.writer, to_worker_time(message, self.clock or SAME_CLOCK))

    async def hear(self) -> object:
        """Its next message. Raises EOFError where it has gone, TimeoutError where it is silent."""
        async with asyncio.timeout(WORKER_LOST_S):
            return to_controller_time(await receive(self.link.reader), self.clock or SAME_CLOCK)

    async def compare_clocks(self, ours: Clock) -> None:
        """Asks it for the time, where its clock is another than ours. Raises as `hear` does."""
        rounds: list[ClockRound] = []
        while self.link.node is not None and len(rounds) < _ROUNDS:
            self.tell(ClockRequest(ours.monotonic_ns()))
            answer = await self.hear()
            if isinstance(answer, ClockReply):
                rounds.append(ClockRound(answer.asked_ns, answer.at_ns, ours.monotonic_ns()))
        if rounds:
            self.clock = offset_of(rounds)

    def check_clock(self) -> None:
        """Raises LoadError where too little is known of its clock."""
        error_s = self.clock.error_ns * 1e-9 if self.clock is not None else 0.0
        if error_s > _CLOCK_ERROR_S:
            raise LoadError(
                f"load.ray: the Ray node {self.link.node} answers after {2 * error_s:.2f} s, too late to watch over"
                " load there; give Ray nodes of its own, and a network of its own where that is full"
            )

    def alive(self, key: str | None, ours: Clock) -> None:
        """Tells it that the controller is there, and since when, as far as its clock is known."""
        self.tell(Heartbeat(key, ours.monotonic_ns() if self.clock is not None else None))

    def note(self, report: Report) -> None:
        """Keeps what it says."""
        self.records += report.records
        if report.in_flight is not None:
            self.in_flight, self.sending, self.reported_ns = report.in_flight, report.sending, report.at_ns


class WorkerPool:
    """The workers of one run. Implements source.Load; use it as a context, which ends them."""

    def __init__(self, source: RequestSource, count: int, clock: Clock, place: Backend | None = None) -> None:
        """`place`: where they run, once; on this machine unless said."""
        self._source = source
        self._count = count
        self._clock = clock
        self._place = place or LocalBackend()
        self._workers: list[_Worker] = []
        self._key = _key(source.endpoint, None)
        self._heart: asyncio.Task[None] | None = None
        self._busy: list[_Worker] = []
        self._steps = 0
        self._ending: set[asyncio.Task[int]] = set()

    async def __aenter__(self) -> Self:
        """Starts them. Raises LoadError where that is not possible."""
        starting: list[asyncio.Task[_Worker]] = []
        self._heart = asyncio.create_task(self._beat())  # one that has started hears of us while the others start
        try:
            await self._place.open(self._count)
            starting += [asyncio.create_task(self._start(i)) for i in range(self._count)]
            self._workers = list(await asyncio.gather(*starting))  # in their order
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def in_flight(self) -> list[RequestRecord]:
        """As the workers last reported it."""
        now_ns = self._clock.monotonic_ns()
        return [
            replace(record, done_ns=now_ns if worker.reported_ns is None else worker.reported_ns)
            for worker in self._busy
            for record in self._cancelled(worker)
        ]

    def reported_ns(self) -> int | None:
        """See source.Load."""
        return min((worker.reported_ns for worker in self._busy if worker.reported_ns is not None), default=None)

    def _cancelled(self, worker: _Worker) -> list[RequestRecord]:
        """What a worker had in flight, as it is recorded if it is cancelled now."""
        source, figures = self._source, worker.in_flight
        load = source.workload
        return [
            aborted(
                target=source.endpoint.target,
                model=source.model,
                traffic=Traffic.CAPACITY,
                spec=RequestSpec(load.name, load.api, (), figures[i + 1], figures[i + 2]),
                scheduled_ns=figures[i],
                clock=self._clock,
                reads=figures[i + 3],
            )
            for i in range(0, len(figures), FIGURES)
        ]

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """One step by as many workers as it has requests in flight, at most. See source.Load.

        Raises LoadError where too little is known of a worker's clock.
        """
        busy = self._workers[: min(len(self._workers), plan.concurrency, plan.requests or plan.concurrency)]
        await asyncio.gather(*(self._compare_clocks(worker) for worker in busy))
        for worker in busy:
            worker.check_clock()
        self._busy = busy
        if stop.is_set() or not self._busy:
            now = self._clock.monotonic_ns()
            return StepRun(plan, (), (now, now), (), cut_short=True, problem=None if self._busy else WORKER_LOST)
        seed = self._seed()
        for index, worker in enumerate(self._busy):
            worker.records, worker.in_flight = [], array("q")
            worker.sending, worker.standing, worker.reported_ns = 0, False, self._clock.monotonic_ns()
            worker.tell(RunStep(plan, WorkerShare(index, len(self._busy)), seed))
        following = [asyncio.create_task(self._follow(worker, on_record)) for worker in self._busy]
        stopping = asyncio.create_task(self._stop_when(stop, following))
        try:
            ended = await asyncio.gather(*following)
        finally:
            for worker, task in zip(self._busy, following, strict=True):
                # We are cancelled, or `on_record` raised: nobody follows it any more, so it must not go on.
                if not task.done() or task.cancelled() or task.exception() is not None:
                    self._give_up(worker)
            for task in (*following, stopping):
                task.cancel()
            await asyncio.gather(*following, stopping, return_exceptions=True)
        return self._merged(plan, ended, on_record, stop)

    async def _compare_clocks(self, worker: _Worker) -> None:
        """Anew before each step, as clocks drift apart. One that does not answer will be found lost in the step."""
        try:
            await worker.compare_clocks(self._clock)
        except (EOFError, TimeoutError):
            worker.link.writer.close()

    def _seed(self) -> int:
        """Of the step's arrivals: the same for all workers, another one in each step."""
        self._steps += 1
        return self._source.seed * 1_000_003 + self._steps

    def _merged(
        self,
        plan: StepPlan,
        ended: list[StepFinished | None],
        on_record: Callable[[RequestRecord], None],
        stop: asyncio.Event,
    ) -> StepRun:
        busy, self._busy = self._busy, []
        lost = [worker for worker, end in zip(busy, ended, strict=True) if end is None]
        for worker in lost:
            for record in self._cancelled(worker):  # nobody will report them any more
                worker.records.append(record)
                on_record(record)
        ends = [end for end in ended if end is not None]
        now = self._clock.monotonic_ns()
        # By number, the last answer of all closes the window; by time, the first worker to stop sending does.
        closing = max if plan.requests is not None else min
        window = (
            max((end.window_ns[0] for end in ends), default=now),
            closing((end.window_ns[1] for end in ends), default=now),
        )
        return StepRun(
            plan,
            tuple(sorted((r for worker in busy for r in worker.records), key=lambda r: r.done_ns)),
            window,
            tuple(lag for end in ends for lag in end.loop_lag_s),
            cut_short=stop.is_set() or any(end.cut_short for end in ends),
            capped=any(end.capped for end in ends),
            problem=WORKER_LOST if lost else None,
        )

    async def _follow(self, worker: _Worker, on_record: Callable[[RequestRecord], None]) -> StepFinished | None:
        """Until the worker has ended its share; None where it died, failed or fell silent."""
        try:
            return await self._heard_out(worker, on_record)
        finally:
            worker.reported_ns = None

    async def _heard_out(self, worker: _Worker, on_record: Callable[[RequestRecord], None]) -> StepFinished | None:
        while True:
            try:
                message = await worker.hear()
            except (EOFError, TimeoutError):
                self._give_up(worker)
                return None
            if isinstance(message, Report):
                worker.note(message)
                for record in message.records:
                    on_record(record)
                # Reading what is there already gives nobody else a turn, and the others have to hear of us in time.
                await asyncio.sleep(0)
            elif isinstance(message, Ready):
                worker.standing = True
                if all(one.standing for one in self._busy):
                    # What is far away hears of it later: a round trip is twice what its clock's offset may be wrong by.
                    lead_ns = int(_LEAD_S * 1e9) + 4 * max(one.clock.error_ns if one.clock else 0 for one in self._busy)
                    begin = Start(self._clock.monotonic_ns() + lead_ns)
                    for one in self._busy:
                        one.tell(begin)
            elif isinstance(message, StepFinished):
                return message
            elif isinstance(message, Failed):
                _log.error("a load worker failed", why=message.why)
                self._give_up(worker)
                return None

    async def _stop_when(self, stop: asyncio.Event, following: list[asyncio.Task[StepFinished | None]]) -> None:
        """Stops every worker when somebody says so, or when one of them was lost or had to end early.

        One that does not obey is killed. One that still reads what it had been answered does no harm, and is let.
        """
        stopped = asyncio.create_task(stop.wait())
        try:
            pending: set[asyncio.Task[Any]] = {stopped, *following}
            while not stopped.done() and not any(task.done() and _ends_all(task.result()) for task in following):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        for worker in self._busy:
            worker.tell(Stop())
        await asyncio.sleep(_STOP_S)
        for worker, task in zip(self._busy, following, strict=True):
            if not task.done() and worker.sending:
                self._give_up(worker)

    def _give_up(self, worker: _Worker) -> None:
        """Ends it, and what it sends, for good."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.link.writer.close()
        with suppress(ProcessLookupError):
            worker.process.kill()
        self._ending.add(asyncio.create_task(worker.process.wait()))

    async def _start(self, index: int) -> _Worker:
        link = await self._place.spawn(index)
        worker = _Worker(link, None if link.node is not None else SAME_CLOCK)
        source = self._source
        setup = Setup(
            endpoint=replace(source.endpoint, secret=no_secret),
            model=source.model,
            workload=source.workload,
            timeout_s=source.timeout_s,
            seed=source.seed,
            index=index,
            count=self._count,
            key=self._key,
        )
        started = False
        try:
            worker.tell(setup)
            self._workers.append(worker)
            with suppress(EOFError, TimeoutError):
                async with asyncio.timeout(_START_S):
                    answer = await receive(link.reader)
                    await worker.compare_clocks(self._clock)
                    started = isinstance(answer, Ready)
        finally:  # also where we are cancelled
            if not started:
                self._give_up(worker)
        if not started:
            raise LoadError(f"a load worker did not start: {link.fix}")
        worker.check_clock()
        if worker.clock is not None and link.node is not None:
            offset_s, error_s = worker.clock.ns * 1e-9, worker.clock.error_ns * 1e-9
            _log.info("a load worker has started", node=link.node, clock_ahead_s=offset_s, clock_error_s=error_s)
        return worker

    async def _beat(self) -> None:
        """Tells the workers that somebody watches over them, and what the API key is now."""
        while True:
            self._key = _key(self._source.endpoint, self._key)
            for worker in self._workers:
                worker.alive(self._key, self._clock)
            await asyncio.sleep(HEARTBEAT_S)

    async def _end(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        for worker in self._workers:
            worker.link.writer.close()  # it ends by itself
        try:
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(worker.process.wait() for worker in self._workers))
        except TimeoutError:
            for worker in tuple(self._workers):
                self._give_up(worker)
        await asyncio.gather(*self._ending)
        await self._place.close()


def _ends_all(end: StepFinished | None) -> bool:
    """Whether a step is over with this worker's share: it was lost, or has stopped before its end (capped)."""
    return end is None or end.cut_short


def _key(endpoint: Endpoint, before: str | None) -> str | None:
    """The API key as it is now; the one before, where it cannot be read at this moment."""
    try:
        return endpoint.secret()
    except (OSError, ValueError):
        return before

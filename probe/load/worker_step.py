"""One step sent by several workers: begins it everywhere at once, follows each worker, and merges their results.

WorkerHandle is a worker as its controller sees it: the requests, the reports, and the offset of its clock.
"""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from probe.client.secrets import Secrets
from probe.core.clock import Clock
from probe.core.errors import LoadError
from probe.core.reasons import WORKER_LOST
from probe.core.request import RequestRecord
from probe.core.step import StepPlan, StepRun
from probe.load.clock_sync import (
    SAME_CLOCK,
    ClockOffset,
    ClockRound,
    offset_of,
    to_controller_time,
    to_worker_time,
)
from probe.load.local_backend import WorkerLink, WorkerProcess
from probe.load.messages import (
    WORKER_LOST_S,
    ClockReply,
    ClockRequest,
    Command,
    Failed,
    Heartbeat,
    Ready,
    Report,
    RunStep,
    Start,
    StepFinished,
    Stop,
    WorkerShare,
    receive,
    send,
)
from probe.load.request_source import RequestSource

_log = structlog.get_logger()

# The most that a worker's clock offset may be wrong by: a lost controller is noticed that much later.
_CLOCK_ERROR_S = 0.25
# How often a worker with another clock is asked for the time: the quickest answer counts.
_ROUNDS = 8


@dataclass(slots=True)
class WorkerHandle:
    """A worker: the link to it, its clock, and its last report."""

    link: WorkerLink
    clock: ClockOffset | None  # None: not known yet
    records: list[RequestRecord] = field(default_factory=list)
    in_flight: "array[int]" = field(default_factory=lambda: array("q"))
    sending: int = 0
    reported_ns: int | None = None  # the time of that report; None when it has no share of a step
    is_ready: bool = False

    @property
    def process(self) -> WorkerProcess:
        return self.link.process

    def send(self, message: Command) -> None:
        """Send it a message, in its own clock's times."""
        send(self.link.writer, to_worker_time(message, self.clock or SAME_CLOCK))

    async def receive(self) -> object:
        """Return its next message in controller time. Raises EOFError if it has gone, TimeoutError if it is silent."""
        message = await receive(self.link.reader, WORKER_LOST_S)
        return to_controller_time(message, self.clock or SAME_CLOCK)

    async def compare_clocks(self, clock: Clock) -> None:
        """Ask it for the time where its clock is another one. Raises as `receive` does."""
        rounds: list[ClockRound] = []
        while self.link.node is not None and len(rounds) < _ROUNDS:
            self.send(ClockRequest(clock.monotonic_ns()))
            answer = await self.receive()
            if isinstance(answer, ClockReply):
                rounds.append(ClockRound(answer.asked_ns, answer.at_ns, clock.monotonic_ns()))
        if rounds:
            self.clock = offset_of(rounds)

    def check_clock(self) -> None:
        """Raise LoadError where its clock offset is not known well enough."""
        error_s = self.clock.error_ns * 1e-9 if self.clock is not None else 0.0
        if error_s > _CLOCK_ERROR_S:
            raise LoadError(
                f"load.ray: the Ray node {self.link.node} answers after {2 * error_s:.2f} s, too late to watch over"
                " load there; use dedicated Ray nodes, and a dedicated network where that one is full"
            )

    def send_heartbeat(self, secrets: Secrets, clock: Clock) -> None:
        """Report that the controller is alive, with the time where the worker's clock is known."""
        self.send(Heartbeat(secrets, clock.monotonic_ns() if self.clock is not None else None))

    def note(self, report: Report) -> None:
        """Keep a report."""
        self.records += report.records
        if report.in_flight is not None:
            self.in_flight, self.sending, self.reported_ns = report.in_flight, report.sending, report.at_ns


# Between sending Start and beginning: every worker has received it by then, and all begin together.
_LEAD_S = 0.02
# How long a worker that was asked to stop may go on sending.
_STOP_S = 2.0


class WorkerStep:
    """One step, from sending each worker its share to the merged StepRun."""

    def __init__(
        self,
        plan: StepPlan,
        source: RequestSource,
        workers: list[WorkerHandle],
        clock: Clock,
        *,
        on_record: Callable[[RequestRecord], None],
        give_up: Callable[[WorkerHandle], None],
    ) -> None:
        """Take `give_up`, which kills a worker, which ends its requests."""
        self._plan = plan
        self._source = source
        self._workers = workers
        self._clock = clock
        self._on_record = on_record
        self._give_up = give_up
        self._is_full = asyncio.Event()  # as many requests are in flight, over all workers, as end the step

    def in_flight(self) -> list[RequestRecord]:
        """See protocol.Load."""
        now_ns = self._clock.monotonic_ns()
        return [
            replace(record, done_ns=now_ns if worker.reported_ns is None else worker.reported_ns)
            for worker in self._workers
            for record in self._source.aborted(worker.in_flight, self._clock)
        ]

    def reported_ns(self) -> int | None:
        """See protocol.Load."""
        return min((worker.reported_ns for worker in self._workers if worker.reported_ns is not None), default=None)

    async def run(self, stop: asyncio.Event, seed: int) -> StepRun:
        """Run the step to its end, or until `stop` is set. `seed`: of the arrivals, the same for all workers."""
        workers = self._workers
        for index, worker in enumerate(workers):
            worker.records, worker.in_flight = [], array("q")
            worker.sending, worker.is_ready, worker.reported_ns = 0, False, self._clock.monotonic_ns()
            worker.send(RunStep(self._plan, WorkerShare(index, len(workers)), seed))
        following = [asyncio.create_task(self._follow(worker)) for worker in workers]
        stopping = asyncio.create_task(self._stop_when(stop, following))
        try:
            ended = await asyncio.gather(*following)
        finally:
            for worker, task in zip(workers, following, strict=True):
                # This step is cancelled, or `on_record` raised: a worker that is not followed must not go on.
                if not task.done() or task.cancelled() or task.exception() is not None:
                    self._give_up(worker)
            for task in (*following, stopping):
                task.cancel()
            await asyncio.gather(*following, stopping, return_exceptions=True)
        return self._merged(ended, stop)

    async def _follow(self, worker: WorkerHandle) -> StepFinished | None:
        """Wait until the worker has ended its share; None where it died, failed or fell silent."""
        try:
            return await self._messages_until_end(worker)
        finally:
            worker.reported_ns = None

    async def _messages_until_end(self, worker: WorkerHandle) -> StepFinished | None:
        while True:
            try:
                message = await worker.receive()
            except (EOFError, TimeoutError):
                self._give_up(worker)
                return None
            if isinstance(message, Report):
                worker.note(message)
                self._check_limit()
                for record in message.records:
                    self._on_record(record)
                # Reading buffered messages never yields to the loop, and the other workers need their heartbeats.
                await asyncio.sleep(0)
            elif isinstance(message, Ready):
                worker.is_ready = True
                if all(one.is_ready for one in self._workers):
                    self._begin()
            elif isinstance(message, StepFinished):
                return message
            elif isinstance(message, Failed):
                _log.error("a load worker failed", why=message.why)
                self._give_up(worker)
                return None

    def _check_limit(self) -> None:
        """End the step where its requests in flight, over all workers by their last reports, are as many as may be."""
        is_limit = self._plan.arrivals is not None and not self._plan.holds
        if is_limit and len(self._workers) > 1 and sum(one.sending for one in self._workers) >= self._plan.concurrency:
            self._is_full.set()

    def _begin(self) -> None:
        """Ask all workers to begin at the same time."""
        # A remote worker receives it later: a round trip is twice the error bound of its clock offset.
        errors_ns = [worker.clock.error_ns for worker in self._workers if worker.clock is not None]
        start = Start(self._clock.monotonic_ns() + int(_LEAD_S * 1e9) + 4 * max(errors_ns, default=0))
        for worker in self._workers:
            worker.send(start)

    async def _stop_when(self, stop: asyncio.Event, following: list[asyncio.Task[StepFinished | None]]) -> None:
        """Stop every worker when `stop` is set, at the limit in flight, or when one was lost or had to end early.

        A worker that goes on sending is killed. One that still parses answers does no harm, and may finish.
        """
        ends = [asyncio.create_task(one.wait()) for one in (stop, self._is_full)]
        try:
            pending: set[asyncio.Task[Any]] = {*ends, *following}
            while not any(end.done() for end in ends) and not any(
                task.done() and _ends_step(task.result()) for task in following
            ):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        for worker in self._workers:
            worker.send(Stop())
        await asyncio.sleep(_STOP_S)
        for worker, task in zip(self._workers, following, strict=True):
            if not task.done() and worker.sending:
                self._give_up(worker)

    def _merged(self, ended: list[StepFinished | None], stop: asyncio.Event) -> StepRun:
        """Return the step as if one process had run it, with the requests of lost workers as cancelled."""
        workers, self._workers = self._workers, []  # nothing is in flight any more
        lost = [worker for worker, end in zip(workers, ended, strict=True) if end is None]
        for worker in lost:
            for record in self._source.aborted(worker.in_flight, self._clock):  # the worker will not report them
                worker.records.append(record)
                self._on_record(record)
        ends = [end for end in ended if end is not None]
        now = self._clock.monotonic_ns()
        # By number, the last answer of all closes the window; by time, the first worker to stop sending does.
        closing = max if self._plan.requests is not None else min
        window = (
            max((end.window_ns[0] for end in ends), default=now),
            closing((end.window_ns[1] for end in ends), default=now),
        )
        return StepRun(
            self._plan,
            tuple(sorted((r for worker in workers for r in worker.records), key=lambda r: r.done_ns)),
            window,
            tuple(lag for end in ends for lag in end.loop_lag_s),
            is_cut_short=stop.is_set() or self._is_full.is_set() or any(end.is_cut_short for end in ends),
            is_capped=self._is_full.is_set() or any(end.is_capped for end in ends),
            problem=WORKER_LOST.word if lost else None,
        )


def _ends_step(end: StepFinished | None) -> bool:
    """Return whether this ends the step for all workers: one was lost, or stopped before its end (capped)."""
    return end is None or end.is_cut_short

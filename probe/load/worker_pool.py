"""The controller of the load workers: starts them, gives each its share of a step, and collects their records.

In: a StepPlan. Out: a StepRun, as if one process had run it. A worker that dies or falls silent ends the step, whose
StepRun says so. Stopping stops all workers.
"""

import asyncio
import os
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
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
from probe.load.clock_sync import SAME_CLOCK
from probe.load.local_backend import Backend, LocalBackend
from probe.load.messages import (
    HEARTBEAT_S,
    Failed,
    Ready,
    Report,
    RunStep,
    Setup,
    Start,
    StepFinished,
    Stop,
    receive,
)
from probe.load.sent_request import unpack
from probe.load.worker_handle import WorkerHandle
from probe.load.worker_share import WorkerShare

_log = structlog.get_logger()

WORKER_LOST = "worker_lost"
# As many streams as one process keeps up with on one core (benchmarks/results/client-*.json).
STREAMS_PER_WORKER = 128
_START_S = 20.0
# Between sending Start and beginning: every worker has received it by then, and all begin together.
_LEAD_S = 0.02
_STOP_S = 2.0


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


class WorkerPool:
    """The workers of one run. Implements protocol.Load. An async context manager; leaving it stops them."""

    def __init__(self, source: RequestSource, count: int, clock: Clock, backend: Backend | None = None) -> None:
        """`backend`: where they run, to be used once; by default this machine."""
        self._source = source
        self._count = count
        self._clock = clock
        self._backend = backend or LocalBackend()
        self._workers: list[WorkerHandle] = []
        self._key = _key(source.endpoint, None)
        self._heartbeat: asyncio.Task[None] | None = None
        self._busy: list[WorkerHandle] = []
        self._steps = 0
        self._ending: set[asyncio.Task[int]] = set()

    async def __aenter__(self) -> Self:
        """Start the workers. Raises LoadError where that is not possible."""
        starting: list[asyncio.Task[WorkerHandle]] = []
        # Early starters get heartbeats while the others start.
        self._heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            await self._backend.open(self._count)
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
        """See protocol.Load."""
        now_ns = self._clock.monotonic_ns()
        return [
            replace(record, done_ns=now_ns if worker.reported_ns is None else worker.reported_ns)
            for worker in self._busy
            for record in self._cancelled(worker)
        ]

    def reported_ns(self) -> int | None:
        """See protocol.Load."""
        return min((worker.reported_ns for worker in self._busy if worker.reported_ns is not None), default=None)

    def _cancelled(self, worker: WorkerHandle) -> list[RequestRecord]:
        """Return a worker's requests in flight, recorded as cancelled now."""
        source = self._source
        workload = source.workload
        return [
            aborted(
                target=source.endpoint.target,
                model=source.model,
                traffic=Traffic.CAPACITY,
                spec=RequestSpec(workload.name, workload.api, (), prompt_tokens, output_tokens),
                scheduled_ns=due_ns,
                clock=self._clock,
                reads=reads,
            )
            for due_ns, prompt_tokens, output_tokens, reads in unpack(worker.in_flight)
        ]

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """Run one step by at most as many workers as it has requests in flight. See protocol.Load.

        Raises LoadError where a worker's clock offset is not known well enough.
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
            worker.sending, worker.is_ready, worker.reported_ns = 0, False, self._clock.monotonic_ns()
            worker.send(RunStep(plan, WorkerShare(index, len(self._busy)), seed))
        following = [asyncio.create_task(self._follow(worker, on_record)) for worker in self._busy]
        stopping = asyncio.create_task(self._stop_when(stop, following))
        try:
            ended = await asyncio.gather(*following)
        finally:
            for worker, task in zip(self._busy, following, strict=True):
                # This step is cancelled, or `on_record` raised: a worker that is not followed must not go on.
                if not task.done() or task.cancelled() or task.exception() is not None:
                    self._give_up(worker)
            for task in (*following, stopping):
                task.cancel()
            await asyncio.gather(*following, stopping, return_exceptions=True)
        return self._merged(plan, ended, on_record, stop)

    async def _compare_clocks(self, worker: WorkerHandle) -> None:
        """Compare before each step, as clocks drift. A worker that does not answer counts as lost in the step."""
        try:
            await worker.compare_clocks(self._clock)
        except (EOFError, TimeoutError):
            worker.link.writer.close()

    def _seed(self) -> int:
        """Return the seed of the step's arrivals: one for all workers, another in each step."""
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
            for record in self._cancelled(worker):  # the worker will not report them any more
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

    async def _follow(self, worker: WorkerHandle, on_record: Callable[[RequestRecord], None]) -> StepFinished | None:
        """Wait until the worker has ended its share; None where it died, failed or fell silent."""
        try:
            return await self._messages_until_end(worker, on_record)
        finally:
            worker.reported_ns = None

    async def _messages_until_end(
        self, worker: WorkerHandle, on_record: Callable[[RequestRecord], None]
    ) -> StepFinished | None:
        while True:
            try:
                message = await worker.receive()
            except (EOFError, TimeoutError):
                self._give_up(worker)
                return None
            if isinstance(message, Report):
                worker.note(message)
                for record in message.records:
                    on_record(record)
                # Reading buffered messages never yields to the loop, and the other workers need their heartbeats.
                await asyncio.sleep(0)
            elif isinstance(message, Ready):
                worker.is_ready = True
                if all(one.is_ready for one in self._busy):
                    # A remote worker receives it later: a round trip is twice the error bound of its clock offset.
                    lead_ns = int(_LEAD_S * 1e9) + 4 * max(one.clock.error_ns if one.clock else 0 for one in self._busy)
                    begin = Start(self._clock.monotonic_ns() + lead_ns)
                    for one in self._busy:
                        one.send(begin)
            elif isinstance(message, StepFinished):
                return message
            elif isinstance(message, Failed):
                _log.error("a load worker failed", why=message.why)
                self._give_up(worker)
                return None

    async def _stop_when(self, stop: asyncio.Event, following: list[asyncio.Task[StepFinished | None]]) -> None:
        """Stop every worker when `stop` is set, or when one of them was lost or had to end early.

        A worker that goes on sending is killed. One that still parses answers does no harm, and may finish.
        """
        stopped = asyncio.create_task(stop.wait())
        try:
            pending: set[asyncio.Task[Any]] = {stopped, *following}
            while not stopped.done() and not any(task.done() and _ends_step(task.result()) for task in following):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        for worker in self._busy:
            worker.send(Stop())
        await asyncio.sleep(_STOP_S)
        for worker, task in zip(self._busy, following, strict=True):
            if not task.done() and worker.sending:
                self._give_up(worker)

    def _give_up(self, worker: WorkerHandle) -> None:
        """Kill a worker, and with it all that it sends."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.link.writer.close()
        with suppress(ProcessLookupError):
            worker.process.kill()
        self._ending.add(asyncio.create_task(worker.process.wait()))

    async def _start(self, index: int) -> WorkerHandle:
        link = await self._backend.spawn(index)
        worker = WorkerHandle(link, None if link.node is not None else SAME_CLOCK)
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
            worker.send(setup)
            self._workers.append(worker)
            with suppress(EOFError, TimeoutError):
                async with asyncio.timeout(_START_S):
                    answer = await receive(link.reader)
                    await worker.compare_clocks(self._clock)
                    started = isinstance(answer, Ready)
        finally:  # also where this is cancelled
            if not started:
                self._give_up(worker)
        if not started:
            raise LoadError(f"a load worker did not start: {link.fix}")
        worker.check_clock()
        if worker.clock is not None and link.node is not None:
            offset_s, error_s = worker.clock.ns * 1e-9, worker.clock.error_ns * 1e-9
            _log.info("a load worker has started", node=link.node, clock_ahead_s=offset_s, clock_error_s=error_s)
        return worker

    async def _send_heartbeats(self) -> None:
        """Send heartbeats to the workers, with the current API key."""
        while True:
            self._key = _key(self._source.endpoint, self._key)
            for worker in self._workers:
                worker.send_heartbeat(self._key, self._clock)
            await asyncio.sleep(HEARTBEAT_S)

    async def _end(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for worker in self._workers:
            worker.link.writer.close()  # it ends by itself
        try:
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(worker.process.wait() for worker in self._workers))
        except TimeoutError:
            for worker in tuple(self._workers):
                self._give_up(worker)
        await asyncio.gather(*self._ending)
        await self._backend.close()


def _ends_step(end: StepFinished | None) -> bool:
    """Return whether this ends the step for all workers: one was lost, or stopped before its end (capped)."""
    return end is None or end.cut_short


def _key(endpoint: Endpoint, before: str | None) -> str | None:
    """Return the current API key, or the previous one where it cannot be read now."""
    try:
        return endpoint.secret()
    except (OSError, ValueError):
        return before

"""The load workers of one run: starts them, keeps them alive, gives them steps to send, and ends them.

In: a StepPlan. Out: a StepRun, as if one process had run it (worker_step.py). A worker that dies or falls silent ends
the step, and its StepRun says so. Stopping stops all workers. They are on this machine, or on a Ray cluster.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from probe.client.endpoint import Endpoint, no_headers, no_secret
from probe.client.secrets import Secrets
from probe.config.config import LoadConfig
from probe.core.clock import Clock
from probe.core.errors import LoadError
from probe.core.reasons import WORKER_LOST
from probe.core.request import RequestRecord
from probe.core.step import StepPlan, StepRun
from probe.load.clock_sync import SAME_CLOCK
from probe.load.local_backend import Backend, LocalBackend
from probe.load.messages import HEARTBEAT_S, Ready, Setup, receive
from probe.load.ray_backend import RayBackend
from probe.load.request_source import RequestSource
from probe.load.worker_step import WorkerHandle, WorkerStep

_log = structlog.get_logger()

# As many streams as one process keeps up with on one core (benchmarks/results/client-*.json).
STREAMS_PER_WORKER = 128
_START_S = 20.0
_END_S = 2.0


def workers_for(streams: int, asked: int | None = None) -> int:
    """Return the number of workers for this number of streams: as asked for, or as the cores allow."""
    if asked is not None:
        return asked
    return min(-(-streams // STREAMS_PER_WORKER), most_workers())


def most_workers() -> int:
    """Return the number of workers that this machine has cores for. One is left free where there are several."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


class WorkerPool:
    """The workers of one run. Implements protocol.Load. An async context manager; leaving it stops them."""

    def __init__(
        self, source: RequestSource, count: int, clock: Clock, backend: Backend | None = None, *, most: int = 0
    ) -> None:
        """Take `backend`: where they run, used once; by default this machine. `most`: workers with added ones."""
        self._source = source
        self._count = count
        self._most = most
        self._clock = clock
        self._backend = backend or LocalBackend()
        self._workers: list[WorkerHandle] = []
        self._secrets = _secrets(source.endpoint, Secrets())
        self._salt = secrets.token_hex(16)
        self._heartbeat: asyncio.Task[None] | None = None
        self._step: WorkerStep | None = None
        self._steps = 0
        self._ending: set[asyncio.Task[int]] = set()

    async def __aenter__(self) -> Self:
        """Start the workers. Raises LoadError where that is not possible."""
        starting: list[asyncio.Task[WorkerHandle]] = []
        # Early starters get heartbeats while the others start.
        self._heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            await self._backend.open(self._count)
            starting += [asyncio.create_task(self._start(i, (i, self._count))) for i in range(self._count)]
            self._workers = list(await asyncio.gather(*starting))  # in their order
        except BaseException:  # cancelled too: no worker may stay
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
        return self._step.in_flight() if self._step is not None else []

    def reported_ns(self) -> int | None:
        """See protocol.Load."""
        return self._step.reported_ns() if self._step is not None else None

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """Run one step by at most as many workers as it has requests in flight. See protocol.Load.

        Raises LoadError where a worker's clock offset is not known well enough.
        """
        busy = self._workers[: min(len(self._workers), plan.concurrency, plan.requests or plan.concurrency)]
        await asyncio.gather(*(self._compare_clocks(worker) for worker in busy))
        for worker in busy:
            worker.check_clock()
        self._step = WorkerStep(plan, self._source, busy, self._clock, on_record=on_record, give_up=self._give_up)
        if stop.is_set() or not busy:
            now = self._clock.monotonic_ns()
            return StepRun(plan, (), (now, now), (), is_cut_short=True, problem=None if busy else WORKER_LOST.word)
        return await self._step.run(stop, self._seed())

    async def add_workers(self) -> None:
        """See protocol.Load. Double them, up to `most`; where one does not start, go on with the others."""
        first, end = self._count, min(2 * self._count, self._most)
        for index in range(first, end):
            self._count = index + 1
            try:
                await self._start(index, (index - first, end - first), begun=first)
            except LoadError as error:
                _log.warning("no further load worker could be started", error=str(error))
                return

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

    def _give_up(self, worker: WorkerHandle) -> None:
        """Kill a worker, and with it all that it sends."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.link.writer.close()
        with suppress(ProcessLookupError):
            worker.process.kill()
        self._ending.add(asyncio.create_task(worker.process.wait()))

    async def _start(self, index: int, share: tuple[int, int], begun: int = 0) -> WorkerHandle:
        """Start a worker, with its share of the prompts.

        `begun`: how many workers share other prompts already. Those that begin together share prompts of their own.
        """
        link = await self._backend.spawn(index)
        worker = WorkerHandle(link, None if link.node is not None else SAME_CLOCK)
        source = self._source
        setup = Setup(
            endpoint=replace(source.endpoint, secret=no_secret, secret_headers=no_headers),
            model=source.model,
            aliases=source.aliases,
            workload=source.workload,
            limits=source.limits,
            seed=source.seed + (begun << 40),  # far from the arrivals' seeds
            salt=f"{self._salt}/{begun}",
            index=share[0],
            count=share[1],
            secrets=self._secrets,
            trace=source.trace,
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
        """Send heartbeats to the workers, with the current secrets."""
        while True:
            self._secrets = _secrets(self._source.endpoint, self._secrets)
            for worker in self._workers:
                worker.send_heartbeat(self._secrets, self._clock)
            await asyncio.sleep(HEARTBEAT_S)

    async def _end(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for worker in self._workers:
            worker.link.writer.close()  # it ends by itself
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*(worker.process.wait() for worker in self._workers))
        except TimeoutError:
            for worker in tuple(self._workers):
                self._give_up(worker)
        await asyncio.gather(*self._ending)
        await self._backend.close()


def _secrets(endpoint: Endpoint, before: Secrets) -> Secrets:
    """Return the current secrets, or the previous ones where they cannot be read now."""
    try:
        return endpoint.secrets()
    except ValueError:
        return before


def workers_of(
    load: LoadConfig | None, source: RequestSource, streams: int, clock: Clock, asked: int | None = None
) -> WorkerPool:
    """Return workers for this number of streams, or as many as `asked` for on the command line."""
    if load is None or load.ray is None:
        return WorkerPool(source, workers_for(streams, asked), clock, most=asked or most_workers())
    count = asked or load.ray.workers or max(-(-streams // STREAMS_PER_WORKER), 1)
    return WorkerPool(source, count, clock, RayBackend(load.ray.address, load.ray.start_timeout))

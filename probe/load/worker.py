"""The worker process that sends load. `python -m probe.load.worker FD` talks over that socket (messages.py).

Nothing else (scraping, fitting, pages) runs in this process, so nothing else delays a timestamp. It stops all load when
the controller asks for it, has gone, or has been silent for CONTROLLER_LOST_S.
"""

import asyncio
import gc
import signal
import socket
import sys
from array import array
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from probe.client.client import Client
from probe.client.exchange import PreparedRequest
from probe.client.secrets import Secrets
from probe.core.clock import SystemClock
from probe.core.request import RequestRecord, Traffic
from probe.core.step import Pattern
from probe.core.text import one_line
from probe.core.trace import trace_requests
from probe.core.workload import requests
from probe.load.messages import (
    CONTROLLER_LOST_S,
    RECORDS_A_REPORT,
    REPORT_S,
    ClockReply,
    ClockRequest,
    Failed,
    Heartbeat,
    Ready,
    Report,
    RunStep,
    Setup,
    Start,
    StepFinished,
    Stop,
    WorkerShare,
    receive,
    send,
)
from probe.load.step_executor import StepExecution
from probe.runtime import event_loop


class Worker:
    """The worker's side of the protocol in messages.py."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = SystemClock()
        self._secrets = Secrets()
        self._stop = asyncio.Event()
        self._start: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._records: list[RequestRecord] = []
        self._step: StepExecution | None = None
        self._running: asyncio.Task[None] | None = None
        self._alive_ns = 0  # when the controller was last known to be alive
        self._is_dated = False  # whether its heartbeats carry their time

    async def serve(self) -> None:
        """Serve until the controller has gone."""
        setup = await receive(self._reader)
        if not isinstance(setup, Setup):
            return
        self._secrets = setup.secrets
        endpoint = replace(
            setup.endpoint, secret=lambda: self._secrets.key, secret_headers=lambda: self._secrets.headers
        )
        async with Client(endpoint, self._clock, setup.limits) as client:
            ready = _ready(client, setup, WorkerShare(setup.index, setup.count))
            self._alive_ns = self._clock.monotonic_ns()
            send(self._writer, Ready())
            try:
                while True:
                    silent_s = (self._clock.monotonic_ns() - self._alive_ns) * 1e-9
                    async with asyncio.timeout(CONTROLLER_LOST_S - silent_s):
                        message = await receive(self._reader)
                    self._heard(message)
                    if isinstance(message, RunStep):
                        again = _is_replay(message, setup)
                        self._begin(
                            client, _ready(client, setup, message.share, message.seed) if again else ready, message
                        )
                    self._obey(message)
            except EOFError:
                pass
            except TimeoutError:
                why = f"its controller was silent for {CONTROLLER_LOST_S:g} s, so nothing watched over the load"
                send(self._writer, Failed(why))
            finally:
                self._stop.set()
                if self._running is not None:
                    self._running.cancel()
                    await asyncio.gather(self._running, return_exceptions=True)

    def _heard(self, message: object) -> None:
        """Note that the controller was alive when it sent this, or, if that is unknown, when this arrived."""
        now_ns = self._clock.monotonic_ns()
        if isinstance(message, Heartbeat) and message.sent_ns is not None:
            self._alive_ns, self._is_dated = max(self._alive_ns, min(message.sent_ns, now_ns)), True
        elif not self._is_dated:
            self._alive_ns = now_ns

    def _begin(self, client: Client, ready: Iterator[PreparedRequest], asked: RunStep) -> None:
        self._stop, self._start = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(client, ready, asked))

    def _obey(self, message: object) -> None:
        if isinstance(message, Heartbeat):
            self._secrets = message.secrets
        elif isinstance(message, Stop):
            self._stop.set()
        elif isinstance(message, ClockRequest):
            send(self._writer, ClockReply(message.asked_ns, self._clock.monotonic_ns()))
        elif isinstance(message, Start) and not self._start.done():  # already done if the step was stopped before
            self._start.set_result(message.start_ns)

    async def _run(self, client: Client, ready: Iterator[PreparedRequest], asked: RunStep) -> None:
        reporting = asyncio.create_task(self._report())
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the middle of a step would make stamps late
        client.share_memory(asked.share.count)
        try:
            self._step = StepExecution(
                asked.plan,
                ready,
                self._clock,
                on_record=self._records.append,
                lateness=client.lateness,
                share=asked.share,
                seed=asked.seed,
            )
            start_ns = await self._unless_stopped(self._prepare_to_start(client, self._step, asked))
            run = await self._step.run(self._stop, start_ns)
            reporting.cancel()
            await self._send_reports()
            send(self._writer, StepFinished(run.window_ns, run.loop_lag_s, run.is_cut_short, run.is_capped))
        except Exception as error:  # noqa: BLE001 - the controller has to know of any error
            send(self._writer, Failed(one_line(f"{type(error).__name__}: {error}")))
        finally:
            self._step = None
            gc.enable()
            gc.unfreeze()
            reporting.cancel()

    async def _prepare_to_start(self, client: Client, step: StepExecution, asked: RunStep) -> int:
        """Do what can be done before the first request is due. Return when the step begins."""
        await step.prepare()
        if asked.plan.arrivals is None:
            await client.connect_ahead(asked.share.part_of(asked.plan.concurrency))
        send(self._writer, Ready())
        return await self._start

    async def _unless_stopped(self, work: Coroutine[Any, Any, int]) -> int | None:
        """Return the work's result; None where the step was stopped first, and the work cancelled."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopped.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            await self._send_reports()

    async def _send_reports(self) -> None:
        """Send a few records at a time, so that arriving bytes are stamped; the last report lists what is in flight."""
        while len(self._records) > RECORDS_A_REPORT:
            send(self._writer, Report(self._take(), None, 0, self._clock.monotonic_ns()))
            await asyncio.sleep(0)
        step = self._step
        in_flight, sending = (step.in_flight_numbers(), step.sending) if step else (array("q"), 0)
        send(self._writer, Report(self._take(), in_flight, sending, self._clock.monotonic_ns()))

    def _take(self) -> tuple[RequestRecord, ...]:
        taken = tuple(self._records[:RECORDS_A_REPORT])
        del self._records[:RECORDS_A_REPORT]
        return taken


def _is_replay(asked: RunStep, setup: Setup) -> bool:
    """Return whether the step sends the requests of the trace from its beginning."""
    arrivals = asked.plan.arrivals
    return setup.trace is not None and arrivals is not None and arrivals.pattern is Pattern.REPLAY


def _ready(client: Client, setup: Setup, share: WorkerShare, step: int = 0) -> Iterator[PreparedRequest]:
    """Prepare a share of the requests of the run or, for a trace that begins again, of a `step`."""
    if setup.trace is not None:
        specs = trace_requests(setup.trace, setup.workload, f"{setup.salt}/{step}", (share.index, share.count))
    else:
        specs = requests(setup.workload, setup.seed, setup.salt, (share.index, share.count))
    for spec in specs:
        yield client.prepare(spec, setup.model, Traffic.CAPACITY, setup.aliases)


async def _main(fd: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    try:
        with suppress(EOFError):
            await Worker(reader, writer).serve()
    finally:
        writer.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the controller, which stops its workers
    event_loop.run(_main(int(sys.argv[1])))

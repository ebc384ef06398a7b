"""A worker: the process that load runs in. `python -m probe.load.worker FD` talks over that socket (messages.py).

In a process of its own nothing else - scraping, fitting, pages - can delay a timestamp. It stops all load when the
controller says so, has gone, or has been silent for CONTROLLER_LOST_S.
"""

import asyncio
import gc
import signal
import socket
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import uvloop

from probe.client.answer import Prepared
from probe.client.send import Client
from probe.clock import SystemClock
from probe.load.messages import (
    CONTROLLER_LOST_S,
    REPORT_S,
    Alive,
    Ended,
    Failed,
    Report,
    RunStep,
    Setup,
    Standing,
    Stop,
    receive,
    send,
)
from probe.load.step import Shard, Step
from probe.records import RequestRecord, Traffic
from probe.words import one_line
from probe.workload import requests


class Worker:
    """The worker's side of the conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = SystemClock()
        self._key: str | None = None
        self._stop = asyncio.Event()
        self._records: list[RequestRecord] = []
        self._step: Step | None = None

    async def serve(self) -> None:
        """Until the controller has gone."""
        setup = await receive(self._reader)
        if not isinstance(setup, Setup):
            return
        self._key = setup.key
        endpoint = replace(setup.endpoint, secret=lambda: self._key)
        async with Client(endpoint, self._clock, setup.timeout_s) as client:
            ready = _ready(client, setup)
            send(self._writer, Standing())
            running: asyncio.Task[None] | None = None
            try:
                while True:
                    async with asyncio.timeout(CONTROLLER_LOST_S):
                        message = await receive(self._reader)
                    if isinstance(message, Alive):
                        self._key = message.key
                    elif isinstance(message, Stop):
                        self._stop.set()
                    elif isinstance(message, RunStep):
                        self._stop.clear()
                        running = asyncio.create_task(self._run(client, ready, setup.index, message))
            except EOFError:
                pass
            except TimeoutError:
                why = f"its controller was silent for {CONTROLLER_LOST_S:g} s, so nothing watched over the load"
                send(self._writer, Failed(why))
            finally:
                self._stop.set()
                if running is not None:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)

    async def _run(self, client: Client, ready: Iterator[Prepared], index: int, asked: RunStep) -> None:
        shard = Shard(index, asked.shards)
        reporting = asyncio.create_task(self._report())
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the middle of a step would be lateness of our own making
        try:
            self._step = Step(
                asked.plan,
                ready,
                self._clock,
                on_record=self._records.append,
                turns=client.turns,
                shard=shard,
                seed=asked.seed,
            )
            if asked.plan.arrivals is None:
                await client.connect_ahead(shard.of(asked.plan.concurrency))
            run = await self._step.run(self._stop, max(asked.start_ns, self._clock.monotonic_ns()))
            self._send_report()
            send(self._writer, Ended(run.window_ns, run.loop_lag_s, run.cut_short, run.capped))
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller has to know
            send(self._writer, Failed(one_line(f"{type(error).__name__}: {error}")))
        finally:
            self._step = None
            gc.enable()
            reporting.cancel()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._send_report()

    def _send_report(self) -> None:
        records, self._records[:] = tuple(self._records), []
        send(self._writer, Report(records, self._step.in_flight_figures() if self._step else array("q")))


def _ready(client: Client, setup: Setup) -> Iterator[Prepared]:
    for spec in requests(setup.workload, setup.seed, shard=(setup.index, setup.count)):
        yield client.prepare(spec, setup.model, Traffic.CAPACITY)


async def _main(fd: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    try:
        with suppress(EOFError):
            await Worker(reader, writer).serve()
    finally:
        writer.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the controller, which stops us
    uvloop.run(_main(int(sys.argv[1])))

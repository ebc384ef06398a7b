"""Measures how late the event loop wakes: the client's own share of any latency it reports.

A timestamp is taken when the loop serves a socket. While the loop is busy, or the process waits for
a core, every stamp is late; this watcher sleeps a little and notes by how much it was woken late.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from probe.client.loop_lateness import LoopLateness
from probe.core.clock import Clock

_INTERVAL_S = 0.01


async def lags(clock: Clock, interval_s: float = _INTERVAL_S) -> AsyncIterator[float]:
    """Yield lag samples in seconds, one per interval, without end."""
    while True:
        before = clock.monotonic_ns()
        await asyncio.sleep(interval_s)
        yield max((clock.monotonic_ns() - before) * 1e-9 - interval_s, 0.0)


@asynccontextmanager
async def watch_lag(clock: Clock, lateness: LoopLateness | None = None) -> AsyncIterator[list[float]]:
    """Collect lag samples in seconds, about a hundred a second, in the list yielded.

    `lateness` already bounds how late the loop's own work makes each stamp. So if the loop was working when it should
    have woken, the lag counts from its last mark. The rest is caused by the system, above all by waiting for a
    processor.
    """
    samples: list[float] = []
    task = asyncio.create_task(_sample(clock, samples, lateness))
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(clock: Clock, samples: list[float], lateness: LoopLateness | None) -> None:
    async for lag in lags(clock):
        at_work = lateness.marked_ns if lateness is not None else 0
        samples.append(min(lag, (clock.monotonic_ns() - at_work) * 1e-9))

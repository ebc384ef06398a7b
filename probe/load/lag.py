"""How late the event loop wakes: the client's own share of any latency it reports.

A timestamp is taken when the loop gets round to a socket. While the loop is busy, or the process waits for
a core, every stamp is late; this watcher sleeps a little and notes by how much it was woken late.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from probe.clock import Clock

_INTERVAL_S = 0.01


async def lags(clock: Clock, interval_s: float = _INTERVAL_S) -> AsyncIterator[float]:
    """Endless lag samples in seconds, one an interval."""
    while True:
        before = clock.monotonic_ns()
        await asyncio.sleep(interval_s)
        yield max((clock.monotonic_ns() - before) * 1e-9 - interval_s, 0.0)


@asynccontextmanager
async def watch_lag(clock: Clock) -> AsyncIterator[list[float]]:
    """Gathers lag samples in seconds, about a hundred a second, into the list it gives."""
    samples: list[float] = []
    task = asyncio.create_task(_sample(clock, samples))
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(clock: Clock, samples: list[float]) -> None:
    async for lag in lags(clock):
        samples.append(lag)  # noqa: PERF401 - the source is endless: extend would never give it up

"""Measures how late the event loop wakes: the client's own share of any latency it reports.

A timestamp is taken when the loop serves a socket. While the loop is busy, or the process waits for
a core, every stamp is late; this watcher sleeps a little and notes by how much it was woken late.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from probe.core.clock import Clock

INTERVAL_S = 0.01


async def lags(clock: Clock, interval_s: float) -> AsyncIterator[float]:
    """Yield by how much the loop woke late, in seconds, once per interval, without end."""
    while True:
        before = clock.monotonic_ns()
        await asyncio.sleep(interval_s)
        yield max((clock.monotonic_ns() - before) * 1e-9 - interval_s, 0.0)


@asynccontextmanager
async def watch_lag(clock: Clock) -> AsyncIterator[list[float]]:
    """Collect samples (s) of how long the system kept the process from running, one every 10 ms, in the list yielded.

    Time in which the loop itself computes is not in a sample: `LoopLateness` bounds how late that makes each stamp.
    """
    watch = _ProcessorWatch(clock)
    task = asyncio.create_task(watch.keep_sampling())
    try:
        yield watch.samples
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        watch.sample()  # the time since the last one: a process that was stopped has just resumed


class _ProcessorWatch:
    """For how long this thread was kept from running, interval by interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.samples: list[float] = []
        self._look()

    def _look(self) -> None:
        self._at_ns, self._computed_ns = self._clock.monotonic_ns(), time.thread_time_ns()
        self._waited_ns = self._clock.waited_ns()

    async def keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Add a sample of the time since the last one.

        It is the larger of two bounds. The kernel counts how long the thread waited in the run queue, also in the part
        of the interval in which this watcher slept. What is left of the elapsed time besides sleeping and computing
        includes what the kernel does not count: a stopped process, a frozen machine, a throttled container.
        """
        at_ns, computed_ns, waited_ns = self._at_ns, self._computed_ns, self._waited_ns
        self._look()
        left_s = (self._at_ns - at_ns - (self._computed_ns - computed_ns)) * 1e-9 - INTERVAL_S
        self.samples.append(max(left_s, (self._waited_ns - waited_ns) * 1e-9, 0.0))


def lag_of_most_moments(samples: Sequence[float], share: float = 0.99) -> float:
    """Return the lag in seconds that bytes arriving at random moments exceed with a probability of at most 1 - `share`.

    Each sample counts for as long as it lasted: more bytes arrive while the process is kept from running for a second
    than for a hundredth.
    """
    left_s = (1 - share) * sum(INTERVAL_S + lag for lag in samples)
    for lag in sorted(samples, reverse=True):
        left_s -= INTERVAL_S + lag
        if left_s < 0:
            return lag
    return 0.0

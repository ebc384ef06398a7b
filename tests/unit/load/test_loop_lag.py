"""How late the loop wakes: seen when something holds it up, and not left running."""

import asyncio
import time

import pytest
from virtual_time import VirtualClock, virtually

from probe.core.clock import SystemClock
from probe.load.loop_lag import lags, watch_lag


def test_a_loop_that_is_held_up_is_noticed() -> None:
    async def run() -> list[float]:
        async with watch_lag(SystemClock()) as samples:
            await asyncio.sleep(0.03)
            time.sleep(0.1)  # noqa: ASYNC251 - blocking the loop is what this is about
            await asyncio.sleep(0.03)
        return samples

    samples = asyncio.run(run())
    assert max(samples) > 0.08
    assert min(samples) < 0.05


def test_an_idle_loop_has_no_lag_and_the_watcher_ends_with_its_block() -> None:
    async def run() -> list[float]:
        async with watch_lag(VirtualClock()) as samples:
            await asyncio.sleep(1.0)
        seen = len(samples)
        await asyncio.sleep(1.0)
        assert len(samples) == seen
        return samples

    samples = virtually(run())
    assert 95 <= len(samples) <= 100
    assert max(samples) < 1e-6


def test_samples_come_at_the_interval_asked_for_and_are_never_negative() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        seen = 0
        async for lag in lags(VirtualClock(), 0.25):
            assert lag >= 0
            seen += 1
            if seen == 8:
                break
        return loop.time() - start

    assert abs(virtually(run()) - 2.0) < 1e-6


def test_the_watcher_ends_also_when_the_block_raises() -> None:
    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            async with watch_lag(VirtualClock()):
                _ = 1 / 0

    virtually(run())  # asserts that no task is left

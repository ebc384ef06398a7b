"""How late the loop wakes: seen when something holds it up, and not left running."""

import asyncio
import time
from pathlib import Path

import pytest
from virtual_time import VirtualClock, virtually

from probe.core.clock import SystemClock
from probe.load.loop_lag import INTERVAL_S, lag_of_most_moments, lags, watch_lag


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


def test_time_in_which_the_loop_computes_is_no_lag() -> None:
    """It is known of each stamp (client/loop_lateness.py)."""
    clock = SystemClock()

    async def run() -> tuple[float, float]:
        async with watch_lag(clock) as samples:
            await asyncio.sleep(0.03)
            began_ns, until_s = clock.monotonic_ns(), time.thread_time() + 0.1
            while time.thread_time() < until_s:
                pass
            took_s = (clock.monotonic_ns() - began_ns) * 1e-9
            await asyncio.sleep(0.03)
        return max(samples), took_s

    largest_s, took_s = asyncio.run(run())
    assert largest_s < took_s - 0.05


class _Waiting(VirtualClock):
    """A thread that waits for a processor for 4 ms of each second."""

    def waited_ns(self) -> int:
        return self.monotonic_ns() // 250


def test_the_kernels_wait_counts_also_where_the_timer_was_not_late() -> None:
    """An earlier wake-up, for I/O, has waited already: the timer then fires in time, and the stamp was late."""

    async def run() -> list[float]:
        async with watch_lag(_Waiting()) as samples:
            await asyncio.sleep(1.0)
        return samples

    samples = virtually(run())
    assert sum(samples) == pytest.approx(0.004, abs=0.0001)


def test_a_process_that_has_just_resumed_has_its_pause_in_the_last_sample() -> None:
    async def run() -> list[float]:
        async with watch_lag(VirtualClock()) as samples:
            await asyncio.sleep(0.1)
            asyncio.get_running_loop()._leaping.now_s += 10  # type: ignore[attr-defined]
        return samples

    assert max(virtually(run())) == pytest.approx(10, abs=INTERVAL_S)


def test_without_the_kernels_statistics_the_wait_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS and in gVisor."""
    assert SystemClock().waited_ns() >= 0
    for text in (None, "", "0 0 0\n", "garbage"):
        file = tmp_path / "schedstat"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr("probe.core.clock._SCHEDSTAT", str(file))
        assert SystemClock().waited_ns() == 0


def test_a_long_lag_counts_for_as_long_as_it_lasted() -> None:
    """One stop of a second in ten seconds moves a tenth of the answers, though it is one sample of nine hundred."""
    quiet = [0.0001] * 900
    assert lag_of_most_moments([*quiet, 1.0]) == 1.0
    assert lag_of_most_moments([*quiet, 0.05]) == 0.0001, "less than one moment in a hundred"
    assert lag_of_most_moments([*quiet, *[0.03] * 3]) == 0.03
    assert lag_of_most_moments([0.02] * 50) == 0.02

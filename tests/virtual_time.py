"""An event loop whose time is a number: a sleep of an hour is over at once, and a run is the same every time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
WALL_S = 1_790_000_000.0


class _Leaping(selectors.SelectSelector):
    """Instead of waiting for the next timer it moves the time there."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and for nothing that will ever happen")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


class VirtualClock:
    """probe.core.clock.Clock on the running loop's time."""

    def monotonic_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def wall_s(self) -> float:
        return WALL_S + asyncio.get_running_loop().time()

    def waited_ns(self) -> int:
        return 0


class Jumpy(VirtualClock):
    """Every other look is 100 ms ahead, as if the process had waited for a processor."""

    looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return super().monotonic_ns() + self.looks % 2 * 100_000_000


def virtually(work: Coroutine[Any, Any, _T], *, within_s: float = 120.0) -> _T:
    """Return the result of `work`. Raises TimeoutError after that much virtual time, AssertionError for a task left
    behind.
    """

    async def watched() -> _T:
        async with asyncio.timeout(within_s):
            result = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"still running: {left}"
        return result

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(watched())

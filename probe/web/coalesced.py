"""An expensive function that many clients may ask for at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# With a pause, the function runs at most this share of the time.
_MAX_SHARE = 0.2


class Coalesced(Generic[T]):
    """A function that runs once at a time; callers that wait share its next run.

    Each caller gets the result of a run that began after its call. So there are at most two: one running, one pending.
    """

    def __init__(self, function: Callable[[], Awaitable[T]], pause_s: float = 0.0) -> None:
        """`pause_s`: the shortest pause between two runs."""
        self._function = function
        self._pause_s = pause_s
        self._last: asyncio.Task[T] | None = None
        self._pending: asyncio.Task[T] | None = None
        self._not_before_s = 0.0

    async def __call__(self) -> T:
        """Return the function's result, or raise what it raised."""
        if self._pending is None:
            self._pending = asyncio.create_task(self._run(self._last))
        # A caller that goes away does not end the run of the others.
        return await asyncio.shield(self._pending)

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        loop = asyncio.get_running_loop()
        if before is not None:
            await asyncio.wait((before,))
            await asyncio.sleep(max(self._not_before_s - loop.time(), 0.0))
        self._last, self._pending = self._pending, None
        began_s = loop.time()
        try:
            return await self._function()
        finally:
            if self._pause_s:
                took_s = loop.time() - began_s
                self._not_before_s = loop.time() + max(self._pause_s, took_s * (1 / _MAX_SHARE - 1))

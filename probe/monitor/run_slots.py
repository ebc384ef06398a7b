"""How many capacity runs go on at once: at most a number that is configured, and one for each server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class RunSlots:
    """The slots of one process. Runs that wait begin in the order in which they came, as far as their servers allow."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """Take `limit`: returns how many runs may go on at once."""
        self._limit = limit
        self._loaded: set[str] = set()  # servers
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, server: str, within_s: float) -> AsyncIterator[bool]:
        """Hold a slot for a run on a server. Yield False where none was free within so many seconds."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: len(self._loaded) < self._limit() and server not in self._loaded)
                self._loaded.add(server)
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._loaded.discard(server)
            async with self._changed:
                self._changed.notify_all()

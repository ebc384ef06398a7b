"""How many capacity runs go on at once: at most a number that is configured, and one for each server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Run:
    server: str
    measured_s: float
    begins: asyncio.Future[None]


class RunSlots:
    """The slots of one process. Of the runs that wait, the one whose target was measured the longest time ago is next.

    So a run that was given up is among the first ones the next time.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        """Take `limit`: returns how many runs may go on at once."""
        self._limit = limit
        self._loaded: dict[str, _Run] = {}  # by server
        self._waiting: list[_Run] = []  # as they came

    @asynccontextmanager
    async def hold(self, server: str, within_s: float, measured_s: float = 0.0) -> AsyncIterator[bool]:
        """Hold a slot for a run on a server. Yield False where none was free within so many seconds.

        `measured_s`: when its target was measured before, by any clock that all runs share.
        """
        loop = asyncio.get_running_loop()
        run = _Run(server, measured_s, loop.create_future())
        self._waiting.append(run)
        loop.call_soon(self._begin)  # when the others that are due at this moment wait, too
        try:
            try:
                async with asyncio.timeout(within_s):
                    await run.begins
            except TimeoutError:
                self._end(run)
                yield False
            else:
                yield True
        finally:
            self._end(run)

    def _begin(self) -> None:
        """Let runs begin, as many as may."""
        while len(self._loaded) < self._limit():
            allowed = [run for run in self._waiting if run.server not in self._loaded]
            if not allowed:
                return
            run = min(allowed, key=lambda one: one.measured_s)
            self._waiting.remove(run)
            self._loaded[run.server] = run
            if not run.begins.done():  # it has just waited for too long
                run.begins.set_result(None)

    def _end(self, run: _Run) -> None:
        """Take a run away, from those that wait or from those that go on."""
        if run in self._waiting:
            self._waiting.remove(run)
        elif self._loaded.get(run.server) is run:
            del self._loaded[run.server]
        self._begin()

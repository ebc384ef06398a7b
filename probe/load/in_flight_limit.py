"""The most requests in flight of an open loop. One that is due beyond it waits for an answer, or ends the step."""

import asyncio
from collections.abc import Sized

from probe.core.clock import Clock


class LimitReached(Exception):  # noqa: N818 - it is no error
    """As many requests are in flight as may be."""


class InFlightLimit:
    """At most `most` requests in flight. `holds`: one more waits until one has ended."""

    def __init__(self, most: int, clock: Clock, *, holds: bool) -> None:
        self._most = most
        self._holds = holds
        self._clock = clock
        self._has_ended = asyncio.Event()
        self._free_ns = 0
        self.is_exceeded = False

    def one_ended(self) -> None:
        """Note that a request is no longer in flight."""
        self._has_ended.set()

    async def held_ns(self, due_ns: int, in_flight: Sized) -> int:
        """Wait for one fewer in flight, where there are too many. Return for how long after `due_ns` that was.

        Raises LimitReached where the step does not hold requests back.
        """
        while len(in_flight) >= self._most:
            if not self._holds:
                self.is_exceeded = True
                raise LimitReached
            self._has_ended.clear()
            await self._has_ended.wait()
            self._free_ns = self._clock.monotonic_ns()
        return max(self._free_ns - due_ns, 0)  # also of those that were due meanwhile

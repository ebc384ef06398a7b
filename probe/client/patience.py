"""The time limits of one exchange: for the whole answer, and for the next sign of it.

Keep-alives of a gateway are no sign. Nothing is done for each read: a timer looks at what has come when the time is up.
"""

import asyncio
from types import TracebackType
from typing import Self

from probe.client.response_buffer import ResponseBuffer
from probe.client.sse import is_keep_alive
from probe.core.clock import Clock
from probe.core.time_limits import STOPPED, UNFINISHED, out_of_time

# An answer that has said nothing for this share of its time has stopped; one that still arrives is slow.
_STOPPED_SHARE = 0.25


class Patience:
    """A context that ends an exchange with TimeoutError at its limits. `lateness` then says which one struck.

    `answer_s`: for the whole answer. `first_s`: for the first sign of it; `next_s`: for each after that.
    """

    def __init__(
        self,
        received: ResponseBuffer,
        clock: Clock,
        *,
        answer_s: float,
        first_s: float,
        next_s: float,
        raised_by: str,
    ) -> None:
        self._received, self._clock = received, clock
        self._answer_s, self._first_s, self._next_s = answer_s, first_s, next_s
        self.raised_by = raised_by
        self._began_ns = 0
        self._until: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_s: float | None = None  # the limit that struck, if it was not that of the whole answer

    async def __aenter__(self) -> Self:
        self._began_ns = self._clock.monotonic_ns()
        self._until = asyncio.timeout(self._answer_s)
        await self._until.__aenter__()
        shortest_s = min(self._first_s, self._next_s)
        if shortest_s < self._answer_s:
            self._timer = asyncio.get_running_loop().call_later(shortest_s, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._until is not None:
            await self._until.__aexit__(kind, error, trace)

    def _look(self) -> None:
        """End the exchange if there was no sign for too long; else look again when that would be so."""
        limit_s = self._next_s if self._received.head_ns else self._first_s
        left_s = limit_s - self._silence_s()
        loop = asyncio.get_running_loop()
        if left_s > 0:
            self._timer = loop.call_later(min(left_s, self._first_s, self._next_s), self._look)
        elif self._until is not None and not self._until.expired():
            self._silent_s = limit_s
            self._until.reschedule(loop.time())

    def _silence_s(self) -> float:
        return (self._clock.monotonic_ns() - max(self._last_sign_ns(), self._began_ns)) * 1e-9

    def _last_sign_ns(self) -> int:
        """Return when the last part of the answer came; 0: none has, keep-alives apart."""
        reads = reversed(self._received.reads)
        return next((at_ns for at_ns, _, data in reads if not is_keep_alive(data)), 0)

    @property
    def lateness(self) -> str:
        """Return what was missing when the time was up, as one line."""
        last_ns = self._last_sign_ns()
        if self._silent_s is not None:
            what = f"{f'{STOPPED} of the answer' if last_ns else 'no answer'} for {self._silent_s:g} s"
        elif not last_ns:
            what = f"no answer within {self._answer_s:g} s"
        else:
            what = f"{UNFINISHED} within {self._answer_s:g} s"
            if self._silence_s() > _STOPPED_SHARE * self._answer_s:
                what += f" ({STOPPED} after {(last_ns - self._began_ns) * 1e-9:.1f} s)"
        return out_of_time(what, self.raised_by)

"""The time limits of one exchange: for the whole answer, and for the next sign of it.

Keep-alives of a gateway are no sign. Nothing is done for each read: a timer looks at what has come when the time is up.
A timer that is late shows that this process did not run. What has come meanwhile is read after the timers, or is still
on its way to a machine that was frozen, so the limit is that much later.
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
STOOD_S = 0.1  # by which a timer is late where this process did not run


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
        self._began_ns = self._due_ns = 0
        self._stood_s = 0.0  # the time that was given for this process' own
        self._until: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_s: float | None = None  # the limit that struck, if it was not that of the whole answer

    async def __aenter__(self) -> Self:
        self._began_ns = self._clock.monotonic_ns()
        self._until = asyncio.timeout(None)
        await self._until.__aenter__()
        self._look_in(min(self._first_s, self._next_s, self._answer_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._until is not None:
            await self._until.__aexit__(kind, error, trace)

    def _look_in(self, seconds: float) -> None:
        self._due_ns = self._clock.monotonic_ns() + round(seconds * 1e9)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """End the exchange at a limit; else look again when that would be so."""
        limit_s = self._next_s if self._received.head_ns else self._first_s
        answer_left_s = self._answer_s - (self._clock.monotonic_ns() - self._began_ns) * 1e-9
        silence_left_s = limit_s - self._silence_s()
        left_s = min(silence_left_s, answer_left_s)
        if left_s <= 0:
            left_s = self._own_s(min(limit_s, self._answer_s))
        if left_s > 0:
            self._look_in(min(left_s, self._first_s, self._next_s))
        elif self._until is not None:
            self._silent_s = limit_s if answer_left_s > 0 else None
            self._until.reschedule(asyncio.get_running_loop().time())

    def _own_s(self, most_s: float) -> float:
        """Return how long to wait beyond a limit, as this process did not run; at most `most_s` for all of it."""
        late_s = (self._clock.monotonic_ns() - self._due_ns) * 1e-9
        own_s = min(late_s, most_s - self._stood_s) if late_s > STOOD_S else 0.0
        self._stood_s += own_s
        return own_s

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
        if self._stood_s:
            what += f" and {self._stood_s:.1f} s more, for which Kneewatch itself had not run"
        return out_of_time(what, self.raised_by)

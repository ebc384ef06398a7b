"""An upper bound on how late the event loop noticed that bytes had arrived.

A stamp is taken when the loop serves a socket, not when the bytes arrived. The loop works in turns: it asks
the kernel which sockets are readable (waiting, if none is and no callback is ready), and serves them one after the
other. So bytes served in one turn came after the loop asked for the turn before. And from when they came to their
stamp it never waited: a socket that has something ends the wait. What is known is thus a bound for each stamp:

    it slept since the last mark    now - (processor time since that mark)
    else                            now - (processor time since it asked for the turn before)

uvloop asks and serves at once: it asked for a turn when that turn's first stamp was taken. asyncio first runs what
was ready already, for as long as that takes: it asked after the last stamp of the turn before, and so after its first.

A mark is made in each turn that follows served bytes, and by code that computes between turns
(load/step_executor.py). Neither includes the time in which the processor ran other processes: `watch_lag`
(load/loop_lag.py) measures that.
"""

import asyncio
from time import perf_counter_ns, thread_time_ns

# Wall time not accounted for by processor time: at least this much since the last mark means that the loop slept. Less
# may mean that another process ran for a moment, while bytes had been waiting since before the mark.
_SLEPT_NS = 2_000_000


class LoopLateness:
    """The turns of the running loop, shared by all connections of a client.

    `since_ns` is the earliest time at which bytes stamped in this turn can have arrived.
    """

    __slots__ = ("_before_ns", "_cpu_ns", "_first_ns", "is_open", "marked_ns", "since_ns")

    def __init__(self) -> None:
        self.is_open = False
        self.since_ns = 0
        self.marked_ns = perf_counter_ns()
        # Processor time at the last mark, and at the first stamps of the last turn and of the turn before.
        self._cpu_ns = self._first_ns = self._before_ns = thread_time_ns()

    def begin(self, now_ns: int) -> None:
        """Note the first stamp of a turn. Call it only while `is_open` is false."""
        self.is_open = True
        loop, cpu_ns = asyncio.get_running_loop(), thread_time_ns()
        busy_ns = cpu_ns - self._cpu_ns
        if now_ns - self.marked_ns - busy_ns < _SLEPT_NS:
            busy_ns = cpu_ns - (self._before_ns if isinstance(loop, asyncio.BaseEventLoop) else self._first_ns)
        self.since_ns = now_ns - busy_ns
        self._before_ns, self._first_ns = self._first_ns, cpu_ns
        loop.call_soon(self._end)  # runs when every socket of this turn has been served

    def mark(self) -> None:
        """Note that the loop has been working until now. Call it before the loop asks for sockets again."""
        self.marked_ns = perf_counter_ns()
        self._cpu_ns = thread_time_ns()

    def _end(self) -> None:
        self.is_open = False
        self.mark()

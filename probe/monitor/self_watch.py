"""The monitor's watch over itself: how late its event loop wakes, what held it, and log lines that nobody took."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable

import structlog

from exporters.health import HealthExporter
from probe.core.clock import Clock
from probe.core.target_status import OwnClock
from probe.load.loop_lag import lags
from probe.runtime.logs import LogOutput
from probe.runtime.loop_watch import LoopWatch, Stall

_log = structlog.get_logger()
_LAG_INTERVAL_S = 0.25
_KEEP_LAGS = int(300 / _LAG_INTERVAL_S)  # five minutes
_RARE = 0.01
_TELL_AGAIN_S = 10.0  # a machine that is too busy would fill the log


class SelfWatch:
    """What is noted about this process itself."""

    def __init__(self, health: HealthExporter, clock: Clock, output: LogOutput | None) -> None:
        self._health, self._clock, self._output = health, clock, output
        self._counted = self._told = output.lost if output is not None else 0
        self._told_s, self._untold = -_TELL_AGAIN_S, 0
        self._lags: deque[float] = deque(maxlen=_KEEP_LAGS)

    async def follow(self) -> None:
        """Note it again and again, until cancelled."""
        loop = asyncio.get_running_loop()

        def stood(stall: Stall) -> None:  # in the watch's thread
            self._log_stall(stall)
            loop.call_soon_threadsafe(self._health.count_stall, stall.cause)

        with LoopWatch(stood):
            async for lag in lags(self._clock, _LAG_INTERVAL_S):
                self._health.observe_loop_lag(lag)
                self._lags.append(lag)
                if self._output is not None:
                    self._look_at_log(self._output)

    @property
    def clock(self) -> OwnClock | None:
        """Return how late the loop was in the last minutes; None before it was measured."""
        return own_clock(self._lags)

    def _look_at_log(self, output: LogOutput) -> None:
        lost = output.lost
        self._health.count_lost_lines(lost - self._counted)
        self._counted = lost
        if lost > self._told and output.is_ready():
            _log.warning(
                "log lines were lost: standard error was full or could not be written", lines=lost - self._told
            )
            self._told = lost

    def _log_stall(self, stall: Stall) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < _TELL_AGAIN_S:
            self._untold += 1
            return
        more = {"earlier_ones": self._untold} if self._untold else {}
        words = "the event loop stood" if stall.has_ended else "the event loop stands"
        _log.warning(f"{words}, {stall.cause}", seconds=round(stall.seconds, 1), by=stall.by, **more)
        self._told_s, self._untold = now_s, 0


def own_clock(lags_s: Iterable[float]) -> OwnClock | None:
    """Return how late a loop was that looked every _LAG_INTERVAL_S. A lag counts for as long as it lasted."""
    lags_in_order = sorted(lags_s, reverse=True)
    if not lags_in_order:
        return None
    left_s = _RARE * sum(_LAG_INTERVAL_S + lag for lag in lags_in_order)
    late_s = lags_in_order[-1]
    for lag in lags_in_order:
        left_s -= _LAG_INTERVAL_S + lag
        if left_s < 0:
            late_s = lag
            break
    return OwnClock(socket.gethostname(), late_s, lags_in_order[0])

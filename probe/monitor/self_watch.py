"""The monitor's watch over itself: how late its event loop wakes, what held it, and log lines that nobody took."""

import asyncio
import time

import structlog

from exporters.health import HealthExporter
from probe.core.clock import Clock
from probe.load.loop_lag import lags
from probe.runtime.logs import LogOutput
from probe.runtime.loop_watch import LoopWatch, Stall

_log = structlog.get_logger()
_LAG_INTERVAL_S = 0.25
_TELL_AGAIN_S = 10.0  # a machine that is too busy would fill the log


class SelfWatch:
    """What is noted about this process itself."""

    def __init__(self, health: HealthExporter, clock: Clock, output: LogOutput | None) -> None:
        self._health, self._clock, self._output = health, clock, output
        self._counted = self._told = output.lost if output is not None else 0
        self._told_s, self._untold = -_TELL_AGAIN_S, 0

    async def follow(self) -> None:
        """Note it again and again, until cancelled."""
        loop = asyncio.get_running_loop()

        def stood(stall: Stall) -> None:  # in the watch's thread
            self._log_stall(stall)
            loop.call_soon_threadsafe(self._health.count_stall, stall.cause)

        with LoopWatch(stood):
            async for lag in lags(self._clock, _LAG_INTERVAL_S):
                self._health.observe_loop_lag(lag)
                if self._output is not None:
                    self._look_at_log(self._output)

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

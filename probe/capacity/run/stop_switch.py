"""How a run, or only its current step, is made to stop."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from probe.core.result import Stopped


class StopSwitch:
    """Stops a run. `step_over` is set with `run_over`, or alone when only the current step has to end."""

    def __init__(self) -> None:
        self.run_over = asyncio.Event()
        self.step_over = asyncio.Event()
        self._stopped: Stopped | None = None

    @property
    def is_on(self) -> bool:
        """Whether the run has to stop, or has."""
        return self.run_over.is_set()

    @property
    def stopped(self) -> Stopped:
        """What ended the run; "done" until something else has."""
        return self._stopped or Stopped("done")

    def stop(self, by: str, reason: str | None = None) -> None:
        """End the load now. The first reason given is the one reported."""
        self._stopped = self._stopped or Stopped(by, reason)
        self.halt()

    def halt(self) -> None:
        """End the load now, for no new reason."""
        self.run_over.set()
        self.step_over.set()

    async def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the run has to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.run_over.wait()

    async def before_stop(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do the work unless the run is stopped first: then cancel it and return False. Raises what the work raises."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self.run_over.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            in_time = working.done()
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
        if in_time:
            working.result()
        return in_time

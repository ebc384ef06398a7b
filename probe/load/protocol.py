"""What a ramp asks of whatever makes its load: worker processes (workers.py), or what a test puts in their place."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from probe.core.request import RequestRecord
from probe.core.step import StepPlan, StepRun


class Load(Protocol):
    """What can run steps, one after the other."""

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """One step, to its end or until `stop` is set; `on_record` is told of each request as it ends."""
        ...

    def in_flight(self) -> list[RequestRecord]:
        """What has no record yet, as it would be recorded if it had been cancelled when it was last told of."""
        ...

    def reported_ns(self) -> int | None:
        """When what `in_flight` says was so, of whatever told it longest ago; None where nobody has more to tell."""
        ...

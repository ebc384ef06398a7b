"""The load of a capacity run as the run uses it: worker processes (worker_pool.py), or a fake in a test."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from probe.core.request import RequestRecord
from probe.core.step import StepPlan, StepRun


class Load(Protocol):
    """Runs steps, one after the other."""

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """Run one step to its end or until `stop` is set; `on_record` receives each request as it ends."""
        ...

    def in_flight(self) -> list[RequestRecord]:
        """Return the requests in flight, as they would be recorded had they been cancelled when last reported."""
        ...

    def reported_ns(self) -> int | None:
        """Return the time of the oldest report behind `in_flight`; None when no worker has a step."""
        ...

    async def add_workers(self) -> None:
        """Send later steps by more workers, where there are cores for them: this machine was late."""

"""Where load comes from: this process, or worker processes (workers.py). A ramp sees no difference."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from probe.clock import Clock
from probe.load.step import Ready, Step
from probe.records import RequestRecord, StepPlan, StepRun


class Load(Protocol):
    """What can run steps, one after the other."""

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        """One step, to its end or until `stop` is set; `on_record` is told of each request as it ends."""
        ...

    def in_flight(self) -> list[RequestRecord]:
        """What has no record yet, as it would be recorded if it were cancelled now."""
        ...


class LocalLoad:
    """Load of this process: what a worker runs, and tests."""

    def __init__(self, requests: Iterator[Ready], clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._step: Step | None = None

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        self._step = Step(plan, self._requests, self._clock, on_record=on_record)
        try:
            await self._step.prepare()
            return await self._step.run(stop)
        finally:
            self._step = None

    def in_flight(self) -> list[RequestRecord]:
        return self._step.in_flight() if self._step else []

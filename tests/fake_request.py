"""Requests that only have to be sent, to whatever a test gives: what step_executor.py asks of them, and no more."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from example_records import record

from probe.core.clock import Clock
from probe.core.request import Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.step import StepPlan, StepRun
from probe.load.sent_request import SendableRequest
from probe.load.step_executor import StepExecution

Send = Callable[[RequestSpec, int], Awaitable[RequestRecord]]


@dataclass
class FakeAnswer:
    """What came back; it is read in two portions."""

    record: RequestRecord
    held: int = 0

    @property
    def looks_good(self) -> bool:
        return self.record.outcome is Outcome.OK

    def read(self) -> Iterator[RequestRecord | None]:
        yield None
        yield self.record


@dataclass
class FakeRequest:
    """A request that only has to be sent."""

    spec: RequestSpec
    to: Send
    reads: int = 0

    async def send(self, scheduled_ns: int) -> FakeAnswer:
        return FakeAnswer(await self.to(self.spec, scheduled_ns))

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        now_ns = round(asyncio.get_running_loop().time() * 1e9)
        what: dict[str, Any] = {"scheduled_ns": scheduled_ns, "sent_ns": scheduled_ns, "done_ns": now_ns}
        what["reads"] = self.reads
        return record(outcome=Outcome.ABORTED, asked=self.spec, traffic=Traffic.CAPACITY, **what)


class LocalLoad:
    """probe.capacity.run.seams.Load without processes: steps on the test's own loop, and so on its own time."""

    def __init__(self, requests: Iterator[SendableRequest], clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._step: StepExecution | None = None
        self.added = 0  # how often more workers were asked for

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        self._step = StepExecution(plan, self._requests, self._clock, on_record=on_record)
        try:
            await self._step.prepare()
            return await self._step.run(stop)
        finally:
            self._step = None

    def in_flight(self) -> list[RequestRecord]:
        return self._step.in_flight() if self._step else []

    def reported_ns(self) -> int | None:
        return self._clock.monotonic_ns() if self._step else None

    async def add_workers(self) -> None:
        self.added += 1

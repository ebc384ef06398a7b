"""One step of closed-loop load: so many requests in flight, each answered before its successor is sent.

In: a StepPlan, a Send, an iterator of RequestSpec. Out: a StepRun of raw records. Setting `stop` cancels
whatever is in flight at once; the connections close with it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from probe.client.send import Send
from probe.clock import Clock
from probe.load.lag import watch_lag
from probe.records import Outcome, RequestRecord, RequestSpec, StepPlan, Traffic
from probe.summary import MIN_REQUESTS

# A server that refuses at once would otherwise be asked thousands of times a second.
_AFTER_FAILURE_S = 0.2
# A step whose time is up, but which has sent too few requests to be judged, goes on: by this many lengths at most.
_STRETCH = 2


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step as it happened. `window_ns`: first send to the end of sending; see summary.py."""

    plan: StepPlan
    records: tuple[RequestRecord, ...]
    window_ns: tuple[int, int]
    loop_lag_s: tuple[float, ...]
    cut_short: bool


class ClosedLoop:
    """The state of one step: what is still to send, and what is in flight."""

    def __init__(
        self,
        plan: StepPlan,
        send: Send,
        specs: Iterator[RequestSpec],
        clock: Clock,
        on_record: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        """`on_record` is told of each request as it ends, aborted ones included."""
        self._plan = plan
        self._send = send
        self._specs = specs
        self._clock = clock
        self._sent = 0
        self._closed = False
        self._on_record = on_record
        self._in_flight: dict[int, tuple[RequestSpec, int]] = {}
        self._records: list[RequestRecord] = []
        # Long prompts take milliseconds to make: those of the first wave are ready before it begins.
        self._first = deque([next(specs) for _ in range(min(plan.concurrency, plan.requests or plan.concurrency))])

    def aborted(self, target: str, model: str) -> list[RequestRecord]:
        """What is in flight, as it would be recorded if it were cancelled now."""
        return [self._aborted(spec, sent, target, model) for spec, sent in self._in_flight.values()]

    async def run(self, stop: asyncio.Event, target: str, model: str) -> StepRun:
        """Runs the step to its end, or until `stop` is set. Raises what `send` raises, and CancelledError."""
        self._closed = stop.is_set()
        start = self._clock.monotonic_ns()
        end = start + int(self._plan.seconds * 1e9)
        async with watch_lag(self._clock) as lag:
            users = [asyncio.create_task(self._user(start, end)) for _ in range(self._plan.concurrency)]
            stopper = asyncio.create_task(stop.wait())
            try:
                await _all_done_or(users, stopper)
            finally:
                self._closed = True  # whatever a cancelled request makes of it: no more are sent
                for task in (*users, stopper):
                    task.cancel()
                await asyncio.gather(*users, stopper, return_exceptions=True)
                for record in self.aborted(target, model):
                    self._keep(record)
                self._in_flight.clear()
        cut_short = stop.is_set()
        last = max((record.done_ns for record in self._records), default=start)
        by_time = self._plan.requests is None and self._sent > MIN_REQUESTS and not cut_short
        closed = min(end, last) if by_time else last
        return StepRun(self._plan, tuple(self._records), (start, closed), tuple(lag), cut_short)

    def _goes_on(self, start_ns: int, end_ns: int) -> bool:
        """Whether to send another: by number, or by time, which is stretched where it holds too few to judge."""
        if self._closed:
            return False
        if self._plan.requests is not None:
            return self._sent < self._plan.requests
        now = self._clock.monotonic_ns()
        return now < end_ns or (self._sent < MIN_REQUESTS and now < end_ns + _STRETCH * (end_ns - start_ns))

    async def _user(self, start_ns: int, end_ns: int) -> None:
        while self._goes_on(start_ns, end_ns):
            self._sent += 1
            number, spec = self._sent, self._first.popleft() if self._first else next(self._specs)
            scheduled = self._clock.monotonic_ns()
            self._in_flight[number] = (spec, scheduled)
            record = await self._send(spec, scheduled)
            del self._in_flight[number]
            self._keep(record)
            if record.outcome is not Outcome.OK:
                await asyncio.sleep(_AFTER_FAILURE_S)

    def _keep(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._on_record(record)

    def _aborted(self, spec: RequestSpec, sent_ns: int, target: str, model: str) -> RequestRecord:
        return RequestRecord(
            target=target,
            model=model,
            traffic=Traffic.CAPACITY,
            spec=spec.without_prompt(),
            scheduled_ns=sent_ns,
            sent_ns=sent_ns,
            done_ns=self._clock.monotonic_ns(),
            done_wall_s=self._clock.wall_s(),
            outcome=Outcome.ABORTED,
            detail="cancelled while in flight",
        )


async def _all_done_or(tasks: list[asyncio.Task[None]], stopper: asyncio.Task[bool]) -> None:
    """Waits for every task, or for the stopper; an error in a task is raised here and not lost."""
    pending: set[asyncio.Task[None] | asyncio.Task[bool]] = {*tasks, stopper}
    while pending - {stopper} and not stopper.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

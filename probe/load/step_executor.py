"""Executes one step of load, open or closed loop. It sends every inference request of Kneewatch.

In: a StepPlan and an iterator of prepared requests. Out: a StepRun of raw records. Setting `stop`
cancels all requests in flight at once and closes their connections.

    users or arrivals --> send --> responses --> parsing, between the turns of the loop --> records

Sending goes first. Preparing requests and parsing responses are done in small portions, one per turn of the
event loop, so that neither delays a timestamp by more than its portion.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Any, Protocol

from probe.client.loop_lateness import LoopLateness
from probe.core.arrivals import due_ns
from probe.core.clock import Clock
from probe.core.request import Outcome, RequestRecord, RequestSpec
from probe.core.step import Arrivals, StepPlan, StepRun
from probe.load.loop_lag import watch_lag
from probe.load.step_summary import MIN_REQUESTS

# A pause after a failure: a server that refuses at once would otherwise get thousands of requests a second. A user
# whose requests keep failing doubles the pause, up to _MAX_PAUSES times this value.
_AFTER_FAILURE_S = 0.2
_MAX_PAUSES = 10
# A timed step that has sent too few requests to be judged is extended, at most by this many times its length.
_MAX_EXTENSION = 2
# Open loop: the number of requests kept prepared for bursts. More are prepared between turns.
_STOCK = 64
# The most overdue requests sent in one turn, so that a schedule that cannot be kept does not delay `stop`.
_OVERDUE_PER_TURN = 16
# Prepared prompts take memory: about 6 bytes a token.
_MAX_STOCK_TOKENS = 4_000_000
# The most responses that wait to be parsed. Beyond it their memory (a thousand tokens take some 250 KB) matters more
# than a late stamp, and each turn parses as many as needed to stay below.
_MAX_UNREAD = 1024


# The length of one request's entry in StepExecution.in_flight_figures.
FIGURES = 4


class UnreadResponse(Protocol):
    """A response that has arrived and is parsed when there is time."""

    @property
    def looks_good(self) -> bool: ...

    def read(self) -> Iterator[RequestRecord | None]:
        """Parse the response. Yield None after each portion, and finally the record."""
        ...


class SendableRequest(Protocol):
    """A request that only has to be sent."""

    @property
    def spec(self) -> RequestSpec: ...

    def send(self, scheduled_ns: int) -> Awaitable[UnreadResponse]:
        """Send the request, due at `scheduled_ns`, and wait for its end."""
        ...

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        """Return the record this request would get if cancelled now."""
        ...

    @property
    def reads(self) -> int:
        """Return the number of reads of the response's body so far."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's share of a step: the `index`-th of `count`."""

    index: int = 0
    count: int = 1

    def of(self, whole: int) -> int:
        """Return this worker's share of a number."""
        return whole // self.count + (self.index < whole % self.count)


WHOLE = WorkerShare()


class StepExecution:
    """The state of one step: requests still to send, in flight, and waiting to be parsed."""

    def __init__(
        self,
        plan: StepPlan,
        requests: Iterator[SendableRequest],
        clock: Clock,
        *,
        on_record: Callable[[RequestRecord], None] = lambda _: None,
        turns: LoopLateness | None = None,
        shard: WorkerShare = WHOLE,
        seed: int = 0,
    ) -> None:
        """`on_record` receives each record once it is parsed, aborted ones included. `turns` is the sending client's
        measure of how late the loop is.
        """
        self._users = plan.concurrency  # of all workers
        self._plan = replace(plan, concurrency=shard.of(plan.concurrency))
        self._requests = shard.of(plan.requests) if plan.requests is not None else None
        self._enough = ceil(MIN_REQUESTS / shard.count)
        self._shard, self._seed = shard, seed
        self._source = requests
        self._clock = clock
        self._on_record = on_record
        self._turns = turns
        self._sent = self._sent_in_window = self._made = self._last_due_ns = 0
        self._over_ns: int | None = None  # when a timed step was first found to be over
        self._closed = self._capped = self._failing = False
        self._in_flight: dict[int, _Sent] = {}
        self._unread: dict[int, _Sent] = {}  # in the order of their responses
        self._reading: Iterator[RequestRecord | None] | None = None
        self._has_work = asyncio.Event()
        self._records: list[RequestRecord] = []
        self._stock: deque[SendableRequest] = deque()
        self._stock_tokens = 0

    async def prepare(self) -> None:
        """Prepare the first requests, so that none is late for it: a long prompt takes milliseconds."""
        while self._should_prepare_more():
            self._make()
            await asyncio.sleep(0)

    def in_flight(self) -> list[RequestRecord]:
        """Return the requests without a record yet, as they would be recorded if cancelled now."""
        return [sent.ready.aborted(sent.due_ns) for sent in self._outstanding()]

    def in_flight_figures(self) -> "array[int]":
        """Return the same as numbers, FIGURES for each: due time, prompt tokens, output tokens, reads so far."""
        figures = array("q")
        for sent in self._outstanding():
            spec = sent.ready.spec
            figures.extend((sent.due_ns, spec.prompt_tokens, spec.output_tokens, sent.ready.reads))
        return figures

    def _outstanding(self) -> tuple["_Sent", ...]:
        return (*self._in_flight.values(), *self._unread.values())

    @property
    def sending(self) -> int:
        """Return the number of requests at the server: those of `in_flight` whose response is not complete."""
        return len(self._in_flight)

    async def run(self, stop: asyncio.Event, start_ns: int | None = None) -> StepRun:
        """Run the step from `start_ns` (by default now) to its end, or until `stop` is set.

        Raises the errors of a request, and CancelledError.
        """
        start = self._clock.monotonic_ns() if start_ns is None else start_ns
        window = start + int(self._plan.warm_up_s * 1e9)
        end = window + int(self._plan.seconds * 1e9)
        self._closed = stop.is_set()
        async with watch_lag(self._clock, self._turns) as lag:
            senders = [asyncio.create_task(sender) for sender in self._senders(start, window, end)]
            others = [asyncio.create_task(stop.wait()), asyncio.create_task(self._work())]
            try:
                await _all_done_or_any(senders, others)
            finally:
                self._closed = True  # no more are sent, however a cancelled request ends
                for task in (*senders, *others):
                    task.cancel()
                await asyncio.gather(*senders, *others, return_exceptions=True)
                for sent in self._in_flight.values():
                    self._keep(sent.ready.aborted(sent.due_ns))
                self._in_flight.clear()
            while self._read_a_portion():  # noqa: ASYNC110 - it does the work, it does not wait
                await asyncio.sleep(0)
        cut_short = stop.is_set() or self._capped
        last = max((record.done_ns for record in self._records), default=start)
        closes = last
        if self._requests is None and not cut_short:
            # An extended step was fully loaded until the first sender found it over.
            closes = min(end if self._last_due_ns < end else self._over_ns or last, last)
        return StepRun(
            self._plan,
            tuple(self._records),
            (window, max(closes, window)),
            tuple(lag),
            cut_short,
            capped=self._capped,
        )

    # Sending.

    def _senders(self, start: int, window: int, end: int) -> Iterator[Coroutine[Any, Any, None]]:
        if self._plan.arrivals is not None:
            yield self._arrive(self._plan.arrivals, start, window, end)
            return
        # Users join one after the other over the first half of the warm-up: all at once would be an
        # unrealistic burst, and would keep them synchronised.
        joining_ns = (window - start) // 2
        for i in range(self._shard.index, self._users, self._shard.count):
            yield self._user(start + joining_ns * i // self._users, window, end)

    async def _user(self, join: int, window: int, end: int) -> None:
        await self._until(join)
        failures = 0
        while self._should_continue(window, end):
            good = await self._has_succeeded(await self._send(self._begin(self._clock.monotonic_ns(), window)))
            failures = 0 if good else failures + 1
            if failures and self._should_continue(window, end):
                await asyncio.sleep(_AFTER_FAILURE_S * min(2 ** (failures - 1), _MAX_PAUSES))

    async def _arrive(self, arrivals: Arrivals, start: int, window: int, end: int) -> None:
        """Send requests when they are due, however many are in flight. Reaching the cap ends the step."""
        overdue = 0
        with suppress(_CapReached):
            try:
                async with asyncio.TaskGroup() as group:
                    for offset in islice(due_ns(arrivals, self._seed), self._shard.index, None, self._shard.count):
                        due = start + offset
                        if self._closed or not self._is_within(due, window, end):
                            break
                        overdue = overdue + 1 if due <= self._clock.monotonic_ns() else 0
                        if overdue and overdue % _OVERDUE_PER_TURN == 0:
                            await asyncio.sleep(0)
                        await self._until(due)
                        if len(self._in_flight) >= self._plan.concurrency:
                            self._capped = True
                            raise _CapReached
                        group.create_task(self._send(self._begin(due, window)))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    def _begin(self, scheduled: int, window: int) -> int:
        """Take the next request, which counts as sent from now on. Return its number."""
        self._sent += 1
        self._sent_in_window += scheduled >= window
        self._last_due_ns = scheduled
        if not self._stock:
            self._make()
        ready = self._stock.popleft()
        self._stock_tokens -= ready.spec.prompt_tokens
        self._in_flight[self._sent] = _Sent(ready, scheduled)
        self._has_work.set()
        return self._sent

    async def _send(self, number: int) -> "_Sent":
        """Send the request of this number and wait for its end."""
        sent = self._in_flight[number]
        sent.answer = await sent.ready.send(sent.due_ns)
        self._unread[number] = self._in_flight.pop(number)
        self._has_work.set()
        return sent

    async def _has_succeeded(self, sent: "_Sent") -> bool:
        """Return whether the request succeeded. If in doubt, wait until its response has been parsed."""
        if sent.answer is not None and sent.answer.looks_good and not self._failing:
            return True
        if self._closed:
            return False  # it returned in spite of its cancellation, and its response will not be awaited
        sent.was_ok = asyncio.get_running_loop().create_future()
        return await sent.was_ok

    def _should_continue(self, window: int, end: int) -> bool:
        return not self._closed and self._is_within(self._clock.monotonic_ns(), window, end)

    def _is_within(self, at: int, window: int, end: int) -> bool:
        """Return whether the step still sends: by number, or by time, extended while there are too few to judge."""
        if self._requests is not None:
            return self._sent < self._requests
        inside = at < end or (self._sent_in_window < self._enough and at < end + _MAX_EXTENSION * (end - window))
        if not inside and self._over_ns is None:
            self._over_ns = at
        return inside

    async def _until(self, at_ns: int) -> None:
        # A timer may fire a millisecond early; then sleep again.
        while (left := at_ns - self._clock.monotonic_ns()) > 0:  # noqa: ASYNC110 - it waits for a time, not an event
            await asyncio.sleep(left * 1e-9)

    # Work between the turns of the loop.

    async def _work(self) -> None:
        while True:
            if self._turns is not None:
                self._turns.mark()
            is_preparing = self._should_prepare_more()
            if is_preparing:
                self._make()
            if self._read_a_portion() or is_preparing:
                await asyncio.sleep(0)
            else:
                self._has_work.clear()
                await self._has_work.wait()

    def _should_prepare_more(self) -> bool:
        if self._closed or (self._requests is not None and self._made >= self._requests):
            return False
        wanted = _STOCK if self._plan.arrivals is not None else self._plan.concurrency
        return len(self._stock) < wanted and self._stock_tokens < _MAX_STOCK_TOKENS

    def _make(self) -> None:
        self._made += 1
        self._stock.append(next(self._source))
        self._stock_tokens += self._stock[-1].spec.prompt_tokens

    def _read_a_portion(self) -> bool:
        """Parse some more. Return False if no response waits."""
        if not self._unread:
            return False
        self._read_one_portion()
        while len(self._unread) > _MAX_UNREAD:
            self._read_one_portion()
        return True

    def _read_one_portion(self) -> None:
        number, sent = next(iter(self._unread.items()))
        if self._reading is None:
            self._reading = sent.read()
        record = next(self._reading, None)
        if record is not None:
            self._reading = None
            del self._unread[number]
            self._keep(record)
            if sent.was_ok is not None and not sent.was_ok.done():
                sent.was_ok.set_result(record.outcome is Outcome.OK)

    def _keep(self, record: RequestRecord) -> None:
        self._failing = record.outcome is not Outcome.OK
        self._records.append(record)
        self._on_record(record)


class _CapReached(Exception):  # noqa: N818 - it is no error
    """The cap of requests in flight is reached."""


@dataclass(slots=True)
class _Sent:
    """A request that has been sent, and its response once it has arrived."""

    ready: SendableRequest
    due_ns: int
    answer: UnreadResponse | None = None
    was_ok: asyncio.Future[bool] | None = None  # set while its sender waits for the parsed outcome

    def read(self) -> Iterator[RequestRecord | None]:
        return self.answer.read() if self.answer is not None else iter(())


async def _all_done_or_any(tasks: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
    """Wait for all of `tasks`, or any of `others`. Raises an error of any of them."""
    pending: set[asyncio.Task[Any]] = {*tasks, *others}
    while pending.intersection(tasks) and pending.issuperset(others):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

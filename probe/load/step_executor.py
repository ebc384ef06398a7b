"""The step engine: one step of load, open or closed loop. Every request of Kneewatch is sent by it.

In: a StepPlan and an iterator of requests that only have to be sent. Out: a StepRun of raw records. Setting `stop`
cancels whatever is in flight at once; the connections close with it.

    users or arrivals --> send --> answers --> reading, between the turns of the loop --> records

Sending goes first. Preparing the next requests and reading the answers is done in small portions, one a turn of the
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

# A server that refuses at once would otherwise be asked thousands of times a second. A user whose requests go on
# failing doubles the pause, up to ten of these.
_AFTER_FAILURE_S = 0.2
_MAX_PAUSES = 10
# A step whose time is up, but which has sent too few requests to be judged, goes on: by this many lengths at most.
_STRETCH = 2
# Open loop: how many requests lie ready. A burst is sent from them; more are made between the turns.
_STOCK = 64
# How many that are overdue are sent in one turn: a schedule that cannot be kept must not keep `stop` out.
_OVERDUE_PER_TURN = 16
# Prompts that lie ready take memory: about 6 bytes a token.
_MAX_STOCK_TOKENS = 4_000_000
# Answers that wait to be read. Beyond it the memory they hold (a thousand tokens are some 250 KB) matters more than a
# late stamp: as many are read in each turn as keep it so.
_MAX_UNREAD = 1024


# Numbers that Step.in_flight_figures gives for each request.
FIGURES = 4


class UnreadResponse(Protocol):
    """An answer as it came, to be read when there is time."""

    @property
    def looks_good(self) -> bool: ...

    def read(self) -> Iterator[RequestRecord | None]:
        """None after each portion, the record at last."""
        ...


class SendableRequest(Protocol):
    """A request that only has to be sent."""

    @property
    def spec(self) -> RequestSpec: ...

    def send(self, scheduled_ns: int) -> Awaitable[UnreadResponse]:
        """Sends it, due at `scheduled_ns`, and waits for its end."""
        ...

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        """Its record, were it cancelled now."""
        ...

    @property
    def reads(self) -> int:
        """How often something of the answer's body has arrived so far."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Which part of a step is done here: the `index`-th of `count`."""

    index: int = 0
    count: int = 1

    def of(self, whole: int) -> int:
        """This shard's share of so many."""
        return whole // self.count + (self.index < whole % self.count)


WHOLE = WorkerShare()


class StepExecution:
    """The state of one step: what is still to send, what is in flight, what has to be read."""

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
        """`on_record` is told of each request as it has been read, aborted ones included. `turns`: those of the
        client that sends, to know how late the loop is.
        """
        self._users = plan.concurrency  # of all shards
        self._plan = replace(plan, concurrency=shard.of(plan.concurrency))
        self._requests = shard.of(plan.requests) if plan.requests is not None else None
        self._enough = ceil(MIN_REQUESTS / shard.count)
        self._shard, self._seed = shard, seed
        self._source = requests
        self._clock = clock
        self._on_record = on_record
        self._turns = turns
        self._sent = self._sent_in_window = self._made = self._last_due_ns = 0
        self._over_ns: int | None = None  # when a step by time was first found to be over
        self._closed = self._capped = self._failing = False
        self._in_flight: dict[int, _Sent] = {}
        self._unread: dict[int, _Sent] = {}  # answered, in the order of their answers
        self._reading: Iterator[RequestRecord | None] | None = None
        self._work_to_do = asyncio.Event()
        self._records: list[RequestRecord] = []
        self._stock: deque[SendableRequest] = deque()
        self._stock_tokens = 0

    async def prepare(self) -> None:
        """Makes the requests of the first wave, so that none waits for it: a long prompt takes milliseconds."""
        while self._wants_stock():
            self._make()
            await asyncio.sleep(0)

    def in_flight(self) -> list[RequestRecord]:
        """What has no record yet, as it would be recorded if it were cancelled now."""
        return [sent.ready.aborted(sent.due_ns) for sent in self._outstanding()]

    def in_flight_figures(self) -> "array[int]":
        """The same in numbers, FIGURES each: when it was due, its prompt tokens, its output tokens, reads so far."""
        figures = array("q")
        for sent in self._outstanding():
            spec = sent.ready.spec
            figures.extend((sent.due_ns, spec.prompt_tokens, spec.output_tokens, sent.ready.reads))
        return figures

    def _outstanding(self) -> tuple["_Sent", ...]:
        return (*self._in_flight.values(), *self._unread.values())

    @property
    def sending(self) -> int:
        """How many are with the server now: those that `in_flight` counts, without the answers yet to be read."""
        return len(self._in_flight)

    async def run(self, stop: asyncio.Event, start_ns: int | None = None) -> StepRun:
        """Runs the step to its end, or until `stop` is set; from `start_ns`, else from now.

        Raises what a request raises, and CancelledError.
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
                self._closed = True  # whatever a cancelled request makes of it: no more are sent
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
            # One that was stretched was fully loaded until the first sender found it over.
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
        # Users join one after the other over the first half of the warm-up: all at once would be a burst that no
        # user makes, and would keep them in step.
        joining_ns = (window - start) // 2
        for i in range(self._shard.index, self._users, self._shard.count):
            yield self._user(start + joining_ns * i // self._users, window, end)

    async def _user(self, join: int, window: int, end: int) -> None:
        await self._until(join)
        failures = 0
        while self._goes_on(window, end):
            good = await self._went_well(await self._send(self._begin(self._clock.monotonic_ns(), window)))
            failures = 0 if good else failures + 1
            if failures and self._goes_on(window, end):
                await asyncio.sleep(_AFTER_FAILURE_S * min(2 ** (failures - 1), _MAX_PAUSES))

    async def _arrive(self, arrivals: Arrivals, start: int, window: int, end: int) -> None:
        """Sends what is due, however many answers are outstanding: up to the cap, which ends the step."""
        overdue = 0
        with suppress(_CapReached):
            try:
                async with asyncio.TaskGroup() as group:
                    for offset in islice(due_ns(arrivals, self._seed), self._shard.index, None, self._shard.count):
                        due = start + offset
                        if self._closed or not self._is_in(due, window, end):
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
        """Takes the next request, which from now on counts as sent; its number."""
        self._sent += 1
        self._sent_in_window += scheduled >= window
        self._last_due_ns = scheduled
        if not self._stock:
            self._make()
        ready = self._stock.popleft()
        self._stock_tokens -= ready.spec.prompt_tokens
        self._in_flight[self._sent] = _Sent(ready, scheduled)
        self._work_to_do.set()
        return self._sent

    async def _send(self, number: int) -> "_Sent":
        """Sends it and waits for its end."""
        sent = self._in_flight[number]
        sent.answer = await sent.ready.send(sent.due_ns)
        self._unread[number] = self._in_flight.pop(number)
        self._work_to_do.set()
        return sent

    async def _went_well(self, sent: "_Sent") -> bool:
        """Whether the server may be asked again at once. Where that is in doubt, only reading the answer tells."""
        if sent.answer is not None and sent.answer.looks_good and not self._failing:
            return True
        if self._closed:
            return False  # it was cancelled and came back all the same; nobody would tell
        sent.was_ok = asyncio.get_running_loop().create_future()
        return await sent.was_ok

    def _goes_on(self, window: int, end: int) -> bool:
        return not self._closed and self._is_in(self._clock.monotonic_ns(), window, end)

    def _is_in(self, at: int, window: int, end: int) -> bool:
        """By number, or by time, which is stretched where it holds too few to judge."""
        if self._requests is not None:
            return self._sent < self._requests
        inside = at < end or (self._sent_in_window < self._enough and at < end + _STRETCH * (end - window))
        if not inside and self._over_ns is None:
            self._over_ns = at
        return inside

    async def _until(self, at_ns: int) -> None:
        # A timer may be early by a millisecond, and is then set anew.
        while (left := at_ns - self._clock.monotonic_ns()) > 0:  # noqa: ASYNC110 - it waits for a time, not an event
            await asyncio.sleep(left * 1e-9)

    # What is done between the turns.

    async def _work(self) -> None:
        while True:
            if self._turns is not None:
                self._turns.mark()
            wants = self._wants_stock()
            if wants:
                self._make()
            if self._read_a_portion() or wants:
                await asyncio.sleep(0)
            else:
                self._work_to_do.clear()
                await self._work_to_do.wait()

    def _wants_stock(self) -> bool:
        if self._closed or (self._requests is not None and self._made >= self._requests):
            return False
        wanted = _STOCK if self._plan.arrivals is not None else self._plan.concurrency
        return len(self._stock) < wanted and self._stock_tokens < _MAX_STOCK_TOKENS

    def _make(self) -> None:
        self._made += 1
        self._stock.append(next(self._source))
        self._stock_tokens += self._stock[-1].spec.prompt_tokens

    def _read_a_portion(self) -> bool:
        """Reads on; False where there is nothing to read."""
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
    """As many are in flight as may be."""


@dataclass(slots=True)
class _Sent:
    """A request that has been sent, and its answer when it is there."""

    ready: SendableRequest
    due_ns: int
    answer: UnreadResponse | None = None
    was_ok: asyncio.Future[bool] | None = None  # where its sender waits for it to be read

    def read(self) -> Iterator[RequestRecord | None]:
        return self.answer.read() if self.answer is not None else iter(())


async def _all_done_or_any(tasks: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
    """Waits for every one of `tasks`, or any of `others`; an error in any of them is raised here and not lost."""
    pending: set[asyncio.Task[Any]] = {*tasks, *others}
    while pending.intersection(tasks) and pending.issuperset(others):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

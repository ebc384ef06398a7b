"""Executes one step of load, open or closed loop. It sends every inference request of Kneewatch.

In: a StepPlan and an iterator of prepared requests. Out: a StepRun of raw records. Setting `stop`
cancels all requests in flight at once and closes their connections.

    users or arrivals --> send --> responses --> parsing, between the turns of the loop --> records

Sending goes first. Preparing requests and parsing responses are done in small portions, one per turn of the
event loop, so that neither delays a timestamp by more than its portion.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Iterator, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any

from probe.client.loop_lateness import LoopLateness
from probe.core.arrivals import due_ns
from probe.core.clock import Clock
from probe.core.reasons import MIN_REQUESTS
from probe.core.request import Outcome, RequestRecord
from probe.core.step import MAX_EXTENSION, Arrivals, StepPlan, StepRun
from probe.load.loop_lag import watch_lag
from probe.load.messages import WHOLE, WorkerShare
from probe.load.sent_request import RequestStock, SendableRequest, SentRequest, UnreadResponses, pack


class SendingWindow:
    """The times of one step, and the count of its requests. Requests due from `opens_ns` on are judged."""

    def __init__(self, plan: StepPlan, start_ns: int, *, total: int | None, enough: int) -> None:
        """Take `total`: end after this number of requests, not by time. `enough`: extend until this many are
        judged.
        """
        self.start_ns = start_ns
        self.opens_ns = start_ns + int(plan.warm_up_s * 1e9)
        self.sent = 0
        self._end_ns = self.opens_ns + int(plan.seconds * 1e9)
        self._total = total
        self._enough = enough
        self._sent_inside = 0
        self._last_due_ns = 0
        self._over_ns: int | None = None  # when a timed step was first found to be over

    def add(self, due_ns: int) -> int:
        """Count a request as sent. Return its number."""
        self.sent += 1
        self._sent_inside += due_ns >= self.opens_ns
        self._last_due_ns = due_ns
        return self.sent

    def is_open(self, at_ns: int) -> bool:
        """Return whether the step still sends: by number, or by time, extended while there are too few to judge.

        The first time found to be over is kept: until then an extended step was fully loaded.
        """
        if self._total is not None:
            return self.sent < self._total
        longest_ns = self._end_ns + MAX_EXTENSION * (self._end_ns - self.opens_ns)
        inside = at_ns < self._end_ns or (self._sent_inside < self._enough and at_ns < longest_ns)
        if not inside and self._over_ns is None:
            self._over_ns = at_ns
        return inside

    def closes_ns(self, last_done_ns: int, *, is_cut_short: bool) -> int:
        """Return the end of the window that is judged, given when the last request was done."""
        closes_ns = last_done_ns
        if self._total is None and not is_cut_short:
            over_ns = self._end_ns if self._last_due_ns < self._end_ns else self._over_ns or last_done_ns
            closes_ns = min(over_ns, last_done_ns)
        return max(closes_ns, self.opens_ns)


class LimitReached(Exception):  # noqa: N818 - it is no error
    """As many requests are in flight as may be."""


class InFlightLimit:
    """At most `most` requests in flight. `holds`: one more waits until one has ended."""

    def __init__(self, most: int, clock: Clock, *, holds: bool) -> None:
        self._most = most
        self._holds = holds
        self._clock = clock
        self._has_ended = asyncio.Event()
        self._free_ns = 0
        self.is_exceeded = False

    def one_ended(self) -> None:
        """Note that a request is no longer in flight."""
        self._has_ended.set()

    async def held_ns(self, due_ns: int, in_flight: Sized) -> int:
        """Wait for one fewer in flight, where there are too many. Return for how long after `due_ns` that was.

        Raises LimitReached where the step does not hold requests back.
        """
        while len(in_flight) >= self._most:
            if not self._holds:
                self.is_exceeded = True
                raise LimitReached
            self._has_ended.clear()
            await self._has_ended.wait()
            self._free_ns = self._clock.monotonic_ns()
        return max(self._free_ns - due_ns, 0)  # also of those that were due meanwhile


# A pause after a failure: a server that refuses at once would otherwise get thousands of requests a second. A user
# with only failures doubles the pause, up to _MAX_PAUSES times this value.
_AFTER_FAILURE_S = 0.2
_MAX_PAUSES = 10
# Open loop: the number of requests kept prepared for bursts. More are prepared between turns.
_STOCK = 64
# The most overdue requests sent in one turn, so that a schedule that cannot be kept does not delay `stop`.
_OVERDUE_PER_TURN = 16


class StepExecution:
    """The state of one step: requests still to send, in flight, and waiting to be parsed."""

    def __init__(
        self,
        plan: StepPlan,
        requests: Iterator[SendableRequest],
        clock: Clock,
        *,
        on_record: Callable[[RequestRecord], None] = lambda _: None,
        lateness: LoopLateness | None = None,
        share: WorkerShare = WHOLE,
        seed: int = 0,
    ) -> None:
        """Pass each record to `on_record` once it is parsed, aborted ones included.

        `lateness`: the sending client's measure of how late the loop is.
        """
        self._users = plan.concurrency  # of all workers
        self._plan = replace(plan, concurrency=share.part_of(plan.concurrency))
        self._requests = share.part_of(plan.requests) if plan.requests is not None else None
        self._enough = ceil(MIN_REQUESTS / share.count)
        self._share, self._seed = share, seed
        self._clock = clock
        self._on_record = on_record
        self._lateness = lateness
        self._is_closed = self._is_failing = False
        # Where it only ends the step it is of all workers together, who report theirs (worker_step.py): the shares of
        # some fill by chance before. Where requests wait for it, each worker has a share.
        self._limit = InFlightLimit((self._plan if plan.holds else plan).concurrency, clock, holds=plan.holds)
        self._stock = RequestStock(
            requests, _STOCK if plan.arrivals is not None else self._plan.concurrency, self._requests
        )
        self._in_flight: dict[int, SentRequest] = {}
        self._unread = UnreadResponses(self._keep)
        self._has_work = asyncio.Event()
        self._records: list[RequestRecord] = []

    async def prepare(self) -> None:
        """Prepare the first requests, so that none is late for it: a long prompt takes milliseconds."""
        while self._should_prepare_more():
            self._stock.prepare_one()
            await asyncio.sleep(0)

    def in_flight(self) -> list[RequestRecord]:
        """Return the requests without a record yet, as they would be recorded if cancelled now."""
        return [sent.aborted() for sent in self._outstanding()]

    def in_flight_numbers(self) -> "array[int]":
        """Return the same as numbers (sent_request.py)."""
        return pack(self._outstanding())

    def _outstanding(self) -> tuple[SentRequest, ...]:
        return (*self._in_flight.values(), *self._unread.waiting)

    @property
    def sending(self) -> int:
        """Return the number of requests in flight without a complete response."""
        return len(self._in_flight)

    async def run(self, stop: asyncio.Event, start_ns: int | None = None) -> StepRun:
        """Run the step from `start_ns` (by default now) to its end, or until `stop` is set.

        Raises the errors of a request, and CancelledError.
        """
        start_ns = self._clock.monotonic_ns() if start_ns is None else start_ns
        window = SendingWindow(self._plan, start_ns, total=self._requests, enough=self._enough)
        self._is_closed = stop.is_set()
        async with watch_lag(self._clock) as lag:
            senders = [asyncio.create_task(sender) for sender in self._senders(window)]
            others = [asyncio.create_task(stop.wait()), asyncio.create_task(self._work())]
            try:
                await _all_done_or_any(senders, others)
            finally:
                self._is_closed = True  # no more are sent, however a cancelled request ends
                for task in (*senders, *others):
                    task.cancel()
                await asyncio.gather(*senders, *others, return_exceptions=True)
                for sent in self._in_flight.values():
                    self._keep(sent.aborted())
                self._in_flight.clear()
            while self._unread.read_portion():  # noqa: ASYNC110 - it does the work, it does not wait
                await asyncio.sleep(0)
        is_cut_short = stop.is_set() or self._limit.is_exceeded
        last_ns = max((record.done_ns for record in self._records), default=start_ns)
        return StepRun(
            self._plan,
            tuple(self._records),
            (window.opens_ns, window.closes_ns(last_ns, is_cut_short=is_cut_short)),
            tuple(lag),
            is_cut_short,
            is_capped=self._limit.is_exceeded,
        )

    # Sending.

    def _senders(self, window: SendingWindow) -> Iterator[Coroutine[Any, Any, None]]:
        if self._plan.arrivals is not None:
            yield self._arrive(self._plan.arrivals, window)
            return
        # Users join one after the other over the first half of the warm-up: all at once would be an
        # unrealistic burst, and would keep them synchronised.
        joining_ns = (window.opens_ns - window.start_ns) // 2
        for i in range(self._share.index, self._users, self._share.count):
            yield self._user(window.start_ns + joining_ns * i // self._users, window)

    async def _user(self, join_ns: int, window: SendingWindow) -> None:
        await self._until(join_ns)
        failures = 0
        while self._should_continue(window):
            good = await self._has_succeeded(await self._send(self._begin(self._clock.monotonic_ns(), window)))
            failures = 0 if good else failures + 1
            if failures and self._should_continue(window):
                await asyncio.sleep(_AFTER_FAILURE_S * min(2 ** (failures - 1), _MAX_PAUSES))

    async def _arrive(self, arrivals: Arrivals, window: SendingWindow) -> None:
        """Send requests when they are due. At the limit in flight the step ends, or the rest wait for an answer."""
        overdue = 0
        with suppress(LimitReached):
            try:
                async with asyncio.TaskGroup() as group:
                    for offset in islice(due_ns(arrivals, self._seed), self._share.index, None, self._share.count):
                        due = window.start_ns + offset
                        if self._is_closed or not window.is_open(due):
                            break
                        overdue = overdue + 1 if due <= self._clock.monotonic_ns() else 0
                        if overdue and overdue % _OVERDUE_PER_TURN == 0:
                            await asyncio.sleep(0)
                        await self._until(due)
                        held_ns = await self._limit.held_ns(due, self._in_flight)
                        if held_ns and not window.is_open(due + held_ns):
                            break
                        group.create_task(self._send(self._begin(due, window, held_ns)))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    def _begin(self, scheduled: int, window: SendingWindow, held_ns: int = 0) -> int:
        """Take the next request, which counts as sent from now on. Return its number."""
        number = window.add(scheduled)
        self._in_flight[number] = SentRequest(self._stock.take(), scheduled, held_ns)
        self._has_work.set()
        return number

    async def _send(self, number: int) -> SentRequest:
        """Send the request of this number and wait for its end."""
        sent = self._in_flight[number]
        sent.response = await sent.request.send(sent.due_ns)
        self._unread.add(self._in_flight.pop(number))
        self._has_work.set()
        self._limit.one_ended()
        return sent

    async def _has_succeeded(self, sent: SentRequest) -> bool:
        """Return whether the request succeeded. If in doubt, or short of memory, wait until its response is parsed."""
        looks_good = sent.response is not None and sent.response.looks_good
        if looks_good and not self._is_failing and not self._unread.is_full:
            return True
        if self._is_closed:
            return False  # it returned in spite of its cancellation, and its response will not be awaited
        sent.was_ok = asyncio.get_running_loop().create_future()
        return await sent.was_ok

    def _should_continue(self, window: SendingWindow) -> bool:
        return not self._is_closed and window.is_open(self._clock.monotonic_ns())

    async def _until(self, at_ns: int) -> None:
        # A timer may fire a millisecond early; then sleep again.
        while (left := at_ns - self._clock.monotonic_ns()) > 0:  # noqa: ASYNC110 - it waits for a time, not an event
            await asyncio.sleep(left * 1e-9)

    # Work between the turns of the loop.

    async def _work(self) -> None:
        while True:
            if self._lateness is not None:
                self._lateness.mark()
            is_preparing = self._should_prepare_more()
            if is_preparing:
                self._stock.prepare_one()
            if self._unread.read_portion() or is_preparing:
                await asyncio.sleep(0)
            else:
                self._has_work.clear()
                await self._has_work.wait()

    def _should_prepare_more(self) -> bool:
        return not self._is_closed and self._stock.has_room

    def _keep(self, record: RequestRecord) -> None:
        self._is_failing = record.outcome is not Outcome.OK
        self._records.append(record)
        self._on_record(record)


async def _all_done_or_any(tasks: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
    """Wait for all of `tasks`, or any of `others`. Raises an error of any of them."""
    pending: set[asyncio.Task[Any]] = {*tasks, *others}
    while pending.intersection(tasks) and pending.issuperset(others):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

"""Load on a server in virtual time, in the place of the worker processes (probe/load/worker_pool.py)."""

import asyncio
from array import array
from collections.abc import Callable, Iterator

from benchmarks.capacity.busy import BusyMachine, QuietMachine
from probe.core.arrivals import due_ns
from probe.core.reasons import MIN_REQUESTS
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, TokenEvents, Traffic
from probe.core.step import StepPlan, StepRun
from probe.core.workload import Workload, lengths
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import VirtualServer

_SLICE_S = 0.05  # how often ended requests are collected and `stop` is checked
_EXTENSION = 2


class VirtualLoad:
    """Steps on a VirtualServer, in the time of the running loop. `machine`: when the client sends and reads."""

    def __init__(
        self, server: VirtualServer, workload: Workload, seed: int, machine: BusyMachine | None = None
    ) -> None:
        self._server, self._workload, self._seed = server, workload, seed
        self._lengths: Iterator[tuple[int, int, int]] = lengths(workload, seed + 7919)  # not those of the live users
        self._machine = machine or QuietMachine()
        self._due_s: dict[int, float] = {}
        self._steps = 0
        self._open: dict[int, SimulatedRequest] = {}
        self.on_ended: Callable[[SimulatedRequest], None] = lambda _: None

    async def run(self, plan: StepPlan, stop: asyncio.Event, on_record: Callable[[RequestRecord], None]) -> StepRun:
        self._steps += 1
        loop = asyncio.get_running_loop()
        start = loop.time()
        window = start + plan.warm_up_s
        end = window + plan.seconds
        records: list[RequestRecord] = []
        sent = in_window = 0
        capped = closed = False
        over = end  # when sending ended: an extended step is judged until then
        due = due_ns(plan.arrivals, self._seed * 1000 + self._steps) if plan.arrivals else None
        coming = start + next(due) * 1e-9 if due else start

        def keep(record: RequestRecord) -> None:
            records.append(record)
            on_record(record)

        while not stop.is_set():
            now = loop.time()
            self._collect(now, keep)
            until = now + _SLICE_S
            while not closed and not capped:
                extended_end = end if in_window >= MIN_REQUESTS else end + _EXTENSION * plan.seconds
                closed = sent >= plan.requests if plan.requests is not None else coming >= extended_end
                over = max(end, coming) if closed else over
                if closed or (due and coming >= until):
                    break
                if len(self._open) >= plan.concurrency:
                    capped = due is not None
                    break
                self._submit(coming if due else now)
                sent += 1
                in_window += coming >= window
                coming = start + next(due) * 1e-9 if due else now
            if capped or (closed and not self._open):
                break
            await asyncio.sleep(_SLICE_S if not due or closed else until - now)
            if not due and not closed:
                coming = loop.time()
        self._collect(loop.time(), keep)
        for request in self._open.values():
            self._server.abort(request)
            keep(self._record(request, loop.time()))
        self._open.clear()
        last = max((r.done_ns for r in records), default=round(start * 1e9))
        cut = stop.is_set() or capped
        closes = last if plan.requests is not None or cut else min(round(over * 1e9), last)
        lags = self._machine.lags_s(start, loop.time())
        return StepRun(plan, tuple(records), (round(window * 1e9), max(closes, round(window * 1e9))), lags, cut, capped)

    def in_flight(self) -> list[RequestRecord]:
        now = asyncio.get_running_loop().time()
        return [self._record(request, now) for request in self._open.values()]

    def reported_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    async def add_workers(self) -> None:
        """See protocol.Load: more workers would run no sooner."""

    def _submit(self, at_s: float) -> None:
        request = self._server.submit(max(self._machine.handled_s(at_s), self._server.now_s), *next(self._lengths))
        self._open[id(request)] = request
        self._due_s[id(request)] = at_s

    def _collect(self, now: float, keep: Callable[[RequestRecord], None]) -> None:
        self._server.advance(max(now, self._server.now_s))
        for request in self._server.ended_requests:
            self.on_ended(request)
            if request.is_probe and self._open.pop(id(request), None) is not None:
                keep(self._record(request, request.last_s))
        self._server.ended_requests.clear()

    def _record(self, request: SimulatedRequest, now_s: float) -> RequestRecord:
        done = request.ended and request.last_s == request.last_s  # not NaN
        times = [self._machine.handled_s(at_s) for at_s in request.token_times_s()] if done else []
        begun = request.first_s == request.first_s  # not NaN
        tokens = _spread(request.output_tokens, len(times))
        sent, output, shared = request.prompt_tokens, request.output_tokens, request.shared_tokens
        spec = RequestSpec(self._workload.name, Api.COMPLETIONS, (), sent, output, shared_tokens=shared)
        sent_ns = round(request.arrival_s * 1e9)
        return RequestRecord(
            target="bench",
            model="bench",
            traffic=Traffic.CAPACITY,
            spec=spec,
            scheduled_ns=min(round(self._due_s[id(request)] * 1e9), sent_ns),
            sent_ns=sent_ns,
            done_ns=max(round(self._machine.handled_s(now_s) * 1e9), sent_ns),
            done_wall_s=now_s,
            outcome=Outcome.OK if done else Outcome.ABORTED,
            http_status=200 if begun else None,
            events=TokenEvents(
                at_ns=array("q", [round(t * 1e9) for t in times]),
                late_ns=array("q", bytes(8 * len(times))),
                tokens=tokens,
                first_visible=0 if times else None,
            ),
            reads=1 if begun else 0,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens if done else 0,
        )


def _spread(tokens: int, events: int) -> "array[int]":
    """Spread the tokens over the events; the first event has one."""
    if events < 2:
        return array("i", [tokens] * events)
    each, rest = divmod(tokens - 1, events - 1)
    return array("i", [1, *(each + (i < rest) for i in range(events - 1))])

"""A guarded capacity run: one step of load after the other, until the load plan is over or something stops it.

In: a RunJob, the LoadPlan that chooses the steps, the load, and access to the server's metrics (seams.py).
Out: a CapacityResult. Load, the polls of the server (server_watch.py), the guard (run_guard.py) and the
budget run concurrently. Whatever ends the run, nothing is in flight afterwards.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from probe.capacity.run.load_plan import LoadPlan
from probe.capacity.run.request import GUARD_S, RunJob, RunRequest
from probe.capacity.run.run_guard import RunGuard, StopSwitch
from probe.capacity.run.seams import Load, ServerAccess, StepObservers, Think, unread
from probe.capacity.run.server_watch import POLL_S, ServerWatch, thinned
from probe.capacity.search.knee import MODE, TOGETHER
from probe.capacity.search.load_words import describe_load
from probe.core import latency, reasons
from probe.core import objectives as slo
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.provenance import with_gpus
from probe.core.reasons import CLIENT_BOUND, SERVER_UNREADABLE
from probe.core.request import NO_FAILURES, Outcome, RequestRecord, tokens_spent
from probe.core.result import Capacity, CapacityResult, Cost, Phase
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside
from probe.load import late_step
from probe.load import step_summary as summary
from probe.observe.stream_guard import UNLOADED_REQUESTS, UNSEEN
from probe.observe.user_load import mean


class CostMeter:
    """Counts finished requests as they are added, and those in flight when it is asked."""

    def __init__(self, request: RunRequest, load: Load, clock: Clock) -> None:
        self._request = request
        self._load = load
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._load_ended_ns = self._started_ns
        self._requests, self._tokens = 0, 0
        self._over: list[tuple[int, int]] = []
        self.is_warm = False  # a cold server's first request is not held against it

    def start(self) -> None:
        """Begin to count seconds."""
        self._started_ns = self._clock.monotonic_ns()

    def step_ended(self) -> None:
        """Note that the last request of a step has ended."""
        self._load_ended_ns = self._clock.monotonic_ns()

    def add(self, record: RequestRecord) -> None:
        """Count a finished request."""
        self._requests += 1
        self._tokens += sum(tokens_spent(record))
        self._over += self._over_objective(record)

    def cost(self, *, is_over: bool) -> Cost:
        """Return the cost until now, or until the last step ended where the run is over."""
        in_flight = self._load.in_flight()
        until_ns = self._load_ended_ns if is_over else self._clock.monotonic_ns()
        late = [span for record in in_flight for span in self._over_objective(record)]
        return Cost(
            requests=self._requests + len(in_flight),
            tokens=self._tokens + sum(sum(tokens_spent(record)) for record in in_flight),
            seconds=(until_ns - self._started_ns) * 1e-9,
            over_objective_seconds=covered_seconds([*self._over, *late]),
        )

    def exceeded(self, *, is_over: bool) -> str | None:
        """Return the name of the budget that is spent, if one is."""
        return self._request.budget.exceeded(self.cost(is_over=is_over))

    def _over_objective(self, record: RequestRecord) -> list[tuple[int, int]]:
        return over_objective(record, self._request.objectives) if self.is_warm else []


def covered_seconds(spans: Iterable[tuple[int, int]]) -> float:
    """Return the seconds covered by at least one of the spans (begin, end; nanoseconds)."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total * 1e-9


def over_objective(record: RequestRecord, objectives: Objectives) -> list[tuple[int, int]]:
    """Return the spans (begin, end; nanoseconds) in which a request was over a latency objective, or failing.

    A cancelled request is only known not to have ended: it was over its objectives from the time when its E2E at the
    limit, or TTFT and TPOT at theirs, would have ended it.
    """
    due_ns, done_ns = record.scheduled_ns, record.done_ns
    if record.outcome is Outcome.ABORTED:
        allowed_s = _longest_allowed_s(record, objectives)
        over = [(due_ns + int(allowed_s * 1e9), done_ns)] if allowed_s is not None else []
    elif record.outcome is Outcome.CLIENT_BOUND:
        over = []
    elif record.outcome is not Outcome.OK:
        over = [(due_ns, done_ns)]
    else:
        over = list(_late_spans(record, objectives))
    return [(begin, end) for begin, end in over if begin < end]


def _longest_allowed_s(record: RequestRecord, objectives: Objectives) -> float | None:
    """Return how long the request may take by its objectives; None if they do not say."""
    ttft, tpot, e2e = objectives.ttft, objectives.tpot, objectives.e2e
    allowed_s = [e2e.within_s] if e2e is not None else []
    if ttft is not None and tpot is not None:
        allowed_s.append(ttft.within_s + tpot.within_s * (record.spec.output_tokens - 1))
    return min(allowed_s, default=None)


def _late_spans(record: RequestRecord, objectives: Objectives) -> Iterator[tuple[int, int]]:
    """Yield the spans (ns) in which an answered request was over each objective that it missed."""
    good, due_ns = slo.met(record, objectives), record.scheduled_ns
    missed = {name: one.within_s for name, one in objectives.latencies().items() if not good.get(name, True)}
    first_ns = due_ns + int((latency.ttft_s(record) or 0.0) * 1e9)
    if "ttft" in missed:
        yield due_ns + int(missed["ttft"] * 1e9), first_ns
    if "tpot" in missed:
        yield first_ns, record.done_ns
    if "e2e" in missed:
        yield due_ns + int(missed["e2e"] * 1e9), record.done_ns
    if "itl" in missed:
        yield from ((before + int(missed["itl"] * 1e9), after) for before, after in pairwise(record.events.at_ns))


_T = TypeVar("_T")

# Users count in what is judged of a step, where that is long enough to know their rate.
_LEAST_USERS_S = 5.0
# A server that has no users for this long is not watched for longer.
_IDLE_S = 10.0
_FIRST, _WATCHING = Phase("a first request"), "watching live traffic"
_NEXT_STEP, _RESULT = Phase("computing the next step"), Phase("computing the result")
_CALMING = Phase("waiting for the server to be idle")
_NO_OBSERVERS = StepObservers()


def _inside(snapshots: Sequence[ServerSnapshot], window_ns: tuple[int, int]) -> Sequence[ServerSnapshot]:
    """Return the snapshots of what is judged: users who come or go before or after it are not in its load."""
    begin_ns, end_ns = window_ns
    inside = [snapshot for snapshot in snapshots if begin_ns <= snapshot.at_ns <= end_ns]
    return inside if inside and inside[-1].at_ns - inside[0].at_ns >= _LEAST_USERS_S * 1e9 else snapshots


class CapacityRun:
    """One capacity run. `stop(...)` ends it from outside; `run` still returns what was measured."""

    def __init__(
        self,
        job: RunJob,
        plan: LoadPlan,
        load: Load,
        server: ServerAccess,
        clock: Clock,
        *,
        observers: StepObservers = _NO_OBSERVERS,
        think: Think = asyncio.to_thread,
    ) -> None:
        """Run the load plan's arithmetic by `think`, off the event loop, so that the guard goes on meanwhile."""
        self._job, self._request = job, job.request
        self._plan = plan
        self._think = think
        self._server = server
        self._load = load
        self._clock = clock
        self._observers = observers
        self._switch = StopSwitch()
        self._watch = ServerWatch(unread if job.request.by_stream else server.read, server.read_gpus, clock)
        self._guard = RunGuard(
            job, plan, load, clock, watch=self._watch, switch=self._switch, other_probes=server.other_probes
        )
        self._cost = CostMeter(job.request, load, clock)
        self._started = datetime.fromtimestamp(clock.wall_s(), UTC)
        self._steps: list[StepSummary] = []
        self._first_failure: str | None = None
        self._users: list[tuple[UserLoad, float]] = []  # and for how long each was observed, in seconds

    def stop(self, by: str, reason: str | None = None) -> None:
        """Cancel the load now. The first reason given is the one reported."""
        self._switch.stop(by, reason)

    async def before_stop(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do what has to be done before `run`. Return False where `stop` came first and the work was cancelled.

        Raises what the work raises.
        """
        return await self._switch.before_stop(work)

    async def run(self) -> CapacityResult:
        """Run the steps and return the result, also when the run was stopped on the way.

        Raises what a seam raises beyond its contract; `result` then still returns what was measured.
        """
        self._started = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        self._cost.start()
        watches = (self._watch.follow_server(), self._keep_guard(), self._watch.follow_gpus())
        watchers = [asyncio.create_task(watch) for watch in watches]
        for watcher in watchers:
            watcher.add_done_callback(lambda _: self._switch.halt())  # without a watcher, whatever the reason: no load
        try:
            await self._take_steps()
            await self._guard.watch_after_restart()
        finally:
            self._switch.halt()
            for watcher in watchers:
                watcher.cancel()
            ended = await asyncio.gather(*watchers, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return self._result(await self._capacity())

    async def result(self) -> CapacityResult:
        """Return what was measured so far and what ended it, also after `run` has raised: its cost counts."""
        try:
            capacity = await self._capacity()
        except Exception as error:  # noqa: BLE001 - that may be what `run` has raised
            capacity = Capacity(mode=MODE, reason=f"it could not be computed ({type(error).__name__})")
        return self._result(capacity)

    async def _capacity(self) -> Capacity:
        note = UNSEEN if self._request.by_stream else None
        if self._guard.has_several_servers():
            # One server's counters less the requests to all of them say nothing of users.
            self._users.clear()
            self._steps = [replace(step, users=UserLoad()) for step in self._steps]
            note = TOGETHER
        found = await self._compute(partial(self._plan.capacity, self._steps, self._guard.stopped()), _RESULT)
        if self._guard.stopped().reason == SERVER_UNREADABLE.word and self._watch.failure is not None:
            found = replace(found, reason="; ".join(filter(None, (self._watch.failure, found.reason))))
        return found.with_note(note) if note else found

    def _result(self, capacity: Capacity) -> CapacityResult:
        return CapacityResult(
            id=f"{self._started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            target=self._request.target,
            model=self._job.model,
            started=self._started,
            context=self._job.context,
            steps=tuple(self._steps),
            capacity=capacity,
            cost=self._cost.cost(is_over=self._switch.is_on),
            stopped=self._guard.stopped(),
            users=mean(self._users),
            confirms=self._request.confirms,
            first_failure=self._first_failure,
            provenance=with_gpus(self._job.provenance, self._watch.last_gpus),
        )

    async def _compute(self, work: Callable[[], _T], phase: Phase = _NEXT_STEP) -> _T:
        """Run the load plan's arithmetic and return its result; there is no load meanwhile."""
        self._observers.on_phase(phase)
        return await self._think(work)

    async def _take_steps(self) -> None:
        await self._observe_idle()
        while not self._switch.is_on and (plan := await self._compute(self._plan.next_step)) is not None:
            if not self._switch.is_on:
                await self._take(plan)
        if not self._switch.is_on and (wait_s := self._guard.uncounted_s()) > 0:
            self._observers.on_phase(Phase("waiting for the server to count the requests", wait_s))
            await self._switch.pause(wait_s + POLL_S)
        if (reason := self._plan.end_reason()) is not None:
            self.stop("done" if reasons.find(reasons.TRIPS, reason) is None else "guard", reason)

    async def _observe_idle(self) -> None:
        """Send the first request, and watch the server before there is load."""
        # No step counts it: a cold server's first answer says nothing of its capacity.
        self._observers.on_phase(_FIRST)
        first = await self._send_alone()
        self._guard.is_warm = self._cost.is_warm = True
        if self._request.by_stream and not self._switch.is_on:
            self._guard.observe_unloaded(await self._send_alone(UNLOADED_REQUESTS))
        before, began_ns = self._watch.begin(), self._clock.monotonic_ns()
        if self._plan.observe_s > 0:
            self._observers.on_phase(Phase(_WATCHING, self._plan.observe_s))
            await self._switch.pause(min(self._plan.observe_s, _IDLE_S))
            if not self._is_idle(before):
                await self._switch.pause(self._plan.observe_s - _IDLE_S)
        snapshots = self._watch.snapshots[before:]
        beside = TrafficBeside(self._server.users_between((), snapshots), self._other_probes(began_ns))
        self._add_users(beside.users, snapshots)
        if not self._switch.is_on:
            baseline = summary.summarize(first, self._request.objectives)
            await self._compute(partial(self._plan.observe_idle, thinned(snapshots), baseline, beside))
        self._watch.end()

    def _is_idle(self, since: int) -> bool:
        """Return whether the server has had nothing to do since that snapshot: there is no traffic to learn from."""
        snapshots = self._watch.snapshots[since:]
        users = self._server.users_between((), snapshots)
        return users.requests_per_second == 0 and not any(s.running or s.waiting for s in snapshots)

    async def _take(self, plan: StepPlan) -> None:
        """Run one step of the plan and report it."""
        first, began_ns = self._watch.begin(), self._clock.monotonic_ns()
        await self._watch.poll()  # the state before the step, so that its preemptions are its own
        if self._switch.is_on:
            return
        text = f"step {len(self._steps) + 1}: {describe_load(plan)}"
        self._observers.on_phase(Phase(text, plan.warm_up_s + plan.seconds if plan.requests is None else None))
        run = await self._run_step(plan)
        await self._watch.poll()
        await self._guard.watch_after_restart()
        run = replace(run, other_probes=self._other_probes(began_ns))
        snapshots = sorted(self._watch.snapshots[first:], key=lambda snapshot: snapshot.at_ns)
        judged = _inside(snapshots, run.window_ns)
        users, gpus = self._server.users_between(run.records, judged), self._watch.take_gpus()
        step = summary.summarize(run, self._request.objectives, polls=snapshots, gpus=gpus, users=users)
        tripped = self._guard.tripped
        if tripped is not None and step.is_late and late_step.may_explain(tripped, run, self._request.objectives):
            step, tripped = replace(step, reason=CLIENT_BOUND.word), None
        else:
            step = replace(step, tripped=self._guard.trip_reason(run))
        self._steps.append(step)
        self._add_users(step.users, judged)
        self._observers.on_step(step)
        await self._compute(partial(self._plan.step_finished, step, run, thinned(snapshots), tripped))
        self._watch.end()
        if step.is_late or step.reason == CLIENT_BOUND.word:
            await self._switch.before_stop(self._load.add_workers())
        if self._guard.tripped is not None:
            self._observers.on_phase(_CALMING)
            await self._guard.wait_until_calm(self._send_alone)

    def _other_probes(self, since_ns: int) -> tuple[RequestRecord, ...]:
        return tuple(record for record in self._server.other_probes() if record.done_ns >= since_ns)

    def _add_users(self, users: UserLoad, snapshots: Sequence[ServerSnapshot]) -> None:
        if snapshots:
            self._users.append((users, (snapshots[-1].at_ns - snapshots[0].at_ns) * 1e-9))

    async def _send_alone(self, requests: int = 1) -> StepRun:
        """Send requests one after the other, which no step counts."""
        return await self._run_step(StepPlan(concurrency=1, seconds=0, requests=requests))

    async def _run_step(self, plan: StepPlan) -> StepRun:
        self._guard.step_started(plan)
        try:
            run = await self._load.run(plan, self._switch.step_over, self._keep)
        finally:
            self._cost.step_ended()
        if self._guard.is_unsure:
            await self._watch.poll()
            self._guard.explain_refusals()
        self._guard.step_ended(run)
        return run

    def _keep(self, record: RequestRecord) -> None:
        self._cost.add(record)
        if self._first_failure is None and record.outcome not in NO_FAILURES:
            self._first_failure = f"{record.outcome.value}: {record.detail}" if record.detail else record.outcome.value
        self._observers.on_record(record)
        self._guard.request_ended(record)

    async def _keep_guard(self) -> None:
        """Check the guard and the budget until cancelled."""
        while True:
            self._guard.check()
            if (budget := self._cost.exceeded(is_over=self._switch.is_on)) is not None:
                self.stop("budget", budget)
            self._guard.check_client()
            await asyncio.sleep(GUARD_S)

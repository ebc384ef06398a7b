"""A guarded step-up: one step of load after the other, watched, until the course is over or the guard says stop.

In: a RampJob, the Course that says which steps, and the seams to the server (load, and a reading of its metrics).
Out: a CapacityResult. Load and watch run side by side; whichever of guard, budget, caller or the last step ends it,
nothing is in flight afterwards.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from probe.capacity.search.knee import MODE, OVER_OBJECTIVE, describe_load
from probe.core import objectives as slo
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.request import Outcome, RequestRecord
from probe.core.request_cost import tokens_spent
from probe.core.result import Capacity, CapacityResult, Cost, Phase, RunContext, Stopped
from probe.core.snapshot import GpuSnapshot, ServerSnapshot, UserLoad
from probe.core.step import StepPlan, StepRun, StepSummary
from probe.load import step_summary as summary
from probe.load.messages import WORKER_LOST_S
from probe.load.protocol import Load
from probe.observe.guard import IN_FLIGHT_CAP, OBJECTIVE_BROKEN, OVERLOAD, GuardLimits, broken_for_certain, decide
from probe.observe.user_load import mean, users_beside

_T = TypeVar("_T")

# While we load, the server is read often: an overload shows within two or three polls. An overloaded server is slow
# to be read, which must not hold up the guard: it is asked at its own pace, and after each failure.
POLL_S = 0.5
_POLL_TIMEOUT_S = 1.0
_GPU_POLL_S = 1.0
_GUARD_S = 0.25
# What the load tells of requests without an answer is judged by while it is no older than this. What stays older ends
# the run: it is ours to mend, and no fault of the server. A worker that says nothing at all is given up before.
_OLD_S = 0.5
_TOO_LONG_OLD_S = WORKER_LOST_S - _OLD_S + _GUARD_S
CLIENT_LATE = "client_late"
# After a trip: how long the server may take to be calm again, before load goes on.
_CALM_S = 30.0


class Think(Protocol):
    """Runs what takes seconds of arithmetic where it holds nothing up."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


class LoadPlan(Protocol):
    """Which steps a run takes, one after the other, and what follows from them."""

    @property
    def observe_s(self) -> float:
        """How long to watch the server before there is load."""
        ...

    @property
    def survives_overload(self) -> bool:
        """Whether the run goes on, with less load, after the guard has ended a step for an overload."""
        ...

    def observe_idle(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        """The server, without our load, and a single request of ours. May take seconds."""
        ...

    def next_step(self) -> StepPlan | None:
        """The next step; None when the course is over. May take seconds."""
        ...

    def step_finished(
        self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        """What came of it; `tripped`: why the guard ended it, if it did. May take seconds."""
        ...

    def end_reason(self) -> str | None:
        """Why the course is over, in words."""
        ...

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """What follows. May take seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost at most. Stopped.reason is the configuration's name of the one that was spent."""

    tokens: int
    seconds: float
    over_objective_seconds: float
    tokens_name: str = "tokens_per_run"  # or that of the day, where less than a run's is left of it

    @property
    def last_over_s(self) -> float:
        """When to stop for over_objective_seconds: what is in flight is late for a look or two more."""
        return max(self.over_objective_seconds - 2 * _GUARD_S, self.over_objective_seconds / 2)


@dataclass(frozen=True, slots=True)
class RunJob:
    """What to do. Without the guard every step runs to its end, within the budget."""

    target: str
    model: str
    objectives: Objectives
    budget: Budget
    context: RunContext
    guarded: bool = True
    limits: GuardLimits = field(default_factory=GuardLimits)
    confirms: str | None = None  # the id of the run that it repeats


@dataclass(slots=True)
class _Observations:
    """What was seen since the load began, and why it was stopped. The guard goes by the watcher's own polls."""

    polls: list[ServerSnapshot | None] = field(default_factory=list)
    readings: list[ServerSnapshot] = field(default_factory=list)  # those before and after a step too
    stopped: Stopped | None = None


_LOOKING, _WATCHING = Phase("a first request"), "watching live traffic"
_NEXT_LOAD, _RESULT = Phase("computing the next load level"), Phase("computing the result")
_CALMING = Phase("waiting for the server to be idle")


def _ignore(_: object) -> None:
    """For a caller that does not follow a run."""


class CapacityRun:
    """One capacity run. `stop(...)` ends it from outside; `run` still returns what was measured."""

    def __init__(
        self,
        job: RunJob,
        course: LoadPlan,
        load: Load,
        read_server: Callable[[], Awaitable[ServerSnapshot]],
        clock: Clock,
        *,
        on_step: Callable[[StepSummary], None] = _ignore,
        on_record: Callable[[RequestRecord], None] = _ignore,
        on_doing: Callable[[Phase], None] = _ignore,
        read_gpus: Callable[[], Awaitable[GpuSnapshot]] | None = None,
        think: Think = asyncio.to_thread,
    ) -> None:
        """`think` runs what takes the course seconds, away from the event loop: the guard goes on meanwhile."""
        self._job = job
        self._course = course
        self._think = think
        self._load = load
        self._read_server = read_server
        self._read_gpus = read_gpus
        self._gpus: list[GpuSnapshot] = []  # since the last step began, and the one before it
        self._clock = clock
        self._on_step = on_step
        self._on_record = on_record
        self._on_doing = on_doing
        self._started_ns = clock.monotonic_ns()
        self._ended_ns = self._started_ns  # of the last step, its last request included
        self._started = datetime.fromtimestamp(clock.wall_s(), UTC)
        self._steps: list[StepSummary] = []
        self._users: list[tuple[UserLoad, float]] = []  # and for how long they were seen
        self._halt = asyncio.Event()
        self._step_halt = asyncio.Event()  # of the step that runs; set with the other, or alone after a trip
        self._loading = False
        self._tripped: str | None = None
        self._failures: list[Outcome] = []
        self._requests, self._tokens = 0, 0
        self._over: list[tuple[int, int]] = []
        self._warm = False
        self._limits = job.limits.promised(job.objectives)
        self._rate_rps = 0.0  # of the step that runs, where it is known
        self._planned = 0.0  # requests of the step that runs, where it has a rate
        self._judged_from_ns = 0  # those due later count in it
        self._missed: Counter[str] = Counter()  # an objective, by its name
        self._watch = _Observations()
        self._old_since_ns: int | None = None  # what the load tells, as far as it is old

    def stop(self, by: str, reason: str | None = None) -> None:
        """Cancels the load now. The first reason given is the one reported."""
        self._watch.stopped = self._watch.stopped or Stopped(by, reason)
        self._halt_all()

    async def before_stop(self, work: Coroutine[Any, Any, object]) -> bool:
        """Does what has to be done before `run`; False where `stop` came first, and the work was cancelled.

        Raises what the work raises.
        """
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._halt.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            in_time = working.done()
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
        if in_time:
            working.result()
        return in_time

    async def run(self) -> CapacityResult:
        """Runs the steps and returns the result, also when it was stopped on the way.

        Raises what a seam raises beyond its contract; `result` then still gives what was measured.
        """
        self._started = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        self._started_ns = self._clock.monotonic_ns()
        watches = (self._watch_server(), self._keep_guard(), self._watch_gpus())
        watchers = [asyncio.create_task(watch) for watch in watches]
        for watcher in watchers:
            watcher.add_done_callback(lambda _: self._halt_all())  # no watch, whatever the reason: no load
        try:
            await self._look()
            while not self._halt.is_set() and (plan := await self._considered(self._course.next_step)) is not None:
                if not self._halt.is_set():
                    await self._take(plan)
            if (reason := self._course.end_reason()) is not None:
                self.stop("done", reason)
        finally:
            self._halt_all()
            for watcher in watchers:
                watcher.cancel()
            ended = await asyncio.gather(*watchers, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        capacity = await self._considered(partial(self._course.capacity, self._steps, self._stopped()), _RESULT)
        return self._result(capacity)

    async def result(self) -> CapacityResult:
        """What was measured so far, and what ended it. Also after `run` has raised: what it cost has to be told."""
        try:
            capacity = await self._considered(partial(self._course.capacity, self._steps, self._stopped()), _RESULT)
        except Exception as error:  # noqa: BLE001 - that may be what `run` has raised
            capacity = Capacity(mode=MODE, reason=f"it could not be computed ({type(error).__name__})")
        return self._result(capacity)

    def _stopped(self) -> Stopped:
        return self._watch.stopped or Stopped("done")

    def _result(self, capacity: Capacity) -> CapacityResult:
        return CapacityResult(
            id=f"{self._started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            target=self._job.target,
            model=self._job.model,
            started=self._started,
            context=self._job.context,
            steps=tuple(self._steps),
            capacity=capacity,
            cost=self._cost(),
            stopped=self._stopped(),
            users=mean(self._users),
            confirms=self._job.confirms,
        )

    async def _considered(self, work: Callable[[], _T], phase: Phase = _NEXT_LOAD) -> _T:
        """What the course makes of it; no load of ours runs meanwhile."""
        self._on_doing(phase)
        return await self._think(work)

    def _halt_all(self) -> None:
        self._halt.set()
        self._step_halt.set()

    async def _look(self) -> None:
        """What there is to see before the first step."""
        # One request that no step counts: a cold server's first answer says nothing of its capacity.
        self._on_doing(_LOOKING)
        first = await self._run_step(StepPlan(concurrency=1, seconds=0, requests=1))
        self._warm = True
        before = len(self._watch.readings)
        if self._course.observe_s > 0:
            self._on_doing(Phase(_WATCHING, self._course.observe_s))
            await self._pause(self._course.observe_s)
        readings = self._watch.readings[before:]
        self._saw_users(users_beside((), readings), readings)
        if not self._halt.is_set():
            lone = summary.summarize(first, self._job.objectives)
            await self._considered(partial(self._course.observe_idle, readings, lone))

    async def _take(self, plan: StepPlan) -> None:
        """One step of the course, and what comes of it."""
        first = len(self._watch.readings)
        await self._poll()  # the state before the step, so that its preemptions are its own
        if self._halt.is_set():
            return
        words = f"step {len(self._steps) + 1}: {describe_load(plan)}"
        self._on_doing(Phase(words, plan.warm_up_s + plan.seconds if plan.requests is None else None))
        run = await self._run_step(plan)
        await self._poll()
        readings = sorted(self._watch.readings[first:], key=lambda reading: reading.at_ns)
        step = summary.summarize(run, self._job.objectives, polls=readings, gpus=self._gpus)
        self._gpus = self._gpus[-1:]
        step = replace(step, tripped=self._tripped or (self._by_guard() if run.cut_short else None))
        self._steps.append(step)
        self._saw_users(step.users, readings)
        self._on_step(step)
        await self._considered(partial(self._course.step_finished, step, run, readings, self._tripped))
        if self._tripped is not None:
            await self._until_calm()

    def _by_guard(self) -> str | None:
        stopped = self._stopped()
        return stopped.reason if stopped.by == "guard" else None

    def _saw_users(self, users: UserLoad, readings: Sequence[ServerSnapshot]) -> None:
        if readings:
            self._users.append((users, (readings[-1].at_ns - readings[0].at_ns) * 1e-9))

    async def _until_calm(self) -> None:
        """Waits for the server to have no queue, and forgets what the guard saw of it; ends the run where it stays."""
        self._on_doing(_CALMING)
        ends = self._clock.monotonic_ns() + int(_CALM_S * 1e9)
        while not self._halt.is_set():
            reading = await self._poll()
            if reading is not None and not reading.waiting:
                break
            if self._clock.monotonic_ns() > ends:
                self.stop("guard", self._tripped)
            await self._pause(POLL_S)
        # One is kept: by it the guard sees that the server was replaced.
        self._watch.polls[:] = [poll for poll in self._watch.polls if poll is not None][-1:]
        self._tripped = None

    async def _pause(self, seconds: float) -> None:
        """So long, or until the run is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._halt.wait()

    async def _run_step(self, plan: StepPlan) -> StepRun:
        self._rate_rps = max(plan.arrivals.rate_rps, plan.arrivals.end_rate_rps) if plan.arrivals else 0.0
        self._planned = self._rate_rps * plan.seconds
        self._judged_from_ns = self._clock.monotonic_ns() + int(plan.warm_up_s * 1e9)
        self._missed.clear()
        if not self._halt.is_set():
            self._step_halt.clear()
        self._loading = True
        try:
            run = await self._load.run(plan, self._step_halt, self._keep)
        finally:
            self._ended_ns = self._clock.monotonic_ns()
        if run.problem is not None:
            self.stop("error", run.problem)
        elif run.capped:
            self._trip(IN_FLIGHT_CAP)
        self._loading = False
        return run

    def _keep(self, record: RequestRecord) -> None:
        self._requests += 1
        self._tokens += sum(tokens_spent(record))
        self._over += self._over_objective(record)
        self._on_record(record)
        self._judge(record)
        if record.outcome not in (Outcome.OK, Outcome.ABORTED):
            self._failures.append(record.outcome)
            self._ask_guard()

    def _judge(self, record: RequestRecord) -> None:
        """Ends a step of a search as soon as it is certain to break an objective. Fixed steps run to their end."""
        if not (self._job.guarded and self._course.survives_overload and self._planned):
            return
        if record.scheduled_ns >= self._judged_from_ns:
            self._missed.update(name for name, good in slo.met(record, self._job.objectives).items() if not good)
            if broken_for_certain(self._missed, self._planned, self._job.objectives) is not None:
                self._trip(OBJECTIVE_BROKEN)

    async def _watch_server(self) -> None:
        """Reads the server until cancelled."""
        due = self._clock.monotonic_ns()
        while True:
            self._watch.polls.append(await self._poll())
            due = max(due + int(POLL_S * 1e9), self._clock.monotonic_ns())
            await asyncio.sleep((due - self._clock.monotonic_ns()) * 1e-9)

    async def _watch_gpus(self) -> None:
        """Reads the GPUs until cancelled. Nothing is stopped by what they say, or do not say."""
        while True:
            if self._read_gpus is not None:
                with suppress(TargetError):
                    self._gpus.append(await self._read_gpus())
            await asyncio.sleep(_GPU_POLL_S)

    async def _keep_guard(self) -> None:
        """Asks the guard and counts the cost until cancelled."""
        while True:
            self._ask_guard()
            self._spend()
            self._mind_lateness()
            await asyncio.sleep(_GUARD_S)

    def _ask_guard(self) -> None:
        verdict = decide(self._watch.polls, self._failures, self._limits.offered(self._rate_rps), self._unanswered_s())
        if self._job.guarded and not verdict.go:
            self._trip(verdict.reason)

    def _trip(self, reason: str | None) -> None:
        """Ends the step for an overload, where the course knows what to make of it, and else the run."""
        overload = reason in OVERLOAD
        if self._course.survives_overload and self._warm and self._loading and overload:
            self._tripped = self._tripped or reason
            self._step_halt.set()
        elif not (overload and self._tripped is not None):  # the same one shows until the server is calm again
            self.stop("guard", reason)

    def _unanswered_s(self) -> list[float]:
        """For how long requests of ours waited for the first byte of their answers when that was told. A cold server's
        first one may. What was told too long ago says nothing: the answers may be there.
        """
        if not self._warm or self._told_ago_s() > _OLD_S:
            return []
        waiting = [record for record in self._load.in_flight() if record.reads == 0]
        return [(record.done_ns - record.scheduled_ns) * 1e-9 for record in waiting]

    def _told_ago_s(self) -> float:
        told_ns = self._load.told_ns()
        return 0.0 if told_ns is None else (self._clock.monotonic_ns() - told_ns) * 1e-9

    def _mind_lateness(self) -> None:
        """Ends a run whose guard hears of its requests too late, and goes on hearing of them too late."""
        now_ns = self._clock.monotonic_ns()
        if self._told_ago_s() <= _OLD_S:
            self._old_since_ns = None
        elif self._old_since_ns is None:
            self._old_since_ns = now_ns
        elif self._job.guarded and now_ns - self._old_since_ns > int(_TOO_LONG_OLD_S * 1e9):
            self.stop("error", CLIENT_LATE)

    async def _poll(self) -> ServerSnapshot | None:
        try:
            async with asyncio.timeout(_POLL_TIMEOUT_S):
                reading = await self._read_server()
        except (TargetError, TimeoutError):
            return None
        self._watch.readings.append(reading)
        return reading

    def _spend(self) -> None:
        cost, budget = self._cost(), self._job.budget
        if cost.tokens >= budget.tokens:
            self.stop("budget", budget.tokens_name)
        elif cost.seconds >= budget.seconds:
            self.stop("budget", "seconds")
        elif cost.over_objective_seconds >= budget.last_over_s:
            self.stop("budget", OVER_OBJECTIVE)

    def _over_objective(self, record: RequestRecord) -> list[tuple[int, int]]:
        return summary.over_objective(record, self._job.objectives) if self._warm else []

    def _cost(self) -> Cost:
        in_flight = self._load.in_flight()
        until_ns = self._ended_ns if self._halt.is_set() else self._clock.monotonic_ns()
        late = [span for record in in_flight for span in self._over_objective(record)]
        return Cost(
            requests=self._requests + len(in_flight),
            tokens=self._tokens + sum(sum(tokens_spent(record)) for record in in_flight),
            seconds=(until_ns - self._started_ns) * 1e-9,
            over_objective_seconds=summary.covered_seconds([*self._over, *late]),
        )

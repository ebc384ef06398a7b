"""A guarded step-up: steps of rising concurrency, watched, until one breaks an objective or the guard says stop.

In: a RampJob and the seams to the server (load, and a reading of its metrics). Out: a CapacityResult. Load and
watch run side by side; whichever of guard, budget, caller or the last step ends it, nothing is in flight
afterwards.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from probe import summary
from probe.capacity.knee import OVER_OBJECTIVE, knee
from probe.clock import Clock
from probe.errors import TargetError
from probe.guard import IN_FLIGHT_CAP, GuardLimits, decide
from probe.load.source import Load
from probe.records import (
    CapacityResult,
    Cost,
    Objectives,
    Outcome,
    RequestRecord,
    RunContext,
    ServerSnapshot,
    StepPlan,
    StepRun,
    StepSummary,
    Stopped,
)

# While we load, the server is read often: an overload shows within two or three polls. An overloaded server is slow
# to be read, which must not hold up the guard: it is asked at its own pace, and after each failure.
POLL_S = 0.5
_POLL_TIMEOUT_S = 1.0
_GUARD_S = 0.25


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost at most. Stopped.reason is the configuration's name of the one that was spent."""

    tokens: int
    seconds: float
    over_objective_seconds: float
    tokens_name: str = "tokens_per_run"  # or that of the day, where less than a run's is left of it


@dataclass(frozen=True, slots=True)
class RampJob:
    """What to do. Without the guard every step runs to its end, within the budget."""

    target: str
    model: str
    plans: tuple[StepPlan, ...]
    objectives: Objectives
    budget: Budget
    context: RunContext
    guarded: bool = True
    limits: GuardLimits = field(default_factory=GuardLimits)


@dataclass(slots=True)
class _Watch:
    """What was seen since the load began, and why it was stopped. The guard goes by the watcher's own polls."""

    polls: list[ServerSnapshot | None] = field(default_factory=list)
    readings: list[ServerSnapshot] = field(default_factory=list)  # those before and after a step too
    stopped: Stopped | None = None


def _ignore(_: object) -> None:
    """For a caller that does not follow a run."""


class Ramp:
    """One capacity run. `stop(...)` ends it from outside; `run` still returns what was measured."""

    def __init__(
        self,
        job: RampJob,
        load: Load,
        read_server: Callable[[], Awaitable[ServerSnapshot]],
        clock: Clock,
        *,
        on_step: Callable[[StepSummary], None] = _ignore,
        on_record: Callable[[RequestRecord], None] = _ignore,
    ) -> None:
        self._job = job
        self._load = load
        self._read_server = read_server
        self._clock = clock
        self._on_step = on_step
        self._on_record = on_record
        self._started_ns = clock.monotonic_ns()
        self._started = datetime.fromtimestamp(clock.wall_s(), UTC)
        self._steps: list[StepSummary] = []
        self._halt = asyncio.Event()
        self._failures: list[Outcome] = []
        self._requests, self._tokens = 0, 0
        self._over: list[tuple[int, int]] = []
        self._warm = False
        self._limits = job.limits.promised(job.objectives)
        self._rate_rps = 0.0  # of the step that runs, where it is known
        self._watch = _Watch()

    def stop(self, by: str, reason: str | None = None) -> None:
        """Cancels the load now. The first reason given is the one reported."""
        self._watch.stopped = self._watch.stopped or Stopped(by, reason)
        self._halt.set()

    async def run(self) -> CapacityResult:
        """Runs the steps and returns the result, also when it was stopped on the way.

        Raises what a seam raises beyond its contract; `result` then still gives what was measured.
        """
        self._started = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        self._started_ns = self._clock.monotonic_ns()
        watchers = [asyncio.create_task(self._watch_server()), asyncio.create_task(self._keep_guard())]
        for watcher in watchers:
            watcher.add_done_callback(lambda _: self._halt.set())  # no watch, whatever the reason: no load
        try:
            # One request that no step counts: a cold server's first answer says nothing of its capacity.
            await self._run_step(StepPlan(concurrency=1, seconds=0, requests=1))
            self._warm = True
            for plan in self._job.plans:
                first = len(self._watch.readings)
                await self._poll()  # the state before the step, so that its preemptions are its own
                if self._halt.is_set():
                    break
                step = await self._step(plan, first)
                self._steps.append(step)
                self._on_step(step)
                if self._job.guarded and step.valid and step.broken:
                    self.stop("done", f"concurrency {plan.concurrency} broke {', '.join(step.broken)}")
        finally:
            self._halt.set()
            for watcher in watchers:
                watcher.cancel()
            ended = await asyncio.gather(*watchers, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return self.result()

    def result(self) -> CapacityResult:
        """What was measured so far, and what ended it."""
        stopped = self._watch.stopped or Stopped("done")
        return CapacityResult(
            id=f"{self._started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            target=self._job.target,
            model=self._job.model,
            started=self._started,
            context=self._job.context,
            steps=tuple(self._steps),
            capacity=knee(self._steps, stopped),
            cost=self._cost(),
            stopped=stopped,
        )

    async def _run_step(self, plan: StepPlan) -> StepRun:
        self._rate_rps = max(plan.arrivals.rate_rps, plan.arrivals.end_rate_rps) if plan.arrivals else 0.0
        run = await self._load.run(plan, self._halt, self._keep)
        if run.problem is not None:
            self.stop("error", run.problem)
        elif run.capped:
            self.stop("guard", IN_FLIGHT_CAP)
        return run

    def _keep(self, record: RequestRecord) -> None:
        self._requests += 1
        self._tokens += sum(summary.tokens_spent(record))
        self._over += self._over_objective(record)
        self._on_record(record)
        if record.outcome not in (Outcome.OK, Outcome.ABORTED):
            self._failures.append(record.outcome)
            self._ask_guard()

    async def _step(self, plan: StepPlan, first: int) -> StepSummary:
        run = await self._run_step(plan)
        await self._poll()
        polls = sorted(self._watch.readings[first:], key=lambda reading: reading.at_ns)
        return summary.summarize(run, self._job.objectives, polls=polls)

    async def _watch_server(self) -> None:
        """Reads the server until cancelled."""
        due = self._clock.monotonic_ns()
        while True:
            self._watch.polls.append(await self._poll())
            due = max(due + int(POLL_S * 1e9), self._clock.monotonic_ns())
            await asyncio.sleep((due - self._clock.monotonic_ns()) * 1e-9)

    async def _keep_guard(self) -> None:
        """Asks the guard and counts the cost until cancelled."""
        while True:
            self._ask_guard()
            self._spend()
            await asyncio.sleep(_GUARD_S)

    def _ask_guard(self) -> None:
        verdict = decide(self._watch.polls, self._failures, self._limits.offered(self._rate_rps), self._silent_s())
        if self._job.guarded and not verdict.go:
            self.stop("guard", verdict.reason)

    def _silent_s(self) -> float:
        """For how long a request of ours has waited for the first byte of its answer. A cold server's first one may."""
        if not self._warm:
            return 0.0
        unanswered = [record.scheduled_ns for record in self._load.in_flight() if record.reads == 0]
        return (self._clock.monotonic_ns() - min(unanswered)) * 1e-9 if unanswered else 0.0

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
        elif cost.over_objective_seconds >= budget.over_objective_seconds:
            self.stop("budget", OVER_OBJECTIVE)

    def _over_objective(self, record: RequestRecord) -> list[tuple[int, int]]:
        return summary.over_objective(record, self._job.objectives) if self._warm else []

    def _cost(self) -> Cost:
        in_flight = self._load.in_flight()
        late = [span for record in in_flight for span in self._over_objective(record)]
        return Cost(
            requests=self._requests + len(in_flight),
            tokens=self._tokens + sum(sum(summary.tokens_spent(record)) for record in in_flight),
            seconds=(self._clock.monotonic_ns() - self._started_ns) * 1e-9,
            over_objective_seconds=summary.covered_seconds([*self._over, *late]),
        )

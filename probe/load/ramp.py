"""A guarded step-up: steps of rising concurrency, watched, until one breaks an objective or the guard says stop.

In: a RampJob and the seams to the server (send a request, read its metrics). Out: a CapacityResult. Load and
watch run side by side; whichever of guard, budget, caller or the last step ends it, nothing is in flight
afterwards.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from probe import summary
from probe.capacity.knee import knee
from probe.client.send import Send
from probe.clock import Clock
from probe.errors import TargetError
from probe.guard import GuardLimits, decide
from probe.load.step import ClosedLoop, StepRun
from probe.records import (
    CapacityResult,
    Cost,
    Objectives,
    Outcome,
    RequestRecord,
    RequestSpec,
    RunContext,
    ServerSnapshot,
    StepPlan,
    StepSummary,
    Stopped,
)

# While we load, the server is read often: an overload shows within two or three polls.
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost at most."""

    tokens: int
    seconds: float
    over_objective_seconds: float


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
    """What the watcher has seen since the load began, and why it stopped the load."""

    polls: list[ServerSnapshot | None] = field(default_factory=list)
    stopped: Stopped | None = None


def _ignore(_: object) -> None:
    """For a caller that does not follow a run."""


class Ramp:
    """One capacity run. `stop(...)` ends it from outside; `run` still returns what was measured."""

    def __init__(
        self,
        job: RampJob,
        send: Send,
        specs: Iterator[RequestSpec],
        read_server: Callable[[], Awaitable[ServerSnapshot]],
        clock: Clock,
        *,
        on_step: Callable[[StepSummary], None] = _ignore,
        on_record: Callable[[RequestRecord], None] = _ignore,
    ) -> None:
        self._job = job
        self._send = send
        self._specs = specs
        self._read_server = read_server
        self._clock = clock
        self._on_step = on_step
        self._on_record = on_record
        self._started_ns = clock.monotonic_ns()
        self._started = datetime.fromtimestamp(clock.wall_s(), UTC)
        self._steps: list[StepSummary] = []
        self._halt = asyncio.Event()
        self._records: list[RequestRecord] = []
        self._loop: ClosedLoop | None = None
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
        watcher = asyncio.create_task(self._watch_server())
        watcher.add_done_callback(lambda _: self._halt.set())  # no watch, whatever the reason: no load
        try:
            await self._warm_up()
            for plan in self._job.plans:
                first_poll = len(self._watch.polls)
                await self._poll()  # the state before the step, so that its preemptions are its own
                if self._halt.is_set():
                    break
                step = await self._step(plan, first_poll)
                self._steps.append(step)
                self._on_step(step)
                if self._job.guarded and step.valid and step.broken:
                    self.stop("done", f"concurrency {plan.concurrency} broke {', '.join(step.broken)}")
        finally:
            self._halt.set()
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
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

    async def _warm_up(self) -> None:
        """One request that no step counts: a cold server's first answer says nothing of its capacity."""
        await self._load(StepPlan(concurrency=1, seconds=0, requests=1))
        self._ask_guard()

    async def _load(self, plan: StepPlan) -> StepRun:
        self._loop = ClosedLoop(plan, self._send, self._specs, self._clock)
        run = await self._loop.run(self._halt, self._job.target, self._job.model)
        self._loop = None
        self._records += run.records
        for record in run.records:
            self._on_record(record)
        return run

    async def _step(self, plan: StepPlan, first_poll: int) -> StepSummary:
        run = await self._load(plan)
        await self._poll()
        return summary.summarize(
            plan,
            run.records,
            run.window_ns,
            self._job.objectives,
            loop_lag_s=run.loop_lag_s,
            polls=[poll for poll in self._watch.polls[first_poll:] if poll is not None],
            cut_short=run.cut_short,
        )

    async def _watch_server(self) -> None:
        """Reads the server, asks the guard, counts the cost; until cancelled."""
        due = self._clock.monotonic_ns()
        while True:
            await self._poll()
            self._ask_guard()
            self._spend()
            due = max(due + int(POLL_S * 1e9), self._clock.monotonic_ns())
            await asyncio.sleep((due - self._clock.monotonic_ns()) * 1e-9)

    def _ask_guard(self) -> None:
        failures = [r.outcome for r in self._so_far() if r.outcome not in (Outcome.OK, Outcome.ABORTED)]
        verdict = decide(self._watch.polls, failures, self._job.limits)
        if self._job.guarded and not verdict.go:
            self.stop("guard", verdict.reason)

    async def _poll(self) -> None:
        try:
            self._watch.polls.append(await self._read_server())
        except TargetError:
            self._watch.polls.append(None)

    def _spend(self) -> None:
        cost, budget = self._cost(), self._job.budget
        if cost.tokens >= budget.tokens:
            self.stop("budget", f"{cost.tokens} tokens of {budget.tokens}")
        elif cost.seconds >= budget.seconds:
            self.stop("budget", f"{budget.seconds:g} seconds")
        elif cost.over_objective_seconds >= budget.over_objective_seconds:
            self.stop("budget", f"{budget.over_objective_seconds:g} seconds over an objective")

    def _cost(self) -> Cost:
        records = self._so_far()
        in_flight = self._loop.in_flight if self._loop else []
        return Cost(
            requests=len(records) + len(in_flight),
            tokens=sum(map(summary.tokens_spent, records)) + sum(spec.prompt_tokens for spec in in_flight),
            seconds=(self._clock.monotonic_ns() - self._started_ns) * 1e-9,
            over_objective_seconds=summary.over_objective_seconds(records, self._job.objectives),
        )

    def _so_far(self) -> list[RequestRecord]:
        return [*self._records, *(self._loop.records if self._loop else ())]

"""The load plan of a run, which chooses its steps: given ones, or those of a search in a process of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from probe.capacity.model.hints import Hints
from probe.capacity.run.request import Replay, RunRequest, hints_of
from probe.capacity.search.fixed_steps import FixedSteps
from probe.capacity.search.unverified import Spending
from probe.core.objectives import Objectives
from probe.core.reasons import MIN_REQUESTS
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import MAX_EXTENSION, Arrivals, Pattern, StepPlan, StepRun, StepSummary, TrafficBeside
from probe.core.workload import Workload
from probe.runtime.helper_process import HelperProcess

# The first sixth of a replay is sent and not judged: the server is still empty then.
_REPLAY_WARM_UP_SHARE = 1 / 6
# The warm-up's share of a step: queue and batch have to fill, and the initial burst has to pass.
_WARM_UP_SHARE = 0.2


class LoadPlan(Protocol):
    """Chooses the steps of a run, one after the other, and computes the capacity from them.

    All methods but `end_reason` may take seconds.
    """

    @property
    def observe_s(self) -> float:
        """Return how long to watch the server before there is load, in seconds."""
        ...

    @property
    def survives_overload(self) -> bool:
        """Return whether the run goes on, with less load, after the guard has ended a step for an overload."""
        ...

    def observe_idle(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        """Take in the server without load, one unloaded baseline request, and the other traffic meanwhile."""
        ...

    def next_step(self) -> StepPlan | None:
        """Return the next step; None when the plan is over."""
        ...

    def step_finished(
        self, step: StepSummary, run: StepRun, snapshots: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        """Take in a finished step; `tripped`: why the guard ended it early, if it did."""
        ...

    def end_reason(self) -> str | None:
        """Return why the plan is over, in words or as the word of a reason that stops load; None: nothing to say."""
        ...

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """Return the capacity that follows from the steps."""
        ...


class SearchProcess:
    """A LoadPlan that runs capacity.search.Search in a helper process. Its methods raise HelperError where that fails.

    Call `begin` first: it takes a second or more, for numpy.
    """

    survives_overload = True

    def __init__(
        self,
        helper: HelperProcess,
        workload: Workload,
        objectives: Objectives,
        hints: Hints,
        budget: Spending,
        *,
        observe_s: float,
    ) -> None:
        self.observe_s = observe_s
        self._helper = helper
        self._search = (workload, objectives, hints, budget)
        self._end_reason: str | None = None

    def begin(self) -> None:
        self._helper.call_and_keep("probe.capacity.search.search:Search", *self._search)

    def observe_idle(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        self._helper.ask("observe_idle", snapshots, baseline, beside)

    def next_step(self) -> StepPlan | None:
        plan: StepPlan | None = self._helper.ask("next_step")
        self._end_reason = self._helper.ask("end_reason") if plan is None else None
        return plan

    def step_finished(
        self, step: StepSummary, run: StepRun, snapshots: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        self._helper.ask("step_finished", step, run, snapshots, tripped)

    def end_reason(self) -> str | None:
        return self._end_reason

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        found: Capacity = self._helper.ask("capacity", steps, stopped)
        return found


def replay_steps(replay: Replay, streams: int, *, holds: bool) -> Iterator[StepPlan]:
    """Yield a step for each speed, with at most `streams` in flight."""
    for speed in replay.speeds:
        seconds = replay.step_s(speed)
        due_s = replay.trace.due_s(speed, seconds)
        rate_rps = len(due_s) / seconds
        if len(due_s) < 2 * MIN_REQUESTS:
            due_s = replay.trace.due_s(speed, (1 + MAX_EXTENSION) * seconds)
        yield StepPlan(
            streams,
            seconds * (1 - _REPLAY_WARM_UP_SHARE),
            loop="open",
            warm_up_s=seconds * _REPLAY_WARM_UP_SHARE,
            arrivals=Arrivals(Pattern.REPLAY, rate_rps, times_s=due_s, speed=speed),
            holds=holds,
        )


@asynccontextmanager
async def load_plan(request: RunRequest, workload: Workload) -> AsyncIterator[LoadPlan]:
    """Open the load plan of the request. A search runs in a helper process, which ends with the context.

    Raises HelperError where that process does not start.
    """
    steps = request.steps
    warm_up_s = _WARM_UP_SHARE * steps.seconds if steps.requests is None else 0.0
    plan = partial(StepPlan, seconds=steps.seconds, requests=steps.requests, warm_up_s=warm_up_s)
    fixed_steps = partial(FixedSteps, to_the_end=not request.is_guarded, confirm_s=steps.confirm_s)
    holds = steps.max_concurrency is not None
    if steps.replay is not None:
        yield fixed_steps(list(replay_steps(steps.replay, steps.streams, holds=holds)), confirm_s=0.0)
    elif steps.concurrency is not None:
        yield fixed_steps([plan(concurrency=count) for count in steps.concurrency])
    elif steps.rates is not None:
        rising_s = warm_up_s if steps.arrivals.pattern is Pattern.RISING else 0.0
        arrivals = [replace(steps.arrivals, rate_rps=rate, ramp_s=rising_s) for rate in steps.rates]
        yield fixed_steps([plan(steps.streams, loop="open", arrivals=one, holds=holds) for one in arrivals])
    else:
        with HelperProcess() as helper:
            most = Spending(request.budget.seconds, request.budget.tokens)
            hints, observe_s = hints_of(request.server), steps.observe_s
            search = SearchProcess(helper, workload, request.objectives, hints, most, observe_s=observe_s)
            await asyncio.to_thread(search.begin)
            yield search

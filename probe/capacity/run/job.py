"""What a capacity run is asked to do: its job, its budget, and the load plan that chooses its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from probe.core.objectives import Objectives
from probe.core.provenance import Provenance
from probe.core.result import Capacity, RunContext, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside
from probe.observe.guard_limits import GuardLimits

# How often the guard and the budget are checked.
GUARD_S = 0.25


class LoadPlan(Protocol):
    """Chooses the steps of a run, one after the other, and computes the capacity from them.

    All methods but `end_reason` may take seconds.
    """

    @property
    def observe_s(self) -> float:
        """How long to watch the server before there is load, in seconds."""
        ...

    @property
    def survives_overload(self) -> bool:
        """Whether the run goes on, with less load, after the guard has ended a step for an overload."""
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
        """Return why the plan is over, if there is anything to say."""
        ...

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """Return the capacity that follows from the steps."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost at most. Stopped.reason is the configuration's name of the limit that was reached."""

    tokens: int
    seconds: float
    over_objective_seconds: float
    tokens_name: str = "tokens_per_run"  # or tokens_per_day, where less than a run's is left of that

    @property
    def over_objective_stop_s(self) -> float:
        """When to stop for over_objective_seconds: requests in flight stay late for a check or two more."""
        return max(self.over_objective_seconds - 2 * GUARD_S, self.over_objective_seconds / 2)


@dataclass(frozen=True, slots=True)
class RunJob:
    """What to do. Without the guard every step runs to its end, within the budget.

    `by_stream`: guarded by the run's own answers alone, without the metrics page.
    """

    target: str
    model: str
    objectives: Objectives
    budget: Budget
    context: RunContext
    is_guarded: bool = True
    limits: GuardLimits = field(default_factory=GuardLimits)
    confirms: str | None = None  # the id of the run that it repeats
    by_stream: bool = False
    provenance: Provenance | None = None

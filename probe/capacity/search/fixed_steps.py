"""The load plan for given steps: one after another, until one breaks an objective. Pure."""

from collections.abc import Iterator, Sequence

from probe.capacity.search.knee import describe_load, find_knee
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside


class FixedSteps:
    """The steps in their order. `to_the_end`: continue after a step that broke an objective."""

    observe_s = 0.0
    survives_overload = False

    def __init__(self, plans: Sequence[StepPlan], *, to_the_end: bool = False) -> None:
        self._plans: Iterator[StepPlan] = iter(plans)
        self._to_the_end = to_the_end
        self._ended: str | None = None

    def observe_idle(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        """Ignore the unloaded baseline: the steps are given."""

    def next_step(self) -> StepPlan | None:
        return None if self._ended else next(self._plans, None)

    def step_finished(
        self,
        step: StepSummary,
        run: StepRun,  # noqa: ARG002
        snapshots: Sequence[ServerSnapshot],  # noqa: ARG002
        tripped: str | None,  # noqa: ARG002
    ) -> None:
        if step.valid and step.broken and not self._to_the_end:
            self._ended = f"{describe_load(step.plan)} broke {', '.join(step.broken)}"

    def end_reason(self) -> str | None:
        return self._ended

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        return find_knee(steps, stopped)

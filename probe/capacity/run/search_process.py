"""The search for the knee, in a process of its own (aside.py): it thinks for seconds, and canaries are stamped here."""

from collections.abc import Sequence

from probe.capacity.model.hints import Hints
from probe.core.objectives import Objectives
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary
from probe.core.workload import Workload
from probe.runtime.helper_process import HelperProcess


class SearchProcess:
    """A ramp.Course: capacity.search.Search, from afar. Each method but `ended` waits for it, and raises AsideError
    where it fails. `begin` comes first: it takes a second or more, for numpy and scipy.
    """

    survives_overload = True

    def __init__(
        self, other: HelperProcess, workload: Workload, objectives: Objectives, hints: Hints, *, observe_s: float
    ) -> None:
        self.observe_s = observe_s
        self._other = other
        self._search = (workload, objectives, hints)

    def begin(self) -> None:
        self._other.keep("probe.capacity.search.search:Search", *self._search)

    def observe_idle(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        self._other.ask("observe_idle", readings, lone)

    def next_step(self) -> StepPlan | None:
        plan: StepPlan | None = self._other.ask("next_step")
        return plan

    def step_finished(
        self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        self._other.ask("step_finished", step, run, readings, tripped)

    def end_reason(self) -> str | None:
        return None  # the capacity says it

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        found: Capacity = self._other.ask("capacity", steps, stopped)
        return found

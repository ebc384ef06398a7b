"""The search for the knee in a helper process: it computes for seconds, and this process stamps canaries."""

from collections.abc import Sequence

from probe.capacity.model.hints import Hints
from probe.capacity.search.unverified import Spending
from probe.core.objectives import Objectives
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside
from probe.core.workload import Workload
from probe.runtime.helper_process import HelperProcess


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

    def begin(self) -> None:
        self._helper.keep("probe.capacity.search.search:Search", *self._search)

    def observe_idle(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        self._helper.ask("observe_idle", snapshots, baseline, beside)

    def next_step(self) -> StepPlan | None:
        plan: StepPlan | None = self._helper.ask("next_step")
        return plan

    def step_finished(
        self, step: StepSummary, run: StepRun, snapshots: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        self._helper.ask("step_finished", step, run, snapshots, tripped)

    def end_reason(self) -> str | None:
        return None  # the capacity has the reason

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        found: Capacity = self._helper.ask("capacity", steps, stopped)
        return found

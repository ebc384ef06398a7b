"""The load plan of steps that are given, all closed-loop or all open-loop. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.capacity.search.knee import MANY_REQUESTS, find_knee, is_long
from probe.capacity.search.load_words import describe_load
from probe.core.reasons import MIN_REQUESTS
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import MAX_EXTENSION, Pattern, StepPlan, StepRun, StepSummary, TrafficBeside

_MARGIN = 1.2  # for answers that take longer than the unloaded one, and for rates that chance lowers


class FixedSteps:
    """The steps in their order. `to_the_end`: continue after a step that broke an objective.

    `confirm_s`: how long the highest load that held is repeated, or until 1000 requests. Not
    where it lasted as long already.
    """

    observe_s = 0.0
    survives_overload = False

    def __init__(self, plans: Sequence[StepPlan], *, to_the_end: bool = False, confirm_s: float = 0.0) -> None:
        self._plans: Iterator[StepPlan] = iter(plans)
        self._to_the_end = to_the_end
        self._confirm_s = confirm_s
        self._answer_s = 0.0
        self._judged: dict[float, StepSummary] = {}  # by load; of a load's steps the last
        self._repeated: set[float] = set()
        self._ended: str | None = None

    def observe_idle(
        self,
        snapshots: Sequence[ServerSnapshot],  # noqa: ARG002
        baseline: StepSummary,
        beside: TrafficBeside,  # noqa: ARG002
    ) -> None:
        """Take from the unloaded baseline how long an answer takes, its first token apart: a cold server's is late."""
        self._answer_s = max((baseline.e2e_s.max or 0.0) - (baseline.ttft_s.max or 0.0), 0.0)

    def next_step(self) -> StepPlan | None:
        plan = None if self._ended else next(self._plans, None)
        return self._repetition() if plan is None else _at_least(plan, self._answer_s)

    def step_finished(
        self,
        step: StepSummary,
        run: StepRun,  # noqa: ARG002
        snapshots: Sequence[ServerSnapshot],  # noqa: ARG002
        tripped: str | None,  # noqa: ARG002
    ) -> None:
        if step.valid:
            self._judged[step.plan.load] = step
        if step.valid and step.broken and not self._to_the_end and not self._ended:
            self._ended = f"{describe_load(step.plan)} broke {', '.join(step.broken)}"

    def end_reason(self) -> str | None:
        return self._ended

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        return find_knee(steps, stopped)

    def _repetition(self) -> StepPlan | None:
        """Return the highest load that held, to be judged for longer, unless it was."""
        held = [load for load, step in self._judged.items() if not step.broken and step.throughput_rps > 0]
        best = self._judged[max(held)] if held else None
        if best is None or best.plan.load in self._repeated or is_long(best):
            return None
        if (best.plan.seconds if best.plan.requests is None else best.seconds) >= self._confirm_s:
            return None
        self._repeated.add(best.plan.load)
        seconds = min(self._confirm_s, MANY_REQUESTS / best.throughput_rps)
        if best.plan.requests is None:
            return replace(best.plan, seconds=max(seconds, best.plan.seconds))
        return replace(best.plan, requests=max(round(seconds * best.throughput_rps), best.plan.requests))


def _at_least(plan: StepPlan, answer_s: float) -> StepPlan:
    """Return a timed step as long as an answer, and so long that it can be judged once it is extended; or longer.

    In a shorter one the users of a closed loop send nothing after the warm-up, and an open loop does not fill.
    """
    arrivals = plan.arrivals
    is_replay = arrivals is not None and arrivals.pattern is Pattern.REPLAY
    if plan.requests is not None or is_replay or plan.seconds >= answer_s:
        return plan
    requests_s = MIN_REQUESTS * answer_s / plan.concurrency if arrivals is None else MIN_REQUESTS / arrivals.rate_rps
    seconds = max(answer_s, _MARGIN * requests_s / (1 + MAX_EXTENSION))
    longer = seconds / plan.seconds
    if arrivals is not None:
        arrivals = replace(arrivals, ramp_s=longer * arrivals.ramp_s)
    return replace(plan, seconds=seconds, warm_up_s=longer * plan.warm_up_s, arrivals=arrivals)

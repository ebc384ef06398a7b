"""The search for the knee: predict it from what has been measured, then verify by loading the server near it. Pure.

    live traffic --> SearchState --> forecast --> a step at a share of it --> SearchState --> forecast --> ...

In: snapshots of the server's metrics and, after each step, the probe's requests. Out: the next step as a StepPlan,
and in the end a Capacity (verdict.py). Rates count requests like the workload's; live users count as the number of such
requests that would take as much of the capacity. When steps contradict the model, the search continues without it, in
small steps.

Users are those that the run reports: the server's counters less all probe traffic. Canaries and requests on demand are
neither users nor load, so that no capacity depends on them: rates are of users and load alone. Replays have each of
them at its own time and with its own lengths, and the fit of the step cost model has their steps.

`next_step` and `capacity` take some seconds of arithmetic: SearchProcess (capacity/run/load_plan.py) keeps that off an
event loop.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from probe.capacity.model import unmodelled
from probe.capacity.model.hints import Hints
from probe.capacity.search.knee import no_capacity
from probe.capacity.search.knee_estimate import KneeEstimate, estimate_knee
from probe.capacity.search.pulses import Room, next_size, pulse_plan
from probe.capacity.search.search_state import SAME_RATE, VERIFYING_SHARE, Guess, SearchState
from probe.capacity.search.search_step import SearchStep
from probe.capacity.search.step_plan import between, climb, cost_of, first_rates, plan_step, towards_forecast
from probe.capacity.search.unverified import (
    MAX_VERIFIED_HALF,
    UNLIMITED,
    Spending,
    advice,
    load_to_verify,
    shortcoming,
    steps_lacking,
)
from probe.capacity.search.verdict import (
    FORECAST,
    ceiling,
    empirical_capacity,
    find_doubt,
    find_void_cause,
    highest_held_rps,
    model_capacity,
    modelless_capacity,
    unforeseen_overload,
)
from probe.core.objectives import Objectives
from probe.core.reasons import CLIENT_BOUND, CUT_SHORT, TOO_FEW, USERS_CHANGED
from probe.core.request import tokens_spent
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan, StepRun, StepSummary, TrafficBeside
from probe.core.workload import Workload


class _Limits(NamedTuple):
    """How many steps a search may take, and how many of them may break an objective."""

    steps: int
    broken: int


_HIGHEST_TRIED = 0.95  # of a load that broke an objective: the highest load still tried
# More steps than a usual budget pays for, and as many failures as show that one was no chance: they harm users.
_USUAL = _Limits(steps=9, broken=2)
# Where only steps bound the knee: the bracket between two early ones is wide.
_TO_NARROW = _Limits(steps=13, broken=4)
# Where none has held yet, and at half of the load at least _MIN_RUNNING requests run: the guess was too high.
_AFTER_GUESS = _Limits(steps=9, broken=4)
_MIN_RUNNING = 1.0  # requests at a time
_OF_THE_SERVER = (None, TOO_FEW.word, CUT_SHORT.word)  # reasons of a step that the client did not spoil
_MAX_LATE = 2  # repeated steps in which this machine was late: a third is no coincidence any more
_MAX_STEPS_WITHOUT_MODEL = 7  # without a model: so many steps of CLIMB_FACTOR double the load


class Search:
    """One search: alternate `next_step`, which plans a step, and `step_finished`, which takes its result.

    The search is over when `next_step` returns None.
    """

    survives_overload = True  # an overload ends the step, not the run

    def __init__(
        self,
        workload: Workload,
        objectives: Objectives,
        hints: Hints | None = None,
        budget: Spending = UNLIMITED,
        *,
        observe_s: float = 60.0,
        explain: bool = True,
    ) -> None:
        """Take `budget`: of the whole run; `explain`: also find the bottleneck, with seconds more of arithmetic."""
        self.observe_s = observe_s
        self._budget, self._spent = budget, Spending(0.0, 0.0)
        self._began_s: float | None = None  # by the first snapshot
        self.state = SearchState(workload, objectives, hints or Hints())
        self._estimate_knee = partial(estimate_knee, self.state, explain=explain)
        self._knee: KneeEstimate | None = None  # from all data so far
        self._doubt: str | None = None  # why the search continues without the model
        self._changed: str | None = None  # by how much users changed, which ended the search
        self._climbs = 0
        self._may_pulse = True
        self._guess: Guess | None = None

    def observe_idle(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        """Take snapshots without load, the unloaded baseline, and the users and other probe requests meanwhile."""
        self.state.observe_live(snapshots, baseline, beside)
        self._note_time(snapshots)
        self._knee = None

    def next_step(self) -> StepPlan | None:
        """Plan the next step; None when the search is over."""
        self.state.refresh()
        self._changed = self._changed or self._how_users_changed()
        if self._changed is not None:
            return None
        if (size := self._pulse_size()) > 0:
            return pulse_plan(size)
        rate = self._next_rate()
        if rate is None:
            return self._plan_to_verify()
        return self._plan_at(rate)

    def _plan_at(self, rate_rps: float, wanted_s: float = 0.0) -> StepPlan | None:
        """Plan a step at this rate; None where users leave no room for it."""
        users = self.state.users
        plan = plan_step(self.state, rate_rps, has_model=not self._is_model_free, wanted_s=wanted_s)
        if plan is None and (users.burst_rps or users.rate_rps > self.state.watched.rate_rps):
            most_rps = max(users.burst_rps, users.rate_rps)
            self._changed = f"users came to {most_rps:.3g} requests/s, which leaves no room for the next step"
        return plan

    def _how_users_changed(self) -> str | None:
        """Return by how much users have changed since they were watched, if that is more than a verified interval.

        Each load has the users of its own time, but what one of their requests takes is known by the first ones.
        """
        state = self.state
        capacity_rps = state.forecast_rps or (self._guess.rate_rps if self._guess is not None else None)
        if capacity_rps is None or not state.user_weight:
            return None
        if not state.users.has_changed(state.watched, MAX_VERIFIED_HALF * capacity_rps / state.user_weight):
            return None
        return f"users went from {state.watched.rate_rps:.3g} to {state.users.rate_rps:.3g} requests/s during the run"

    def step_finished(
        self, step: StepSummary, run: StepRun, snapshots: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        """Take the result of the step that `next_step` planned; `tripped`: why the guard stopped it, if it did."""
        self._spent = self._spent.plus(Spending(0.0, sum(sum(tokens_spent(record)) for record in run.records)))
        self._note_time(snapshots)
        if run.plan.is_pulse:
            self.state.add_pulse(step, snapshots)
            self._may_pulse = tripped is None and step.reason in (None, TOO_FEW.word)
            return
        self.state.add_step(step, run, snapshots, tripped)
        self._knee = None

    def end_reason(self) -> str | None:
        """Return the word of the guard's reason that ended the search; else the capacity has the reason."""
        return USERS_CHANGED.word if self._changed is not None else None

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """Return the capacity from all data so far."""
        if (cause := find_void_cause(steps, stopped)) is not None:
            return no_capacity(FORECAST, cause)
        self.state.refresh()
        self._knee = knee = self._knee or self._final_knee()
        if knee is None:
            return modelless_capacity(self.state, steps, stopped)
        # The model goes on learning while the search does without it, and may explain the server after all.
        if (doubt := find_doubt(self.state)) is not None:
            return self._empirical(doubt.words, stopped)
        changed = self._changed_words(stopped)
        caveat = changed or self._doubt or unforeseen_overload(self.state, knee) or self._what_would_verify(knee)
        asked = self.state.model.flags, self.state.model.workload, self.state.objectives
        if caveat is not None and (lacking := unmodelled.why_withheld(*asked)) is not None:
            return self._empirical(lacking, stopped)
        caveat = None if caveat is None else f"{caveat}{unmodelled.caveat(*asked)}"
        late = sum(step.reason == CLIENT_BOUND.word for step in steps)
        if caveat is not None and late:
            steps_were = "1 step was" if late == 1 else f"{late} steps were"
            caveat = f"{caveat}; {steps_were} not judged: this machine was too late ({CLIENT_BOUND.word})"
        found = model_capacity(self.state, knee, caveat)
        return found if changed is None or changed in (found.reason or "") else found.with_note(changed)

    def _empirical(self, doubt: str, stopped: Stopped) -> Capacity:
        found, changed = empirical_capacity(self.state, doubt), self._changed_words(stopped)
        return found.with_note(changed) if changed is not None else found

    def _changed_words(self, stopped: Stopped) -> str | None:
        """Return that users changed, if that ended the search."""
        if self._changed is not None:
            return f"{self._changed} ({USERS_CHANGED.word})"
        return USERS_CHANGED.explained if stopped.reason == USERS_CHANGED.word else None

    def _what_would_verify(self, knee: KneeEstimate) -> str | None:
        """Return why a knee is not verified, with the command that may verify it; None if it is."""
        state, near_rps = self.state, VERIFYING_SHARE * knee.rate_rps
        plan = plan_step(state, near_rps, has_model=not self._is_model_free, is_bounded=False)
        caveat = shortcoming(state, knee)
        if caveat is not None and len(state.steps) >= _USUAL.steps and steps_lacking(state, knee):
            return f"{caveat}; {len(state.steps)} steps, the most of a search, were not enough"
        if plan is None:
            return caveat
        return advice(self.state, knee, self._spent, cost_of(plan, self.state.model.workload))

    def _note_time(self, snapshots: Sequence[ServerSnapshot]) -> None:
        if snapshots:
            self._began_s = snapshots[0].at_ns * 1e-9 if self._began_s is None else self._began_s
            self._spent = replace(self._spent, seconds=snapshots[-1].at_ns * 1e-9 - self._began_s)

    def _plan_to_verify(self) -> StepPlan | None:
        """Plan one more step near the knee, which may verify it; None if it would not, or costs too much."""
        state = self.state
        has_failed = any(step.summary.reason not in _OF_THE_SERVER for step in state.steps[-1:])
        if has_failed or self._doubt is not None or len(state.steps) >= _USUAL.steps:
            return None
        load = self._load_to_verify(self._estimate_knee(is_final=False))
        if load is None:
            # The estimate that is published decides. It takes longer, and is kept.
            self._knee = self._final_knee()
            load = self._load_to_verify(self._knee)
        plan = self._plan_at(*load) if load is not None else None
        if plan is None:
            return None
        return plan if self._spent.plus(cost_of(plan, state.model.workload)).is_within(self._budget) else None

    def _final_knee(self) -> KneeEstimate | None:
        """Return the knee as it is published. Its rate, from more simulated requests, is the forecast from here on."""
        knee = self._estimate_knee()
        self.state.forecast_rps = knee.rate_rps if knee is not None else None
        return knee

    def _load_to_verify(self, knee: KneeEstimate | None) -> tuple[float, float] | None:
        if knee is None:
            return None
        failed_rps = ceiling(self.state)
        if unforeseen_overload(self.state, knee) is not None:
            # A lower load may show what the model does not have, such as max_num_seqs.
            rate = between(highest_held_rps(self.state), failed_rps)
            return (rate, 0.0) if rate and self._broken_steps() <= _USUAL.broken else None
        return load_to_verify(self.state, knee, _HIGHEST_TRIED * failed_rps)

    def _pulse_size(self) -> int:
        """Return how many requests to send at once next; 0 where a step comes next."""
        state = self.state
        if state.twin is not None or state.steps:
            return 0
        # After a pulse that failed, the unloaded baseline alone is no ground for a guess.
        self._guess = state.make_guess() if self._may_pulse or state.has_pulses else None
        if not self._may_pulse:
            return 0
        would_run = self._guess.running if self._guess is not None and state.has_pulses else math.inf
        running = state.users.rate_rps * state.unloaded_s
        room = Room(running, state.model.kv_tokens, state.model.engines)
        return next_size(state.pulses, state.model.workload, state.objectives, room, would_run)

    def _next_rate(self) -> float | None:
        """Return the load of the next step, in requests/s; None where no further one is needed, or may help."""
        state = self.state
        if state.steps and state.steps[-1].summary.reason not in _OF_THE_SERVER:
            return self._rate_after_failure(state.steps[-1])
        held_rps = state.highest_held_rps or state.live_rps
        if self._doubt is None and (doubt := find_doubt(state)) is not None:
            if self._tries(doubt.load_rps) == 1:  # the server may have been slow just then
                return doubt.load_rps
            self._doubt, self._climbs = doubt.words, 0
        failed_rps = ceiling(state)
        if self._doubt is not None:
            return self._climb(held_rps, failed_rps)
        limits = self._limits(failed_rps)
        if len(state.steps) >= limits.steps or self._broken_steps() >= limits.broken:
            return None
        if state.forecast_rps is not None:
            return towards_forecast(state, held_rps, min(state.forecast_rps, _HIGHEST_TRIED * failed_rps))
        # A twin without a forecast means that no rate holds the objectives.
        return self._rate_without_forecast(held_rps, failed_rps) if state.twin is None else None

    def _rate_after_failure(self, failed: SearchStep) -> float | None:
        """Repeat a load that this machine was late in, which may pass. After another failure no load would help."""
        late = sum(step.summary.reason == CLIENT_BOUND.word for step in self.state.steps)
        is_repeated = failed.summary.reason == CLIENT_BOUND.word and late <= _MAX_LATE
        return failed.load_rps if is_repeated else None

    def _limits(self, failed_rps: float) -> _Limits:
        if self.state.forecast_rps is not None or failed_rps == math.inf:
            return _USUAL
        if self.state.highest_held_rps:
            return _TO_NARROW
        would_run = failed_rps / 2 * self.state.unloaded_s
        return _AFTER_GUESS if would_run > _MIN_RUNNING else _USUAL

    def _broken_steps(self) -> int:
        return sum(step.has_broken for step in self.state.steps)

    def _tries(self, rate: float) -> int:
        return sum(abs(step.load_rps / rate - 1) < SAME_RATE for step in self.state.steps)

    @property
    def _is_model_free(self) -> bool:
        """Return whether only steps can bound the knee, so that each needs enough requests to be judged by itself."""
        is_blind = self.state.twin is None and self.state.forecast_rps is None
        return self._doubt is not None or (is_blind and ceiling(self.state) < math.inf)

    def _rate_without_forecast(self, held_rps: float, failed_rps: float) -> float | None:
        if failed_rps == math.inf:
            return first_rates(self.state, held_rps, self._guess.rate_rps if self._guess is not None else None)
        # An early step that held may have had too few requests to be judged by itself.
        if highest_held_rps(self.state) < held_rps and self._tries(held_rps) == 1:
            return held_rps
        return between(held_rps, failed_rps)

    def _climb(self, held_rps: float, failed_rps: float) -> float | None:
        self._climbs += 1
        return climb(held_rps, failed_rps) if self._climbs <= _MAX_STEPS_WITHOUT_MODEL else None

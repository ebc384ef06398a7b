"""The state of a search: the twin, how it compares with each step, and the forecast that follows. Pure.

live traffic, steps --> ServerModel, front end --> Twin --> replays of the steps --> correction --> forecast
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from probe.capacity.model.front_end_delay import NONE, candidate_front_ends, most_likely
from probe.capacity.model.hints import Hints
from probe.capacity.model.replay import UserArrivals
from probe.capacity.model.server_model import ModelFit, ServerModel
from probe.capacity.model.twin import NO_FRONT, Prediction, Twin, find_capacity, predict
from probe.capacity.model.windows import join_windows, windows
from probe.capacity.search.infer_limits import infer_chunk_tokens, infer_front_end, infer_pair_s
from probe.capacity.search.live_users import LiveUsers, burst_of, counted, users_of_now
from probe.capacity.search.pulses import Pulse, guess_cost, measure_pulse
from probe.capacity.search.search_step import (
    SearchStep,
    arrivals_between,
    find_user_arrivals,
    is_steady,
    measure_delay,
    tail_latencies,
)
from probe.capacity.search.step_replay import StepReplays, estimate_correction, with_front_end
from probe.core.objectives import Objectives
from probe.core.reasons import CLIENT_BOUND, CUT_SHORT, TOO_FEW, is_overload
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.core.step import StepRun, StepSummary, TrafficBeside, total_rps
from probe.core.workload import Workload
from probe.simulator.simulated_request import SimulatedRequest

VERIFYING_SHARE = 0.86  # of the forecast: a step at TOP_SHARE verifies it even if it is a tenth higher afterwards
TOP_SHARE = 0.95  # of the forecast: so near the knee that nothing unexpected lies beyond it
SAME_RATE = 0.07  # of a rate: rates that differ by less count as the same; steps are 20 % apart, or repeated
_NEGLIGIBLE_SHARE = 0.02  # of the TTFT objective: delays below it are noise
QUICK_REQUESTS = 1200  # of a simulation for a ratio or a spread, in which chance cancels
_PLANNING_REQUESTS = 2000  # simulated requests to plan the next step: a rate that is 5 % off is good enough
_GUESS_REQUESTS = 400  # simulated requests for a first guess: pulses are rougher
_LEAST_S = 1.0  # to know a rate of users by
_LATELY_S = 60.0  # bursts of users that are longer ago are over
_PAIR_STEPS = 3  # the highest steps, from which the cost of attention is inferred: lower ones have few long prompts


@dataclass(frozen=True, slots=True)
class Guess:
    """A capacity before any model: the rate in requests/s, and how many requests run there."""

    rate_rps: float
    running: float


class SearchState:
    """Data of a search and what follows from them: `observe_live` and `add_step` add, `refresh` recomputes."""

    def __init__(self, workload: Workload, objectives: Objectives, hints: Hints) -> None:
        self.objectives = objectives
        self.model = ServerModel(workload, hints)
        self.pulses: list[Pulse] = []  # and the unloaded baseline first
        self.steps: list[SearchStep] = []
        self.fit: ModelFit | None = None  # the last one of the model
        self.twin: Twin | None = None  # the fit's, with a front end
        self.correction: dict[str, float] = {}  # factors for the twin's latencies
        # Of all traffic, converted to the workload's requests; None without a twin, and if no rate holds on it.
        self.forecast_rps: float | None = None
        self.watched = LiveUsers()  # before any load
        self.users = LiveUsers()  # the latest that is known of them
        self.user_weight = 1.0  # how many of the workload's requests take as much capacity as one of theirs
        self.front_end_estimate = NONE
        self.unloaded_s = 1.0  # E2E of the unloaded baseline
        self._bursts: list[tuple[float, float]] = []  # of users: until when, in seconds, and their rate
        self._guessed_rps = 0.0  # by the pulses
        self._is_stale = False  # there are data that `refresh` has not used

    def observe_live(self, snapshots: Sequence[ServerSnapshot], baseline: StepSummary, beside: TrafficBeside) -> None:
        """Add snapshots without load, the unloaded baseline, and the users and other probe requests meanwhile."""
        self.unloaded_s = baseline.e2e_s.mean or 1.0
        if (first := measure_pulse(baseline)) is not None:
            self.pulses = [first]
        self.model.learn_live(snapshots, beside)
        if beside.users.requests_per_second is not None and snapshots:
            begin_ns, end_ns = snapshots[0].at_ns, snapshots[-1].at_ns
            mean = LiveUsers(beside.users.requests_per_second, (end_ns - begin_ns) * 1e-9)
            arrived = arrivals_between(snapshots, beside.probes, beside.users, (begin_ns, end_ns))
            self.watched = users_of_now(mean, arrived)
            self._note_users(self.watched, arrived, end_ns)
        self._is_stale = True

    def add_pulse(self, step: StepSummary, snapshots: Sequence[ServerSnapshot]) -> None:
        """Add a pulse."""
        self.model.learn_limits(snapshots)
        if step.reason != CLIENT_BOUND.word and (pulse := measure_pulse(step)) is not None:
            self.pulses.append(pulse)

    @property
    def live_rps(self) -> float:
        """Return the latest rate of live users, in the workload's requests."""
        return self.user_weight * self.users.rate_rps

    @property
    def highest_held_rps(self) -> float:
        """Return the highest load of a step that held; 0 without any."""
        return max((step.load_rps for step in self.steps if step.has_held), default=0.0)

    @property
    def has_pulses(self) -> bool:
        """Return whether any pulse was answered."""
        return len(self.pulses) > 1

    def make_guess(self) -> Guess | None:
        """Return the capacity that the pulses show roughly; None if they do not. The next forecast begins there.

        Without pulses it is from the unloaded baseline alone, up to 2.2 times too high, and no forecast begins there.
        """
        cost = guess_cost(self.pulses, self.model.workload, self.model.engines)
        if cost is None:
            return None
        twin = self.model.guessed_twin(cost)
        rate_rps = self.capacity(twin, self._near_rps(), _GUESS_REQUESTS)
        if self.has_pulses:
            self._guessed_rps = rate_rps
        if not rate_rps:
            return None
        return Guess(rate_rps, predict(twin, rate_rps, self.objectives, requests=_GUESS_REQUESTS).running)

    def add_step(
        self, step: StepSummary, run: StepRun, snapshots: Sequence[ServerSnapshot], tripped: str | None
    ) -> None:
        """Add a step; `tripped`: why the guard stopped it, if it did."""
        self.model.learn(snapshots, of_load=True, overloaded=is_overload(tripped))
        begin, end = run.window_ns
        in_window = windows([snapshot for snapshot in snapshots if begin <= snapshot.at_ns <= end])
        arrived = find_user_arrivals(run, snapshots, step.users)
        users = step.users if step.reason != CUT_SHORT.word else _users_of_cut(run, arrived)
        if users.requests_per_second is not None and snapshots:
            self.model.update_live_rate(users.requests_per_second, (snapshots[-1].at_ns - snapshots[0].at_ns) * 1e-9)
            now = users_of_now(LiveUsers(users.requests_per_second, step.seconds), arrived)
            self._note_users(now, arrived, snapshots[-1].at_ns)
        own_rps = _offered_rps(step, run, tripped)
        self.steps.append(
            SearchStep(
                total_rps(own_rps, users, self.user_weight),
                step,
                run,
                tripped,
                is_steady(in_window),
                own_rps=own_rps,
                users=users,
                burst_rps=self.user_weight * _burst_over(users, arrived),
                # This machine was late: its own stamps show nothing.
                delay=measure_delay(run, step, join_windows(in_window)) if in_window and not step.is_late else None,
                tails=tail_latencies(run, self.objectives),
                part=self.model.parts - 1,
                user_arrivals=arrived,
            )
        )
        self._is_stale = True

    def _note_users(self, now: LiveUsers, arrived: Sequence[UserArrivals], at_ns: int) -> None:
        """Keep the users of now, with their highest burst of the last minute."""
        at_s = at_ns * 1e-9
        burst_rps = burst_of(arrived, min(now.rate_rps, self.watched.rate_rps))
        self._bursts = [*(each for each in self._bursts if each[0] > at_s - _LATELY_S), (at_s, burst_rps)]
        self.users = replace(now, burst_rps=max(rps for _, rps in self._bursts))

    def refresh(self) -> None:
        """Recompute the twin, its replay of each step, and the forecast, if data were added."""
        if not self._is_stale:
            return
        self._is_stale = False
        ttft = self.objectives.ttft
        delays = [step.delay for step in self.steps if step.delay is not None]
        found = candidate_front_ends(delays, _NEGLIGIBLE_SHARE * ttft.within_s if ttft else math.inf)
        self.front_end_estimate = most_likely(found)
        replays = StepReplays(self.model, self.objectives, self.unloaded_s)
        self._infer_limits(replays)
        fit = self.model.fit()
        if fit is None:
            return
        self.fit, bare = fit, fit.twin
        replays = replace(replays, slowdown=fit.cost_model.slowdown)
        if found:
            informative = [step for step in self.steps if step.is_informative]
            self.front_end_estimate = infer_front_end(found, informative, partial(replays.ttfts_behind, bare))
        self.twin = twin = with_front_end(bare, self.front_end_estimate)
        self.steps = [
            replace(step, predicted=replays.latencies(twin, step), would_stop_twin=replays.would_guard_stop(twin, step))
            for step in self.steps
        ]
        self.correction = estimate_correction(self.steps, self.objectives)
        near_rps = self._near_rps()
        self.forecast_rps = self.capacity(twin, near_rps, _PLANNING_REQUESTS) or None
        self._weigh_users(twin, near_rps)

    def _weigh_users(self, twin: Twin, near_rps: float) -> None:
        """Find how much capacity a user's request takes by the present twin, and with it the load of each step."""
        rate_rps = self.model.live_rps
        if not self.model.has_other_live_lengths or self.forecast_rps is None or not rate_rps:
            return
        room_rps = self.capacity(replace(twin, live=self.model.live), near_rps, _PLANNING_REQUESTS)
        self.user_weight = max(self.forecast_rps - room_rps, 0.0) / rate_rps
        self.steps = [
            replace(
                step,
                load_rps=total_rps(step.own_rps, step.users, self.user_weight),
                burst_rps=self.user_weight * _burst_over(step.users, step.user_arrivals),
            )
            if step.users.requests_per_second
            else step
            for step in self.steps
        ]

    def residence_s(self, rate_rps: float) -> float:
        """Return how long a request takes on average at that rate, in seconds."""
        if self.twin is not None:
            predicted = predict(self.twin, rate_rps, self.objectives, requests=500)
            if math.isfinite(predicted.tpot_p50_s):
                return predicted.running / rate_rps
        last = self.steps[-1].summary.e2e_s.mean if self.steps else None
        return last or self.unloaded_s

    def objective_ratios(self, predicted: Prediction) -> dict[str, float]:
        """Return the twin's corrected latencies over their objectives, by name."""
        return {
            name: getattr(predicted, f"{name}_s") * self.correction.get(name, 1.0) / limit.within_s
            for name, limit in self.objectives.latencies().items()
        }

    def worst_objective_ratio(self, step: SearchStep) -> float:
        """Return the largest objective ratio of a step's replay; infinite if it has none."""
        if step.predicted is None:
            return math.inf
        return max(self.objective_ratios(step.predicted).values(), default=0.0)

    def top_steps(self) -> list[SearchStep]:
        """Return the informative steps at nearly the highest load."""
        steps = sorted(
            (step for step in self.steps if step.is_informative and step.predicted is not None),
            key=lambda step: -step.load_rps,
        )
        return [step for step in steps if step.load_rps > (1 - SAME_RATE) * steps[0].load_rps]

    def refined_forecast(self, requests: int) -> float | None:
        """Return the forecast with that many simulated requests; None if there is none."""
        if self.twin is None or self.forecast_rps is None:
            return None
        return self.capacity(self.twin, self.forecast_rps, requests, (0, 1)) or None

    def capacity(self, twin: Twin, near_rps: float, requests: int, seeds: Sequence[int] = (0,)) -> float:
        """Return the capacity of a twin with the corrected latencies, in requests/s; 0 if no rate holds."""
        return find_capacity(
            twin, self.objectives, near_rps, correction=self.correction, seeds=seeds, requests=requests
        )

    def _near_rps(self) -> float:
        """Return the best estimate so far of the capacity, as a rate."""
        return self.forecast_rps or self._guessed_rps or max(2 * self.model.live_rps, 1 / self.unloaded_s)

    def _infer_limits(self, replays: StepReplays) -> None:
        """Infer limits from the probe's requests that neither metrics nor configuration give."""

        def requests(bare: Twin, step: SearchStep) -> Sequence[SimulatedRequest]:
            return replays.requests(with_front_end(bare, self.front_end_estimate), step)

        steps = sorted((step for step in self.steps if step.is_informative), key=lambda step: step.load_rps)
        stalled = [step for step in steps if step.summary.stall_s.p50 and step.summary.stall_s.p95]
        if stalled and not self.model.is_chunk_known:
            self.model.chunk_tokens = infer_chunk_tokens(self.model, self.fit, stalled[-1], requests)
        if steps and self.front_end_estimate.front_end == NO_FRONT:  # a tokenizer too takes longer for a long prompt
            self.model.pair_s = infer_pair_s(self.model, self.fit, steps[-_PAIR_STEPS:], requests)


def _users_of_cut(run: StepRun, arrived: Sequence[UserArrivals]) -> UserLoad:
    """Return the users of a step that was cut short, of whose cancelled requests a run does not know the tokens.

    Of what it judges, or of all of it where it ended before that.
    """
    warm_up_s = (run.window_ns[0] - min((r.scheduled_ns for r in run.records), default=0)) * 1e-9
    found = counted(arrived, warm_up_s)
    found = found if found.seconds >= _LEAST_S else counted(arrived)
    return UserLoad(found.rate_rps) if found.seconds >= _LEAST_S else UserLoad()


def _burst_over(users: UserLoad, arrived: Sequence[UserArrivals]) -> float:
    """Return by how much users' highest burst exceeds their mean, in requests/s; 0 without one."""
    mean_rps = users.requests_per_second or 0.0
    return max(burst_of(arrived, mean_rps) - mean_rps, 0.0)


def _offered_rps(step: StepSummary, run: StepRun, tripped: str | None) -> float:
    """Return the probe's rate in a step: as planned where exactly that was sent, else as measured.

    Of a step that this machine was late in, what was sent in the window, at most the plan.
    """
    arrivals = run.plan.arrivals
    if step.is_late and step.reason in (None, TOO_FEW.word) and arrivals is not None:
        return min(arrivals.rate_rps, step.offered_rps)
    if arrivals is not None and (arrivals.counted_s or tripped is not None):
        return arrivals.rate_rps
    return step.offered_rps

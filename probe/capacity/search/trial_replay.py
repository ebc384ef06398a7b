"""Replays of trials on the twin, as the search needs them: latencies, single requests, and the guard's reaction. Pure.

In: a trial, and the twin to replay it on. The live users and the speed of that segment come from the server model. Out
of the replays come correction factors for the twin's latencies, and the difference that no factor explains.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from probe.capacity.model.front_end_delay import FrontEndEstimate
from probe.capacity.model.replay import replay, replay_once, would_guard_stop
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.twin import Prediction, Twin
from probe.capacity.search.trial import Trial, sent_requests
from probe.core.objectives import Objectives
from probe.core.step import Distribution
from probe.observe.guard import GuardLimits
from probe.simulator.cost import scaled
from probe.simulator.simulated_request import SimulatedRequest

_SETTLE_RESIDENCES = 3.0  # mean request durations until the live users of a replay are as many as usual
_FRONT_REPLAYS = 3  # of each candidate: their mean, as users' arrivals are random; without users one


def with_front_end(bare: Twin, estimate: FrontEndEstimate) -> Twin:
    return replace(bare, front_end=estimate.front_end, added_s=estimate.added_s)


@dataclass(frozen=True, slots=True)
class TrialReplays:
    """Replays among the model's live users.

    `unloaded_s`: E2E of the unloaded baseline; `slowdown`: by what factor steps of each part took longer than the fit
    says, 1 where that is not known.
    """

    model: ServerModel
    objectives: Objectives
    unloaded_s: float
    slowdown: Sequence[float] = ()

    def latencies(self, twin: Twin, trial: Trial) -> Prediction | None:
        """Return the mean latencies of several replays; None if the trial is not informative."""
        if not trial.is_informative or not trial.run.records:
            return None
        return replay(
            self._at_speed_of(trial, twin),
            sent_requests(trial.run),
            self.model.live,
            self.objectives,
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
        )

    def would_guard_stop(self, twin: Twin, trial: Trial) -> bool:
        """Return whether the guard would stop the twin as well, in a trial that it stopped as a precaution."""
        if not trial.is_precaution or not trial.run.records:
            return False
        return would_guard_stop(
            self._at_speed_of(trial, twin),
            sent_requests(trial.run),
            self.model.live,
            GuardLimits().promised(self.objectives).offered(trial.load_rps),
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
        )

    def requests(self, twin: Twin, trial: Trial, seed: int = 0) -> Sequence[SimulatedRequest]:
        """Return the judged requests of one replay, at the server's usual speed."""
        return replay_once(
            twin,
            sent_requests(trial.run),
            self.model.live,
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
            seed=seed,
        ).judged

    def ttfts_behind(self, bare: Twin, estimate: FrontEndEstimate, trial: Trial) -> Sequence[float]:
        """Return each request's TTFT behind a front end: the mean of some replays, since users' arrivals are random."""
        twin = self._at_speed_of(trial, with_front_end(bare, estimate))
        has_users = self.model.live_rps > 0 or any(arrived.count for arrived in trial.user_arrivals)
        played = [self.requests(twin, trial, seed) for seed in range(_FRONT_REPLAYS if has_users else 1)]
        return [fmean(request.ttft_s for request in same) + twin.added_s for same in zip(*played, strict=True)]

    def _at_speed_of(self, trial: Trial, twin: Twin) -> Twin:
        factor = self.slowdown[trial.part] if 0 <= trial.part < len(self.slowdown) else 1.0
        return replace(twin, cost=scaled(twin.cost, factor))

    def _settle_s(self, trial: Trial) -> float:
        return _SETTLE_RESIDENCES * (trial.step.e2e_s.mean or self.unloaded_s)


_NEAR = 0.5  # of its objective: a lower latency limits nothing
_MOST_OFF = 0.25  # the largest correction taken from one trial, as a logarithm
_REPLAYED = 1.08  # sqrt(1 + 1/6): the mean of six replays scatters too

_Off = tuple[float, float, float]  # of a logarithm: value, standard error, weight


def estimate_correction(trials: Iterable[Trial], objectives: Objectives) -> dict[str, float]:
    """Return a factor for the twin's latency at the objective's percentile, for each objective.

    It is taken from the medians, which scatter least, plus the tail's difference from them beyond chance. Higher loads
    weigh more.
    """
    known = [trial for trial in trials if trial.predicted is not None]
    found = {}
    for name in objectives.latencies():
        middles, tails = [], []
        for trial in known:
            middle = _middle(trial, name)
            if middle is None:
                continue
            off, error = middle
            weight = trial.load_rps**2 * trial.step.requests.ok
            middles.append((_clipped(off), error, weight))
            if (tail := _tail(trial, name)) is not None:
                tails.append((_clipped(tail[0] - off), math.hypot(tail[1], error), weight * trial.load_rps**2))
        if middles:
            found[name] = math.exp(_pooled(middles) + (_pooled(tails) if tails else 0.0))
    return found


def unexplained_tail(trial: Trial, by: dict[str, float], objectives: Objectives) -> float:
    """Return by how much a trial's tail latencies differ from the corrected twin's beyond chance (a logarithm >= 0)."""
    worst = 0.0
    for name, objective in objectives.latencies().items():
        tail = _tail(trial, name)
        if tail is None or max(trial.tails[name], _at(trial.predicted, name)) < _NEAR * objective.within_s:
            continue
        worst = max(worst, abs(tail[0] - math.log(by.get(name, 1.0))) - tail[1])
    return worst


def _measured(trial: Trial, name: str) -> Distribution:
    step = trial.step
    return {"ttft": step.ttft_s, "tpot": step.tpot_s, "e2e": step.e2e_s, "itl": step.stall_s}[name]


def _at(predicted: Prediction | None, name: str) -> float:
    return float(getattr(predicted, f"{name}_s"))


def _middle(trial: Trial, name: str) -> tuple[float, float] | None:
    """Return the logarithm of the median over the twin's, and its standard error."""
    measured, expected_s = _measured(trial, name), float(getattr(trial.predicted, f"{name}_p50_s"))
    if not measured.p50 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(measured.p50 / expected_s), _error(trial.predicted, f"{name}_p50_s")


def _tail(trial: Trial, name: str) -> tuple[float, float] | None:
    """Return the same at the objective's percentile."""
    expected_s = _at(trial.predicted, name) if trial.predicted is not None else 0.0
    tail = trial.tails.get(name, 0.0)
    if tail <= 0 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(tail / expected_s), _error(trial.predicted, f"{name}_s")


def _clipped(off: float) -> float:
    return min(max(off, -_MOST_OFF), _MOST_OFF)


def _error(predicted: Prediction | None, latency: str) -> float:
    """Return the standard error of the logarithm of a measured latency over the twin's: chance moves both."""
    return _REPLAYED * predicted.scatter.get(latency, 0.0) if predicted is not None else math.inf


def _pooled(offs: Sequence[_Off]) -> float:
    """Return the weighted mean of values, drawn towards 0 by as much of it as may be chance (James and Stein, 1961)."""
    weights = sum(weight for _, _, weight in offs)
    mean = sum(off * weight for off, _, weight in offs) / weights
    error = math.sqrt(sum((error * weight) ** 2 for _, error, weight in offs)) / weights
    return mean * max(1 - (error / mean) ** 2, 0.0) if mean else 0.0

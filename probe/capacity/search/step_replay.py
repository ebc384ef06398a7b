"""Replays of steps on the twin, as the search needs them: latencies, single requests, and the guard's reaction. Pure.

In: a step, and the twin to replay it on. The live users and the speed of that segment come from the server model. Out
of the replays come correction factors for the twin's latencies, and the difference that no factor explains.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from probe.capacity.model.front_end_delay import FrontEndEstimate
from probe.capacity.model.replay import ReplayPrediction, replay, replay_once, would_guard_stop
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.twin import Twin
from probe.capacity.search.search_step import SearchStep, sent_requests
from probe.core.objectives import LATENCIES, Objectives
from probe.core.step import Distribution
from probe.observe.guard import GuardLimits
from probe.simulator.cost import scaled
from probe.simulator.simulated_request import SimulatedRequest

_SETTLE_RESIDENCES = 3.0  # mean request durations until the live users of a replay are as many as usual
_FRONT_REPLAYS = 3  # of each candidate: their mean, as users' arrivals are random; without users one


def with_front_end(bare: Twin, estimate: FrontEndEstimate) -> Twin:
    return replace(bare, front_end=estimate.front_end, added_s=estimate.added_s)


@dataclass(frozen=True, slots=True)
class StepReplays:
    """Replays among the model's live users.

    `unloaded_s`: E2E of the unloaded baseline; `slowdown`: by what factor steps of each part took longer than the fit
    says, 1 where that is not known.
    """

    model: ServerModel
    objectives: Objectives
    unloaded_s: float
    slowdown: Sequence[float] = ()

    def latencies(self, twin: Twin, step: SearchStep) -> ReplayPrediction | None:
        """Return the mean latencies of several replays; None if the step has too few requests."""
        if not step.has_enough or not step.run.records:
            return None
        return replay(
            self._at_speed_of(step, twin),
            sent_requests(step.run),
            self.model.live,
            self.objectives,
            settle_s=self._settle_s(step),
            user_arrivals=step.user_arrivals,
        )

    def would_guard_stop(self, twin: Twin, step: SearchStep) -> bool:
        """Return whether the guard would stop the twin as well, in a step that it stopped as a precaution."""
        if not step.is_precaution or not step.run.records:
            return False
        return would_guard_stop(
            self._at_speed_of(step, twin),
            sent_requests(step.run),
            self.model.live,
            GuardLimits().promised(self.objectives).offered(step.load_rps),
            settle_s=self._settle_s(step),
            user_arrivals=step.user_arrivals,
        )

    def requests(self, twin: Twin, step: SearchStep, seed: int = 0) -> Sequence[SimulatedRequest]:
        """Return the judged requests of one replay, at the server's usual speed."""
        return replay_once(
            twin,
            sent_requests(step.run),
            self.model.live,
            settle_s=self._settle_s(step),
            user_arrivals=step.user_arrivals,
            seed=seed,
        ).judged

    def ttfts_behind(self, bare: Twin, estimate: FrontEndEstimate, step: SearchStep) -> Sequence[float]:
        """Return each request's TTFT behind a front end: the mean of some replays, since users' arrivals are random."""
        twin = self._at_speed_of(step, with_front_end(bare, estimate))
        has_users = self.model.live_rps > 0 or any(arrived.count for arrived in step.user_arrivals)
        played = [self.requests(twin, step, seed) for seed in range(_FRONT_REPLAYS if has_users else 1)]
        return [fmean(request.ttft_s for request in same) + twin.added_s for same in zip(*played, strict=True)]

    def _at_speed_of(self, step: SearchStep, twin: Twin) -> Twin:
        factor = self.slowdown[step.part] if 0 <= step.part < len(self.slowdown) else 1.0
        return replace(twin, cost=scaled(twin.cost, factor))

    def _settle_s(self, step: SearchStep) -> float:
        return _SETTLE_RESIDENCES * (step.summary.e2e_s.mean or self.unloaded_s)


_NEAR = 0.5  # of its objective: a lower latency limits nothing
_MOST_OFF = 0.25  # the largest correction taken from one step, as a logarithm
_REPLAYED = 1.08  # sqrt(1 + 1/6): the mean of six replays scatters too

_Off = tuple[float, float, float]  # of a logarithm: value, standard error, weight


def estimate_correction(steps: Iterable[SearchStep], objectives: Objectives) -> dict[str, float]:
    """Return a factor for the twin's latency at the objective's percentile, for each objective.

    It is taken from the medians, which scatter least, plus the tail's difference from them beyond chance. Higher loads
    weigh more.
    """
    known = [step for step in steps if step.predicted is not None and step.is_informative]
    found = {}
    for name in objectives.latencies():
        middles, tails = [], []
        for step in known:
            middle = _middle(step, name)
            if middle is None:
                continue
            off, error = middle
            weight = step.load_rps**2 * step.summary.requests.ok
            middles.append((_clipped(off), error, weight))
            if (tail := _tail(step, name)) is not None:
                tails.append((_clipped(tail[0] - off), math.hypot(tail[1], error), weight * step.load_rps**2))
        if middles:
            found[name] = math.exp(_pooled(middles) + (_pooled(tails) if tails else 0.0))
    return found


def unexplained_tail(step: SearchStep, by: dict[str, float], objectives: Objectives) -> float:
    """Return by how much a step's tail latencies differ from the corrected twin's beyond chance (a logarithm >= 0)."""
    worst = 0.0
    for name, objective in objectives.latencies().items():
        tail = _tail(step, name)
        if tail is None or max(step.tails[name], _at(step.predicted, name)) < _NEAR * objective.within_s:
            continue
        worst = max(worst, abs(tail[0] - math.log(by.get(name, 1.0))) - tail[1])
    return worst


def _measured(step: SearchStep, name: str) -> Distribution:
    return LATENCIES[name].of_step(step.summary)


def _at(predicted: ReplayPrediction | None, name: str) -> float:
    return float(getattr(predicted, f"{name}_s"))


def _middle(step: SearchStep, name: str) -> tuple[float, float] | None:
    """Return the logarithm of the median over the twin's, and its standard error."""
    measured, expected_s = _measured(step, name), float(getattr(step.predicted, f"{name}_p50_s"))
    if not measured.p50 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(measured.p50 / expected_s), _error(step.predicted, f"{name}_p50_s")


def _tail(step: SearchStep, name: str) -> tuple[float, float] | None:
    """Return the same at the objective's percentile."""
    expected_s = _at(step.predicted, name) if step.predicted is not None else 0.0
    tail = step.tails.get(name, 0.0)
    if tail <= 0 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(tail / expected_s), _error(step.predicted, f"{name}_s")


def _clipped(off: float) -> float:
    return min(max(off, -_MOST_OFF), _MOST_OFF)


def _error(predicted: ReplayPrediction | None, latency: str) -> float:
    """Return the standard error of the logarithm of a measured latency over the twin's: chance moves both."""
    return _REPLAYED * predicted.scatter.get(latency, 0.0) if predicted is not None else math.inf


def _pooled(offs: Sequence[_Off]) -> float:
    """Return the weighted mean of values, shrunk towards 0 by its share of chance (James and Stein, 1961)."""
    weights = sum(weight for _, _, weight in offs)
    mean = sum(off * weight for off, _, weight in offs) / weights
    error = math.sqrt(sum((error * weight) ** 2 for _, error, weight in offs)) / weights
    return mean * max(1 - (error / mean) ** 2, 0.0) if mean else 0.0

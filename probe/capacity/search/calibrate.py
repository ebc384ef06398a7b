"""Calibration: how much a server's latencies differ from its twin's. Pure.

In: trials, with the twin's prediction for the same requests at the same times. Out: correction factors for the twin's
latencies, and the difference that no factor explains.
"""

import math
from collections.abc import Iterable, Sequence

from probe.capacity.model.twin import Prediction
from probe.capacity.search.trial import Trial
from probe.core.objectives import Objectives
from probe.core.step import Distribution

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

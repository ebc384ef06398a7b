"""By how much a server's latencies differ from its twin's, and whether it still is the same server. Pure.

In: rungs with what the twin predicted for the same requests at the same times. Out: factors for the twin's latencies,
what no factor explains, and a reason to leave the model aside.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from probe.capacity.model.twin import Prediction
from probe.capacity.search.trial import Trial
from probe.core.objectives import Objectives
from probe.core.step import Distribution

# What the model's medians may be off by at a rung, and still hold; of latencies that reach such a share of their
# objective.
_OFF = {"ttft": 1.5, "tpot": 1.25}
_NEAR = 0.5
_MOST_OFF = 0.25  # that a correction takes from one rung, in logarithms
_CERTAIN = 3.0  # standard errors
_REPLAYED = 1.08  # for what the mean of six replays itself may be off by

_Off = tuple[float, float, float]  # of a logarithm: value, standard error, weight


def correction(rungs: Iterable[Trial], objectives: Objectives) -> dict[str, float]:
    """By what the twin's latencies are to be multiplied, by objective, at its percentile.

    Medians say it best; where the tail is off by more than they are, that too. The higher a load, the more it counts.
    """
    known = [rung for rung in rungs if rung.predicted is not None]
    found = {}
    for name in objectives.latencies():
        middles, tails = [], []
        for rung in known:
            middle = _middle(rung, name)
            if middle is None:
                continue
            off, error = middle
            weight = rung.came_rps**2 * rung.step.requests.ok
            middles.append((_clipped(off), error, weight))
            if (tail := _tail(rung, name)) is not None:
                tails.append((_clipped(tail[0] - off), math.hypot(tail[1], error), weight * rung.came_rps**2))
        if middles:
            found[name] = math.exp(_pooled(middles) + (_pooled(tails) if tails else 0.0))
    return found


def left_over(rung: Trial, by: dict[str, float], objectives: Objectives) -> float:
    """What of a rung's tails the corrected twin does not explain, beyond chance: a logarithm, at least 0."""
    worst = 0.0
    for name, objective in objectives.latencies().items():
        tail = _tail(rung, name)
        if tail is None or max(rung.tails[name], _at(rung.predicted, name)) < _NEAR * objective.within_s:
            continue
        worst = max(worst, abs(tail[0] - math.log(by.get(name, 1.0))) - tail[1])
    return worst


def unexplained(rung: Trial, objectives: Objectives, nearly: Callable[[Trial, str, float, float], bool]) -> str | None:
    """What of a rung the model does not explain, of the latencies that come near their objectives; in words.

    `nearly(rung, name, seen_s, allowed)`: whether a rate that differs by little would explain it.
    """
    for name, objective in objectives.latencies().items():
        seen, middle = _seen(rung, name), _middle(rung, name)
        if middle is None or not seen.p50 or not seen.p95:
            continue
        if max(seen.p95, _at(rung.predicted, name)) < _NEAR * objective.within_s:
            continue
        off, error = middle
        if abs(off) > max(math.log(_OFF[name]), _CERTAIN * error) and not nearly(rung, name, seen.p50, _OFF[name]):
            return f"{name.upper()} was {math.exp(off):.2f} times what the model of this server says"
    return None


def _seen(rung: Trial, name: str) -> Distribution:
    return rung.step.ttft_s if name == "ttft" else rung.step.tpot_s


def _at(predicted: Prediction | None, name: str) -> float:
    return float(getattr(predicted, f"{name}_s"))


def _middle(rung: Trial, name: str) -> tuple[float, float] | None:
    """The median over the twin's, as a logarithm, and its standard error."""
    seen, expected_s = _seen(rung, name), float(getattr(rung.predicted, f"{name}_p50_s"))
    if not seen.p50 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(seen.p50 / expected_s), _error(rung.predicted, f"{name}_p50_s")


def _tail(rung: Trial, name: str) -> tuple[float, float] | None:
    """The same at the objective's percentile."""
    expected_s = _at(rung.predicted, name) if rung.predicted is not None else 0.0
    tail = rung.tails.get(name, 0.0)
    if tail <= 0 or not math.isfinite(expected_s) or expected_s <= 0:
        return None
    return math.log(tail / expected_s), _error(rung.predicted, f"{name}_s")


def _clipped(off: float) -> float:
    return min(max(off, -_MOST_OFF), _MOST_OFF)


def _error(predicted: Prediction | None, latency: str) -> float:
    """Of the logarithm of a latency that was seen over what the twin says of it: chance moves both."""
    return _REPLAYED * predicted.scatter.get(latency, 0.0) if predicted is not None else math.inf


def _pooled(offs: Sequence[_Off]) -> float:
    """The weighted mean of values with standard errors, drawn towards 0 by as much of it as may be chance (James and
    Stein, 1961).
    """
    weights = sum(weight for _, _, weight in offs)
    mean = sum(off * weight for off, _, weight in offs) / weights
    error = math.sqrt(sum((error * weight) ** 2 for _, error, weight in offs)) / weights
    return mean * max(1 - (error / mean) ** 2, 0.0) if mean else 0.0

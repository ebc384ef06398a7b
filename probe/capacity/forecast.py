"""The forecast: a server's capacity from its live traffic, with no load of ours. Pure; takes a few seconds.

In: readings of its metrics, a second or a few apart, over minutes to hours. Out: a Capacity of mode "forecast" with an
interval and the range of loads it was learnt from, or with the reason why nothing is said: a guess is worth less than
silence.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from probe.capacity.hints import Hints
from probe.capacity.model import Model, mean_length
from probe.capacity.twin import capacity
from probe.capacity.windows import Window, total, windows
from probe.records import Capacity, Objectives, ServerSnapshot
from probe.workload import Workload

MODE = "forecast"
# The readings are cut into so many parts; what the forecast would be without each of them is its spread.
_PARTS = 8
_LEAST_READINGS = 12
# Below this share of the forecast it would be an extrapolation over more than the law has been seen to hold for.
_SEEN = 0.15
_RATE_S = 15.0
_TOO_WIDE = 0.35  # half of the interval, relative
_DRIFT = 0.15
_Z, _FLOOR = 1.64, 0.04
_QUICK = 1500


def forecast(
    readings: Sequence[ServerSnapshot], workload: Workload, objectives: Objectives, hints: Hints | None = None
) -> Capacity:
    """The capacity for requests like the workload's, as far as live traffic tells."""
    if len(readings) < _LEAST_READINGS:
        return _silent(
            f"not enough evidence: {len(readings)} readings of the server, at least {_LEAST_READINGS} needed"
        )
    seen = windows(readings)
    if not seen:
        return _silent("not enough evidence: the server had next to nothing to do")
    model = Model(workload, hints or Hints())
    for stretch in _cut(readings):
        model.learn(stretch)
    begun = total(seen)
    rate = begun.prompts / begun.seconds
    twin = model.twin()
    if twin is None:
        return _silent(
            f"not enough evidence: at {rate:.3g} requests/s too few run at a time to tell what one more costs"
        )
    found = capacity(twin, objectives, max(2 * rate, 1e-3))
    if not found:
        return _silent("no rate holds the objectives, by what was seen of the server")
    return _judged(model, objectives, found, _range(seen))


def _judged(model: Model, objectives: Objectives, found: float, learnt_from: tuple[float, float]) -> Capacity:
    """The forecast with its interval, unless that is too wide to be of use."""
    low, high = learnt_from
    if high < _SEEN * found:
        return _silent(
            f"not enough evidence: seen up to {high / found:.0%} of what would be the forecast, {found:.3g} requests/s"
        )
    others = [
        capacity(part, objectives, found, seeds=(0,), requests=_QUICK)
        for i in range(model.parts)
        if (part := model.twin(without=i)) is not None
    ]
    half = _Z * math.hypot(_jackknife(others) / found, _FLOOR, _extrapolated(high / found))
    if half > _TOO_WIDE:
        return _silent(
            f"not enough evidence: {found:.3g} requests/s, give or take {half:.0%}, seen up to {high / found:.0%} of it"
        )
    return Capacity(
        mode=MODE,
        requests_per_second=found,
        lower=found * (1 - half),
        upper=found * (1 + half),
        output_tokens_per_second=found * mean_length(model.workload.output_tokens),
        learnt_from=(low, high),
        reason="experimental until a verification has confirmed it",
    )


def _silent(reason: str) -> Capacity:
    return Capacity(mode=MODE, reason=reason)


def _cut(readings: Sequence[ServerSnapshot]) -> list[Sequence[ServerSnapshot]]:
    """Parts of equal number; each begins with the last reading of the one before, so that nothing is lost between."""
    size = max(math.ceil(len(readings) / _PARTS), 2)
    return [readings[max(i - 1, 0) : i + size] for i in range(0, len(readings), size)]


def _range(seen: Sequence[Window]) -> tuple[float, float]:
    """The loads, in requests/s, that nine tenths of the time lie between; over less time a rate is mostly chance."""
    stretches: list[list[Window]] = [[]]
    for window in seen:
        stretches[-1].append(window)
        if sum(one.seconds for one in stretches[-1]) >= _RATE_S:
            stretches.append([])
    rates = sorted(part.prompts / part.seconds for part in map(total, stretches[:-1] or stretches))
    return rates[len(rates) // 20], rates[-1 - len(rates) // 20]


def _jackknife(values: Sequence[float]) -> float:
    """The standard deviation of a figure, from what it is without each part (Quenouille, Tukey)."""
    if len(values) < 2:  # noqa: PLR2004
        return math.inf
    mean = fmean(values)
    return math.sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values))


def _extrapolated(share: float) -> float:
    """What the law may be off by beyond what it was learnt from: grows with the distance, nothing near the knee."""
    return 0.06 * math.sqrt(max(1 / min(max(share, 0.01), 1.0) - 1, 0.0))

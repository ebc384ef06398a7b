"""The forecast: a server's capacity from its live traffic, with no load of ours. Pure; takes a few seconds.

In: readings of its metrics, a second or a few apart, over minutes to hours. Out: a Capacity of mode "forecast" with an
interval and the range of loads it was learnt from, or with the reason why nothing is said: a guess is worth less than
silence.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from probe.capacity.model.hints import Hints
from probe.capacity.model.server_model import ServerModel, mean_length
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.capacity.model.twin import capacity, predict
from probe.capacity.model.windows import MetricsWindow, total, windows
from probe.core.objectives import Objectives
from probe.core.result import Capacity
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload

MODE = "forecast"
# The readings are cut into so many parts; what the forecast would be without each of them is its spread.
_PARTS = 8
_LEAST_READINGS = 12
# Below this share of the forecast it would be an extrapolation over more than the law has been seen to hold for.
_SEEN = 0.15
_TOO_WIDE = 0.35  # half of the interval, relative
_UNEXPLAINED = 0.15  # median error of the law
# With an unknown max_num_seqs, no more than so many times as many running at once are believed as were ever seen.
_SEATS = 1.7
_STRETCH_S = 30.0  # a second's arrivals are no load
_Z, _FLOOR = 1.64, 0.04
# Where nobody says what max_num_batched_tokens is: it is one of these, most likely.
_USUAL_CHUNKS = (2048, 8192)
_REQUESTS = 3000


def forecast(
    readings: Sequence[ServerSnapshot],
    workload: Workload,
    objectives: Objectives,
    hints: Hints | None = None,
    *,
    requests: int = _REQUESTS,
) -> Capacity:
    """The capacity for requests like the workload's, as far as live traffic tells.

    `requests`: so many are simulated at a time; with fewer it is quicker and a little less sure.
    """
    if (lacking := _lacking(readings, objectives)) is not None:
        return _silent(lacking)
    seen = windows(readings)
    if not seen:
        return _silent("not enough evidence: the server had next to nothing to do")
    model = ServerModel(workload, hints or Hints())
    for part in _cut(readings):
        model.learn(part)
    begun = total(seen)
    rate = begun.prompts / begun.seconds
    twin = model.twin()
    if twin is None:
        return _silent(
            f"not enough evidence: at {rate:.3g} requests/s too few run at a time to tell what one more costs"
        )
    found = capacity(twin, objectives, max(2 * rate, 1e-3), requests=requests)
    low, high = _range(seen)
    share = high * _alike(begun, workload) / found if found else 0.0
    condition = ""
    doubt = _doubt(model.law, found, share) if model.law is not None else None
    if doubt is None and model.max_num_seqs is None:
        most = max(*(reading.running or 0.0 for reading in readings), *(w.batch * w.engines for w in seen))
        would_run = predict(twin, found, objectives, requests=requests // 2).running
        doubt = _crowded(most, would_run)
        if would_run > most:
            condition = f", and provided that max_num_seqs is at least {would_run:.0f}"
    if doubt is not None:
        return _silent(doubt)
    half = _Z * math.hypot(
        _spread(model, objectives, found, requests // 2),
        _by_chunk(model, objectives, found, requests),
        model.law.drift if model.law is not None else 0.0,
        extrapolated(share),
        _FLOOR,
    )
    if half > _TOO_WIDE:
        spread = f"give or take {half:.0%}" if math.isfinite(half) else "and no second opinion"
        return _silent(f"not enough evidence: {found:.3g} requests/s, {spread}, seen up to {share:.0%} of it")
    return Capacity(
        mode=MODE,
        requests_per_second=found,
        lower=found * (1 - half),
        upper=found * (1 + half),
        output_tokens_per_second=found * mean_length(workload.output_tokens),
        learnt_from=(low, high),
        roofline=model.roofline(),
        reason=f"experimental until a verification has confirmed it{condition}",
    )


def _lacking(readings: Sequence[ServerSnapshot], objectives: Objectives) -> str | None:
    """What a forecast needs and does not have."""
    if not objectives.latencies():
        return "nothing was promised of TTFT or TPOT, so no load is too much"
    if len(readings) < _LEAST_READINGS:
        return f"not enough evidence: {len(readings)} readings of the server, at least {_LEAST_READINGS} needed"
    if not any(reading.kv_cache_tokens for reading in readings):
        return "the server does not say how large its KV cache is"
    return None


def _doubt(law: StepCostModel, found: float, share: float) -> str | None:
    """Why a capacity is not to be believed. `share` of it was seen."""
    if law.residual > _UNEXPLAINED:
        return f"no law of a step explains the server: half of the time it is off by more than {law.residual:.0%}"
    if not found:
        return "no rate holds the objectives, by what was seen of the server"
    if share < _SEEN:
        return f"not enough evidence: seen up to {share:.0%} of what would be the forecast, {found:.3g} requests/s"
    return None


def _crowded(most_seen: float, would_run: float) -> str | None:
    """Why a capacity is not to be believed, where the server may have no seats for so many requests at once."""
    if would_run <= _SEATS * most_seen:
        return None
    return (
        f"not enough evidence: {would_run:.0f} requests would run at a time, {most_seen:.0f} were seen at most, and"
        " max_num_seqs is not known"
    )


def _silent(reason: str) -> Capacity:
    return Capacity(mode=MODE, reason=reason)


def _cut(readings: Sequence[ServerSnapshot]) -> list[Sequence[ServerSnapshot]]:
    """Parts of equal number; each begins with the last reading of the one before, so that nothing is lost between."""
    size = max(math.ceil(len(readings) / _PARTS), 2)
    return [readings[max(i - 1, 0) : i + size] for i in range(0, len(readings), size)]


def _range(seen: Sequence[MetricsWindow]) -> tuple[float, float]:
    """The loads, in requests/s, that nine tenths of the time lie between, of stretches long enough to be a load."""
    rates: list[float] = []
    begun = seconds = 0.0
    for window in seen:
        begun, seconds = begun + window.prompts, seconds + window.seconds
        if seconds >= _STRETCH_S or (window is seen[-1] and not rates):
            rates.append(begun / seconds)
            begun = seconds = 0.0
    rates.sort()
    return rates[len(rates) // 20], rates[-1 - len(rates) // 20]


def _alike(begun: MetricsWindow, workload: Workload) -> float:
    """How many of the workload's requests one that was seen is worth at least, by its tokens; 1 where it is no less."""
    if not begun.prompts:
        return 1.0
    prompt = begun.prompt_tokens / begun.prompts / mean_length(workload.prompt_tokens)
    output = begun.generation_tokens / begun.prompts / mean_length(workload.output_tokens)
    return min(prompt, output, 1.0)


def _spread(model: ServerModel, objectives: Objectives, found: float, requests: int) -> float:
    """The relative standard deviation of a capacity, from what it is without each part (jackknife: Quenouille, Tukey).

    Infinite where there are no parts to leave out.
    """
    twins = (model.twin(without=i) for i in range(model.parts))
    values = [capacity(twin, objectives, found, seeds=(0,), requests=requests) for twin in twins if twin is not None]
    if len(values) < 2:  # noqa: PLR2004
        return math.inf
    mean = fmean(values)
    return math.sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values)) / found


def _by_chunk(model: ServerModel, objectives: Objectives, found: float, requests: int) -> float:
    """By how much it depends on max_num_batched_tokens, relative, where that is not known."""
    if model.chunk_known:
        return 0.0
    twins = (model.twin(chunk_tokens=chunk) for chunk in _USUAL_CHUNKS)
    values = [capacity(twin, objectives, found, seeds=(0,), requests=requests) for twin in twins if twin is not None]
    return (max(values) - min(values)) / 2 / found if values else 0.0


def extrapolated(share: float) -> float:
    """What the law may be off by beyond what it was learnt from: grows with the distance, nothing near the knee."""
    return 0.06 * math.sqrt(1 / min(max(share, 0.01), 1.0) - 1)

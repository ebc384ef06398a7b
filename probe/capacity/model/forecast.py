"""The forecast: a server's capacity from the metrics of its live traffic alone. Pure; takes a few seconds.

In: snapshots of its metrics, a second or a few apart, over minutes to hours. Out: a Capacity of mode "forecast" with an
interval and the range of loads it was learnt from; or the reason why there is none: a wrong number would be worse.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.capacity.model.fitted_twin import fitted_server
from probe.capacity.model.hints import SET_KV_CACHE_TOKENS, SET_MAX_NUM_SEQS, Hints
from probe.capacity.model.server_model import ModelFit, ServerModel
from probe.capacity.model.spread import extrapolation_error, jackknife
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.capacity.model.twin import Twin, find_capacity, predict
from probe.capacity.model.unmodelled import MEASURE, QUEUED_REQS, QUEUED_TOKENS, caveat, refusals, why_withheld
from probe.capacity.model.windows import MetricsWindow, join_windows, windows
from probe.core.objectives import Objectives
from probe.core.result import Capacity
from probe.core.server_limits import USUAL_STEP_TOKENS
from probe.core.snapshot import REPLICAS, ServerSnapshot
from probe.core.token_length import mean_length
from probe.core.workload import Workload
from probe.observe.snapshot_history import PackedSnapshots, unpack

MODE = "forecast"
_PARTS = 8  # the snapshots are cut into this many parts; the forecast without each of them gives the spread
_MIN_SNAPSHOTS = 12
_MIN_SHARE_SEEN = 0.15  # the highest load over the forecast; below it the cost model would be extrapolated too far
_TOO_WIDE = 0.35  # half of the interval, relative
_UNEXPLAINED = 0.15  # median error of the step cost model
# With an unknown max_num_seqs, how many times the most requests ever running may be assumed to run.
_MAX_RUNNING_GROWTH = 1.7
_MIN_SEGMENT_S = 30.0  # the arrivals of a shorter time are no load
_Z = 1.64
_FLOOR = 0.04
_REQUESTS = 3000
# The result is from this many times as many: with few, the longest queues have no time to grow.
_LONGER = 3


def forecast(
    snapshots: Sequence[ServerSnapshot],
    workload: Workload,
    objectives: Objectives,
    hints: Hints | None = None,
    *,
    requests: int = _REQUESTS,
) -> Capacity:
    """Forecast the capacity for requests like the workload's.

    `requests`: how many are simulated at each rate on the way, and three times as many for the result; fewer are
    quicker and less accurate.
    """
    if not workload.api.generates:
        return _no_forecast(
            f"a forecast models generated tokens, and api {workload.api.value} has none; use ramp with --rates"
        )
    evidence = _Evidence(snapshots, windows(snapshots), workload, objectives, requests)
    if (lacking := _why_impossible(evidence)) is not None:
        return _no_forecast(lacking)
    model = ServerModel(workload, hints or Hints())
    for part in _cut(snapshots):
        model.learn(part)
    if (lacking := why_withheld(model.flags, workload, objectives)) is not None:
        return _no_forecast(f"{lacking}; {MEASURE}")
    fit = model.fit()
    if fit is None:
        return _no_forecast(
            f"not enough evidence: at {evidence.rate_rps:.3g} requests/s too few requests run at a time to learn what"
            " one more costs"
        )
    return _credible_capacity(evidence, model, fit)


def forecast_packed(packed: PackedSnapshots, workload: Workload, objectives: Objectives, hints: Hints) -> Capacity:
    """Return the forecast from a packed history. A helper process calls this: with little imported, it is small."""
    return forecast(unpack(packed), workload, objectives, hints)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the server's metrics showed, and the workload and objectives of the forecast.

    `requests`: how many are simulated at each rate.
    """

    snapshots: Sequence[ServerSnapshot]
    measured: Sequence[MetricsWindow]
    workload: Workload
    objectives: Objectives
    requests: int

    @property
    def rate_rps(self) -> float:
        traffic = join_windows(self.measured)
        return traffic.prompts / traffic.seconds


def _credible_capacity(evidence: _Evidence, model: ServerModel, fit: ModelFit) -> Capacity:
    """Return the capacity by the model, or the reason why that is not credible."""
    objectives, requests, twin = evidence.objectives, evidence.requests, fit.twin
    roughly = find_capacity(twin, objectives, max(2 * evidence.rate_rps, 1e-3), seeds=(0,), requests=requests)
    found = find_capacity(twin, objectives, roughly, requests=_LONGER * requests) if roughly else 0.0
    low, high = _load_range(evidence.measured)
    share = high * _relative_size(join_windows(evidence.measured), evidence.workload) / found if found else 0.0
    doubt = _doubt(fit.cost_model, found, share)
    if doubt is None and model.max_num_seqs is None:
        doubt = _max_num_seqs_doubt(evidence, model, twin, found)
    doubt = doubt or _refusals(evidence, model, twin, found)
    if doubt is not None:
        return _no_forecast(doubt)
    without_parts = model.twins_without(fit, range(model.parts))
    half = _Z * math.hypot(
        _jackknife_spread(without_parts, objectives, roughly, requests // 2),
        _chunk_spread(model, fit, objectives, roughly, requests),
        fit.cost_model.drift,
        extrapolation_error(share),
        _FLOOR,
    )
    if half > _TOO_WIDE:
        spread = f"give or take {half:.0%}" if math.isfinite(half) else "with an unknown error"
        highest = f"the highest load measured was {share:.0%} of it"
        return _no_forecast(f"not enough evidence: {found:.3g} requests/s, {spread}; {highest}")
    least = _least_capacity(model, twin, objectives, found, requests // 2)
    doubts = [_bound_words(model, found)] if least < found * (1 - half) else []
    rate = least if doubts else found
    if model.kv_size is not None and model.kv_size.words:
        doubts.append(f"; {model.kv_size.words}")
    is_bound = rate < found or _may_hold_more(model, twin, objectives, rate * (1 + half), requests // 2)
    return Capacity(
        mode=MODE,
        requests_per_second=rate,
        lower=rate * (1 - half),
        upper=None if is_bound else found * (1 + half),
        output_tokens_per_second=rate * mean_length(evidence.workload.output_tokens),
        learnt_from=(low, high),
        roofline=model.roofline(fit),
        prefill_tokens_per_second=fit.prefill_tokens_per_second(),
        fitted_server=None if is_bound else fitted_server(twin, model, fit, without_parts, {}),
        reason=f"experimental until a verification has confirmed it{''.join(doubts)}"
        f"{caveat(model.flags, evidence.workload, objectives)}",
    )


def _why_impossible(evidence: _Evidence) -> str | None:
    """Return what a forecast needs and does not have, or None."""
    snapshots = evidence.snapshots
    if not evidence.objectives.latencies():
        return "no latency objective is set, so no load breaks one"
    if len(snapshots) < _MIN_SNAPSHOTS:
        return f"not enough evidence: scrapes of the server: {len(snapshots)}, at least {_MIN_SNAPSHOTS} needed"
    if not any(snapshot.kv_cache_tokens for snapshot in snapshots):
        return f"the server's metrics do not show the size of its KV cache; {SET_KV_CACHE_TOKENS}"
    if not evidence.measured:
        return "not enough evidence: the server had almost no traffic"
    return None


def _doubt(cost_model: StepCostModel, found: float, share: float) -> str | None:
    """Return why a capacity is not credible, or None. `share`: the highest load measured, relative to the capacity."""
    if cost_model.residual > _UNEXPLAINED:
        return (
            f"no step cost model explains the server: half of the time it is off by more than {cost_model.residual:.0%}"
        )
    if not found:
        return "no rate holds the objectives, by the model of this server"
    if share < _MIN_SHARE_SEEN:
        return f"not enough evidence: the highest load measured was {share:.0%} of the forecast, {found:.3g} requests/s"
    return None


def _max_num_seqs_doubt(evidence: _Evidence, model: ServerModel, twin: Twin, found: float) -> str | None:
    """Return why an unknown max_num_seqs may be far too low for the capacity, or None."""
    most = max(
        *(snapshot.running or 0.0 for snapshot in evidence.snapshots),
        *(window.batch * window.engines for window in evidence.measured),
    )
    would_run = predict(twin, found, evidence.objectives, requests=evidence.requests // 2).running
    if would_run <= max(_MAX_RUNNING_GROWTH * most, model.allowed_running):
        return None
    return (
        f"not enough evidence: {would_run:.0f} requests would run at a time, at most {most:.0f} did, and"
        f" max_num_seqs is not known; {SET_MAX_NUM_SEQS}"
    )


def _refusals(evidence: _Evidence, model: ServerModel, twin: Twin, found: float) -> str | None:
    """Return that the server's queue limits would refuse requests at its capacity, or None."""
    if not {QUEUED_REQS, QUEUED_TOKENS} & model.flags.keys():
        return None
    there = predict(twin, found, evidence.objectives, requests=evidence.requests // 2)
    servers = int(evidence.snapshots[-1].flags.get(REPLICAS, 1))  # each has its own queue, over all its engines
    rate_rps, in_flight = found / servers, (there.running + found * there.ttft_s) / servers  # with those that wait
    return refusals(model.flags, rate_rps, in_flight, mean_length(evidence.workload.prompt_tokens), there.ttft_s)


def _least_capacity(model: ServerModel, twin: Twin, objectives: Objectives, found: float, requests: int) -> float:
    """Return a lower bound: an unknown max_num_seqs is taken to be the largest batch seen."""
    if model.max_num_seqs is not None:
        return found
    limited = replace(twin, max_num_seqs=model.least_max_num_seqs)
    return min(find_capacity(limited, objectives, found, seeds=(0,), requests=requests), found)


def _may_hold_more(model: ServerModel, twin: Twin, objectives: Objectives, rate_rps: float, requests: int) -> bool:
    """Return whether the server would hold that rate if its KV cache had all the room that it may have."""
    size = model.kv_size
    if size is None or not size.is_lower_bound:
        return False
    roomy = replace(twin, kv_tokens=max(size.block_tokens, size.stated_tokens), request_tokens=0.0)
    return predict(roomy, rate_rps, objectives, requests=requests).worst_objective_ratio(objectives) <= 1


def _bound_words(model: ServerModel, found: float) -> str:
    return (
        f"; a lower bound: max_num_seqs is not known to be more than {model.least_max_num_seqs} (without that limit"
        f" {found:.3g} requests/s); {SET_MAX_NUM_SEQS}"
    )


def _no_forecast(reason: str) -> Capacity:
    return Capacity(mode=MODE, reason=reason)


def _cut(snapshots: Sequence[ServerSnapshot]) -> list[Sequence[ServerSnapshot]]:
    """Cut into parts of equal number; each begins with the last snapshot of the one before, so that no time is lost."""
    size = max(math.ceil(len(snapshots) / _PARTS), 2)
    return [snapshots[max(i - 1, 0) : i + size] for i in range(0, len(snapshots), size)]


def _load_range(measured: Sequence[MetricsWindow]) -> tuple[float, float]:
    """Return the loads, in requests/s, between which the server was nine tenths of the time."""
    rates: list[float] = []
    begun = seconds = 0.0
    for window in measured:
        begun, seconds = begun + window.prompts, seconds + window.seconds
        if seconds >= _MIN_SEGMENT_S or (window is measured[-1] and not rates):
            rates.append(begun / seconds)
            begun = seconds = 0.0
    rates.sort()
    return rates[len(rates) // 20], rates[-1 - len(rates) // 20]


def _relative_size(traffic: MetricsWindow, workload: Workload) -> float:
    """Return the size of the measured requests relative to the workload's, by tokens; at most 1."""
    if not traffic.prompts:
        return 1.0
    prompt = traffic.prompt_tokens / traffic.prompts / mean_length(workload.prompt_tokens)
    output = traffic.generation_tokens / traffic.prompts / mean_length(workload.output_tokens)
    return min(prompt, output, 1.0)


def _jackknife_spread(without_parts: Sequence[Twin], objectives: Objectives, found: float, requests: int) -> float:
    """Return the relative standard deviation of a capacity, from its value without each part of the data.

    Infinite if there are no parts to leave out.
    """
    values = [find_capacity(twin, objectives, found, seeds=(0,), requests=requests) for twin in without_parts]
    return jackknife(values, found) if len(values) > 1 else math.inf


def _chunk_spread(model: ServerModel, fit: ModelFit, objectives: Objectives, found: float, requests: int) -> float:
    """Return by how much the capacity depends on an unknown max_num_batched_tokens, relative; 0 if it is known."""
    if model.is_chunk_known:
        return 0.0
    twins = (model.twin(fit, chunk_tokens=chunk) for chunk in USUAL_STEP_TOKENS)
    values = [
        find_capacity(twin, objectives, found, seeds=(0,), requests=requests) for twin in twins if twin is not None
    ]
    return (max(values) - min(values)) / 2 / found if values else 0.0

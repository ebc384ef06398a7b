"""The knee by the twin of a search, its interval, and what limits the server there. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.capacity.model.bottleneck import Bottleneck, find_bottleneck
from probe.capacity.model.fitted_twin import fitted_server
from probe.capacity.model.spread import extrapolation_error, jackknife
from probe.capacity.model.twin import Twin, predict
from probe.capacity.search.search_state import QUICK_REQUESTS, VERIFYING_SHARE, SearchState
from probe.capacity.search.step_replay import unexplained_tail, with_front_end
from probe.core.fitted_server import FittedServer
from probe.core.reasons import KV_CACHE, PREEMPTIONS

# Standard deviation of a capacity that the jackknife cannot show: without it six of ten intervals of cold searches
# hold, with it ten (docs/evidence/accuracy.md).
LEAST_SPREAD = 0.035
# Relative standard deviation of a corrected latency of the twin: at the knees of servers of known timing where latency
# rises slowly, it was 0.1 to 1.0 % off (docs/evidence/accuracy.md).
_LATENCY_ERROR = 0.006
# The same of a knee where the KV cache fills: steps of seconds do not show what happens to it in minutes, and where it
# limits, capacities were up to 6.5 % too high (docs/evidence/accuracy.md).
_KV_ERROR = 0.025
# Share of the knee from which the latencies' slope is taken: nearer to it chance, which moves a simulated knee by 2 %,
# would count. And the least slope, so that a flat latency has a wide interval, and not an infinite one.
_SLOPE_SHARE = 0.85
_LEAST_SLOPE = 0.05
# A search sees a part of a slow drift: half a sine wave lies twice its own spread away from the wave's mean.
_UNSEEN_DRIFT = 2.0
_NINE_OF_TEN = 1.64  # standard deviations to each side: nine of ten
FEWEST_PARTS = 3  # two say nothing of a spread
_SPREAD_OF_FEW = 0.2  # assumed with fewer parts: far too wide to verify
_HARDLY_EVER = 3.0  # standard deviations of a Poisson number: so many more than in the mean hardly ever run
_FINAL_REQUESTS = 10_000  # simulated requests: with 3,000 a knee is 1 to 2 % higher, and varies by 4 % instead of 2 %


@dataclass(frozen=True, slots=True)
class KneeEstimate:
    """Where the twin breaks an objective. Rates are requests/s of all traffic, converted to the workload's requests.

    `limiting`: the objective that breaks; `would_run`: mean requests in the batch there; `least_half`: half of the
    interval, relative, however many steps there are; `least_because`: the larger cause of that;
    `usual_limit_matters`: whether max_num_seqs is unknown, and its likely value would move the knee out of the
    interval; `fitted_server`: the twin, of a final estimate.
    """

    rate_rps: float
    interval: tuple[float, float]
    limiting: str | None
    would_run: float
    bottleneck: Bottleneck | None
    least_half: float = 0.0
    least_because: str = ""
    usual_limit_matters: bool = False
    fitted_server: FittedServer | None = None


def estimate_knee(state: SearchState, *, explain: bool, is_final: bool = True) -> KneeEstimate | None:
    """Locate the knee; None if there is no forecast.

    `is_final`: with more simulated requests than for the forecast and, to `explain` it, with the bottleneck, for some
    more seconds of arithmetic.
    """
    requests = _FINAL_REQUESTS if is_final else QUICK_REQUESTS
    twin, rate_rps = state.twin, state.refined_forecast(requests) if is_final else state.forecast_rps
    if twin is None or rate_rps is None:
        return None
    there = predict(twin, rate_rps, state.objectives, requests=requests)
    ratios = state.objective_ratios(there)
    slope = _latency_slope(state, twin, rate_rps, max(ratios.values(), default=1.0), requests)
    without_parts = state.model.twins_without(state.fit, state.model.informative_parts)
    lasting = _lasting_error(state, slope, fills_kv=there.preemptions > 0)
    half = _half_interval(state, rate_rps, slope, without_parts, lasting)
    return KneeEstimate(
        rate_rps,
        (rate_rps * max(1 - half, 0.0), rate_rps * (1 + half)),
        max(ratios, key=lambda name: ratios[name], default=None),
        there.running,
        find_bottleneck(twin, state.objectives, state.correction, rate_rps) if explain and is_final else None,
        _NINE_OF_TEN * lasting,
        why_wide(_drift(state), slope),
        _would_usual_limit_matter(state, twin, rate_rps, there.running, half),
        _stored(state, twin, without_parts) if is_final else None,
    )


def _stored(state: SearchState, twin: Twin, without_parts: Sequence[Twin]) -> FittedServer | None:
    if state.fit is None:
        return None
    return fitted_server(twin, state.model, state.fit, without_parts, state.correction)


def _would_usual_limit_matter(state: SearchState, twin: Twin, rate_rps: float, would_run: float, half: float) -> bool:
    """Return whether a max_num_seqs of the next power of two, the likely one, moves the knee by more than `half`."""
    model = state.model
    likely = 2 ** math.ceil(math.log2(model.least_max_num_seqs))
    in_fullest = would_run * (max(twin.shares) / sum(twin.shares) if twin.shares else 1 / twin.engines)
    if model.max_num_seqs is not None or likely > in_fullest + _HARDLY_EVER * math.sqrt(in_fullest):
        return False
    free, limited = (
        state.capacity(each, rate_rps, QUICK_REQUESTS) for each in (twin, replace(twin, max_num_seqs=likely))
    )
    return limited < (1 - half) * free


def _half_interval(
    state: SearchState, rate_rps: float, slope: float, without_parts: Sequence[Twin], lasting: float
) -> float:
    """Return half of the knee's interval, relative: all independent errors together, `lasting` (_lasting_error) too."""
    left = min((unexplained_tail(top, state.correction, state.objectives) for top in state.top_steps()), default=0.0)
    return _NINE_OF_TEN * math.hypot(
        _jackknife_spread(state, rate_rps, without_parts),
        left / slope,
        extrapolation_error(_highest_informative_rps(state) / rate_rps / VERIFYING_SHARE),
        lasting,
    )


def _lasting_error(state: SearchState, slope: float, *, fills_kv: bool) -> float:
    """Return the standard deviation that no further step makes smaller, relative.

    `fills_kv`: the twin preempts requests at the knee.
    """
    has_filled_kv = fills_kv or any(step.tripped in (KV_CACHE.word, PREEMPTIONS.word) for step in state.steps)
    kv_error = _KV_ERROR if has_filled_kv else 0.0
    return math.hypot(LEAST_SPREAD, _UNSEEN_DRIFT * _drift(state), _LATENCY_ERROR / slope, kv_error)


def why_wide(drift: float, slope: float) -> str:
    """Return the larger cause of an interval that no further step makes narrower than needed."""
    if _UNSEEN_DRIFT * drift > _LATENCY_ERROR / slope:
        return f"the server's speed drifts by {100 * drift:.0f} %"
    return "near the knee latency rises slowly with the load"


def _drift(state: SearchState) -> float:
    return state.fit.cost_model.drift if state.fit is not None else 0.0


def _highest_informative_rps(state: SearchState) -> float:
    """Return the highest load of an informative step, else that of the users who were watched."""
    watched_rps = state.user_weight * state.watched.rate_rps
    return max((step.load_rps for step in state.steps if step.is_informative), default=watched_rps)


def _jackknife_spread(state: SearchState, rate_rps: float, without_parts: Sequence[Twin]) -> float:
    """Return the relative standard deviation of the knee, from its value without each part of the data."""
    found = [
        state.capacity(with_front_end(bare, state.front_end_estimate), rate_rps, QUICK_REQUESTS)
        for bare in without_parts
    ]
    return jackknife(found, rate_rps) if len(found) >= FEWEST_PARTS else _SPREAD_OF_FEW


def _latency_slope(state: SearchState, twin: Twin, rate_rps: float, at_knee: float, requests: int) -> float:
    """Return by how many per cent the worst latency rises per per cent of the rate, just below the knee.

    Where it rises slowly, a small error of a latency is a large error of the rate. `at_knee`: the worst latency there.
    """
    predicted = predict(twin, _SLOPE_SHARE * rate_rps, state.objectives, requests=requests)
    below = max(state.objective_ratios(predicted).values(), default=0.0)
    slope = math.log(at_knee / below) / -math.log(_SLOPE_SHARE) if 0 < below < at_knee < math.inf else 0.0
    return max(slope, _LEAST_SLOPE)

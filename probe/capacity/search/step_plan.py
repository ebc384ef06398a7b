"""The next step of a search: its rate, its plan and its cost. Pure.

`held_rps`: the highest load that held; `failed_rps`: the lowest that was too high.
"""

import math

from probe.capacity.search.search_state import SAME_RATE, TOP_SHARE, VERIFYING_SHARE, SearchState
from probe.capacity.search.unverified import Spending
from probe.capacity.search.verdict import CLIMB_FACTOR, ENOUGH_REQUESTS
from probe.core.reasons import MIN_REQUESTS
from probe.core.step import MAX_EXTENSION, Arrivals, Pattern, StepPlan
from probe.core.token_length import mean_length
from probe.core.workload import Workload

# Shares of the forecast to try: half, for a guess that is up to twice too high, and so near the knee that nothing
# unexpected lies beyond it. _MAX_GROWTH puts a step between them.
_FORECAST_SHARES = (0.5, TOP_SHARE)
# Of the guess without pulses. By the unloaded baseline alone it was 0.5 to 2.2 times the capacity of 12 simulated
# servers, with TPOT objectives of 1.15, 1.3 or 1.5 times their unloaded TPOT.
_UNPULSED_SHARE = 1 / 3
# The most by which a step's load exceeds the last that held, since the forecast may be wrong: from half of it the knee
# is two steps away.
_MAX_GROWTH = 1.45
_MAX_EARLY_GROWTH = 1.7  # the same far below the forecast
# And by which its load may exceed it with more users than were expected: the guard ends the step there, a moment later.
_MOST_GROWTH = 1.65
# Where users send few requests, chance may bring a step to that limit for some seconds: a climb goes on by as much.
_BESIDE_CHANCE = 1.3
_EARLY_SHARE = 0.4  # of the forecast: below it is early
_MORE_RUNNING = 0.7  # requests at a time by which a climb without any guess rises at least: few steps from one to many
_MIN_GROWTH = 1.2  # the least: a step nearer to it shows little new
_MIN_INFORMATIVE = 2  # one step is enough for a step cost model, but not for its uncertainty
# Without a model the search is done at this ratio of the lowest failed to the highest held rate: a verified interval.
_DONE_RATIO = 1.08
_MAX_GAP_GROWTH = 1.3  # without a model, between the two: less than early growth, since something failed


def first_rates(state: SearchState, held_rps: float, guess_rps: float | None) -> float:
    """Return a rate that rises quickly from about one request at a time, or from a share of the guess."""
    if state.steps:
        return held_rps * _MAX_EARLY_GROWTH
    if guess_rps is not None:
        share = _FORECAST_SHARES[0] if state.has_pulses else _UNPULSED_SHARE
        return max(share * guess_rps, held_rps * _MIN_GROWTH)
    return max(held_rps * _MAX_GROWTH, held_rps + _MORE_RUNNING / state.unloaded_s)


def between(held_rps: float, failed_rps: float) -> float | None:
    """Return the middle of the bracket; None if it is narrow."""
    return (held_rps + failed_rps) / 2 if failed_rps > held_rps * _DONE_RATIO else None


def towards_forecast(state: SearchState, held_rps: float, limit_rps: float) -> float | None:
    """Return the next share of `limit_rps`, not far above what held; None where no further one is needed."""
    for share in _FORECAST_SHARES:
        rate = share * limit_rps
        if rate > held_rps * _MIN_GROWTH:
            growth = _MAX_EARLY_GROWTH if held_rps < _EARLY_SHARE * limit_rps else _MAX_GROWTH
            return min(rate, held_rps * growth) if held_rps else rate
    is_uninformed = sum(step.is_informative for step in state.steps) < _MIN_INFORMATIVE
    return TOP_SHARE * limit_rps if is_uninformed else None


def climb(held_rps: float, failed_rps: float) -> float | None:
    """Return the next rate: up in small steps, then between what held and what did not; None: done."""
    if failed_rps < held_rps * _DONE_RATIO:
        return None
    if failed_rps == math.inf:
        return held_rps * CLIMB_FACTOR
    return min(math.sqrt(held_rps * failed_rps), held_rps * _MAX_GAP_GROWTH)


# A step lasts long enough for its batch to fill and its queue to show: in mean request durations. At least as long as
# ten polls of the server, more than the windows that a fit needs; at most a tenth of the usual budget.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0  # of the warm-up, and of what is judged
_MIN_WARM_S, _MAX_WARM_S = 2.0, 15.0
_MIN_S, _MAX_S = 10.0, 30.0
_TOP_STEP_FACTOR = 1.3  # a step near the knee is longer by this: its queue takes longer to show
_MAX_RARE_S = 90.0  # the longest step, if requests are rare: three of them fit in the usual budget


def plan_step(
    state: SearchState, rate_rps: float, *, has_model: bool, wanted_s: float = 0.0, is_bounded: bool = True
) -> StepPlan | None:
    """Plan a step at this rate of all traffic; None where live traffic has grown to it by itself.

    `has_model`: whether the forecast says how near the knee is; without it every step may be near. `wanted_s`: how
    long it should last with its warm-up, up to the longest step. `is_bounded`: send less where users of now, with the
    most that chance or a burst adds to them, would bring the load to its bound.
    """
    own = rate_rps - state.live_rps
    if own <= 0:
        return None
    residence_s, forecast_rps = state.residence_s(rate_rps), state.forecast_rps
    is_near_knee = not has_model or bool(forecast_rps and rate_rps > VERIFYING_SHARE * forecast_rps)
    warm_up_s = min(max(_WARM_RESIDENCES * residence_s, _MIN_WARM_S), _MAX_WARM_S)

    def seconds_at(own_rps: float) -> float:
        seconds = min(max(_RESIDENCES * residence_s, _MIN_S), _MAX_S) * (_TOP_STEP_FACTOR if is_near_knee else 1.0)
        seconds = max(seconds, min(1.2 * (ENOUGH_REQUESTS if is_near_knee else MIN_REQUESTS) / own_rps, _MAX_RARE_S))
        return max(seconds, min(wanted_s - warm_up_s, _MAX_S))

    most_users_rps = None
    if is_bounded:
        own, most_users_rps = _bounded(state, rate_rps, own)
    if own <= 0 or (state.users.burst_rps and _is_repetition(state, rate_rps, own)):
        return None
    seconds = seconds_at(own)
    return StepPlan(
        concurrency=math.ceil(3 * own * residence_s + 8),
        seconds=seconds,
        loop="open",
        warm_up_s=warm_up_s,
        # If chance sent a fifth more requests than planned, users would wait longer than intended. A step with too
        # few requests is extended.
        arrivals=Arrivals(Pattern.POISSON, own, counted_s=(warm_up_s, seconds, *[seconds] * (1 + MAX_EXTENSION))),
        most_users_rps=most_users_rps,
        usual_users_rps=state.users.usual_rps,
    )


def _is_repetition(state: SearchState, rate_rps: float, own_rps: float) -> bool:
    """Return whether a step that was to be above what held sends no more than before, with what bursts leave of it."""
    sent_rps = max((step.own_rps for step in state.steps if step.has_held), default=0.0)
    return rate_rps > state.highest_held_rps * (1 + SAME_RATE) and own_rps <= sent_rps * (1 + SAME_RATE)


def _bounded(state: SearchState, rate_rps: float, own_rps: float) -> tuple[float, float | None]:
    """Return the rate to send, and the rate of users at which the load of the step leaves its bound; None: unknown.

    It sends so little that the most users who are credible do not bring it there; where only chance would, at least
    _BESIDE_CHANCE of what held, with as many users as usual.
    """
    held_rps = state.highest_held_rps
    if not state.users.seconds or not state.user_weight:
        return min(own_rps, held_rps * _MAX_EARLY_GROWTH or math.inf), None
    most_rps = state.user_weight * state.users.most_rps
    # Nothing has held yet but users: what is tried first is chosen by a guess, or by a forecast from them alone.
    bound_rps = held_rps * _MOST_GROWTH or max(rate_rps, most_rps) * _MAX_GROWTH
    room_rps = bound_rps - most_rps
    if not state.users.burst_rps:
        room_rps = max(room_rps, held_rps * _BESIDE_CHANCE - state.live_rps)
    own_rps = min(own_rps, room_rps)
    return own_rps, (bound_rps - own_rps) / state.user_weight


def cost_of(plan: StepPlan, workload: Workload) -> Spending:
    """Return what a step costs, about."""
    sent_s = plan.warm_up_s + plan.seconds
    tokens = mean_length(workload.prompt_tokens) + mean_length(workload.output_tokens)
    return Spending(sent_s + plan.warm_up_s, plan.load * sent_s * tokens)  # the last answers take a residence more

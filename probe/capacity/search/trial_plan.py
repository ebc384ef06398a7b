"""The plan of a trial at a given rate, and its cost. Pure."""

import math

from probe.capacity.search.search_state import VERIFYING_SHARE, SearchState
from probe.capacity.search.unverified import Spending
from probe.capacity.search.verdict import ENOUGH_REQUESTS
from probe.core.reasons import MIN_REQUESTS
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.core.token_length import mean_length
from probe.core.workload import Workload

# A trial lasts long enough for its batch to fill and its queue to show: in mean request durations. At least as long as
# ten polls of the server, more than the windows that a fit needs; at most a tenth of the usual budget.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0
_MIN_WARM_S, _MAX_WARM_S, _MIN_S, _MAX_S = 2.0, 15.0, 10.0, 30.0
_TOP_TRIAL_FACTOR = 1.3  # a trial near the knee is longer by this: its queue takes longer to show
_MAX_RARE_S = 90.0  # the longest trial, if requests are rare: three of them fit in the usual budget


def trial_plan(state: SearchState, rate_rps: float, *, has_model: bool, wanted_s: float = 0.0) -> StepPlan | None:
    """Plan a trial at this rate of all traffic; None where live traffic has grown to it by itself.

    `has_model`: whether the forecast says how near the knee is; without it every trial may be near. `wanted_s`: how
    long it should last with its warm-up, as far as a trial may.
    """
    own = rate_rps - state.live_equivalent_rps
    if own <= 0:
        return None
    residence_s, forecast_rps = state.residence_s(rate_rps), state.forecast_rps
    is_near_knee = not has_model or bool(forecast_rps and rate_rps > VERIFYING_SHARE * forecast_rps)
    seconds = min(max(_RESIDENCES * residence_s, _MIN_S), _MAX_S) * (_TOP_TRIAL_FACTOR if is_near_knee else 1.0)
    seconds = max(seconds, min(1.2 * (ENOUGH_REQUESTS if is_near_knee else MIN_REQUESTS) / own, _MAX_RARE_S))
    warm_up_s = min(max(_WARM_RESIDENCES * residence_s, _MIN_WARM_S), _MAX_WARM_S)
    seconds = max(seconds, min(wanted_s - warm_up_s, _MAX_S))
    return StepPlan(
        concurrency=math.ceil(3 * own * residence_s + 8),
        seconds=seconds,
        loop="open",
        warm_up_s=warm_up_s,
        # If chance sent a fifth more requests than planned, users would wait longer than intended. A step with too
        # few requests goes on for at most twice its length.
        arrivals=Arrivals(Pattern.POISSON, own, counted_s=(warm_up_s, seconds, seconds, seconds)),
    )


def cost_of(plan: StepPlan, workload: Workload) -> Spending:
    """Return what a trial costs, about."""
    sent_s = plan.warm_up_s + plan.seconds
    tokens = mean_length(workload.prompt_tokens) + mean_length(workload.output_tokens)
    return Spending(sent_s + plan.warm_up_s, plan.load * sent_s * tokens)  # the last answers take a residence more

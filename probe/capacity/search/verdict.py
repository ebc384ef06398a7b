"""The verdict of a search: which loads were too high, whether the model is refuted, and the published Capacity. Pure.

In: a SearchState and its knee. Out: reasons for doubt, the load to stay below, and a Capacity: by the model ("verified"
or "forecast"), by the steps alone ("empirical"), or none with a reason.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probe.capacity.model.hints import SET_MAX_NUM_SEQS
from probe.capacity.search.knee import Cause, ended_before_load, guarded, is_long, no_capacity, unjudged
from probe.capacity.search.knee_estimate import LEAST_SPREAD, KneeEstimate
from probe.capacity.search.search_state import QUICK_REQUESTS, TOP_SHARE, SearchState
from probe.capacity.search.search_step import SearchStep
from probe.capacity.search.unverified import MAX_VERIFIED_HALF, assumption, certainly_held_rps, is_crowded
from probe.core import objectives as slo
from probe.core import reasons
from probe.core.reasons import CLIENT_BOUND, CUT_SHORT, QUEUE, REJECTIONS, TOO_FEW, ReasonKind
from probe.core.result import Capacity, Stopped
from probe.core.step import StepSummary
from probe.core.token_length import mean_length

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"
CLIMB_FACTOR = 1.12  # without a model: of a step up; two of them are the widest bracket for a capacity
ENOUGH_REQUESTS = 40  # judge a step without a model: of so many, two miss an objective at the knee
_FORESEEN = 0.9  # of an objective: the twin reaches this with the requests of a step that broke it, or nearly
_REFUTES = 0.85  # of the forecast: a load that breaks below this share is no chance, so the model is wrong
_CHANCE = 0.1  # probability of so many misses at a load that just holds; above it, the load has not failed
_ROUNDING = 1e-6  # of a rate: rounding
# As a logarithm: steps that pass a third above the model show only that their queue had no time to fill.
_MAX_DISAGREEMENT = 0.3
_SHORT_STEP = 0.17  # by which steps of 15 s find a knee too high at most, as queues near it grow for minutes
_QUEUED_S = 10.0  # seconds whose requests fill the queue for which the guard stops a step
_NINE_OF_TEN = 1.64  # standard deviations to each side: nine of ten
_TOO_SHORT = "; its steps were too short for the longest queues to grow, so it may be lower"


def find_void_cause(steps: Sequence[StepSummary], stopped: Stopped) -> Cause | None:
    """Return why the run's data cannot give any capacity, or None."""
    ended = reasons.find_end(stopped)
    if ended is reasons.ENDED_BY_ERROR:
        return Cause(f"the run failed ({stopped.reason})", ended.advice)
    if ended.kind in (ReasonKind.ERROR, ReasonKind.VOID):
        return Cause(ended.explained, ended.advice)
    if ended.kind in (ReasonKind.FAILURE, ReasonKind.UNLOADED) and not steps:
        return guarded(steps, stopped.reason)
    if any(step.requests.failed for step in steps) and not any(step.requests.ok for step in steps):
        return Cause("no request was answered; the first failure says why")
    failures = [step.reason for step in steps if step.reason not in (None, TOO_FEW.word, CUT_SHORT.word)]
    # A step that this machine was late in shows nothing, and the others remain.
    is_judged = any(step.valid and not step.plan.is_pulse for step in steps)
    failure = next((reason for reason in failures if reason != CLIENT_BOUND.word or not is_judged), None)
    return unjudged(failure) if failure is not None else None


def overloaded_steps(state: SearchState) -> list[SearchStep]:
    """Return the steps with too high a load.

    A step that broke is excused if the same or a higher load held, if so many misses may be chance, or if the twin
    breaks with the same requests (some are longer) although it holds the rate.
    """
    return [step for step in _above(state) if not _is_foreseen(state, step) and not _may_be_chance(state, step)]


def ceiling(state: SearchState) -> float:
    """Return the load to stay below, in requests/s; infinite if there is none.

    A load that the guard stopped as a precaution counts, foreseen by the twin or not.
    """
    foreseen = (step for step in _above(state) if step.is_precaution)
    return min((step.highest_rps for step in (*overloaded_steps(state), *foreseen)), default=math.inf)


def _load(step: SearchStep) -> float:
    return step.highest_rps


def queue_limit(state: SearchState) -> str | None:
    """Return that the server's queue limit is what limits it, by the lowest load that was too high, or None.

    No model has it: a server refuses requests there long before it is slow.
    """
    lowest = min(overloaded_steps(state), default=None, key=_load)
    return REJECTIONS.word if lowest is not None and lowest.tripped == REJECTIONS.word else None


def _may_be_chance(state: SearchState, step: SearchStep) -> bool:
    """Return whether so many requests may have missed an objective by chance at a load that just holds (binomial)."""
    if step.tripped is not None:
        return False
    count, promised = step.summary.requests.ok, slo.promised(state.objectives)
    chances = []
    for name in step.summary.broken:
        missed = round((1 - step.summary.good_ratio.get(name, 0.0)) * count)
        chances.append(1 - sum(_binomial(n, count, 1 - promised[name]) for n in range(missed)))
    return min(chances, default=0.0) > _CHANCE


def _binomial(n: int, count: int, share: float) -> float:
    """Return the probability of exactly `n` of `count`, each with probability `share` (above 0, below 1)."""
    ways = math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
    return math.exp(ways + n * math.log(share) + (count - n) * math.log1p(-share))


def _above(state: SearchState) -> list[SearchStep]:
    """Return the steps that broke an objective above every load that held."""
    held_rps = max((step.load_rps for step in state.steps if step.has_held), default=0.0)
    return [step for step in state.steps if step.has_broken and step.highest_rps > held_rps * (1 + _ROUNDING)]


def _is_foreseen(state: SearchState, step: SearchStep) -> bool:
    if state.forecast_rps is None or step.highest_rps > TOP_SHARE * state.forecast_rps:
        return False
    if step.is_precaution:
        return step.would_stop_twin
    return step.predicted is not None and state.worst_objective_ratio(step) > _FORESEEN


def unforeseen_overload(state: SearchState, knee: KneeEstimate) -> str | None:
    """Return which load below the knee the guard stopped because an objective broke, or None.

    The model does not have what such a load shows: most often a max_num_seqs that no poll showed.
    """
    stopped = [step for step in overloaded_steps(state) if step.tripped is not None and not step.is_precaution]
    lowest = min((step for step in stopped if step.highest_rps < knee.rate_rps), key=_load, default=None)
    if lowest is None:
        return None
    words = f"{lowest.highest_rps:.3g} requests/s were too many ({lowest.tripped})"
    is_batch = state.model.max_num_seqs is None and lowest.tripped != REJECTIONS.word
    hint = f"; {SET_MAX_NUM_SEQS}" if is_batch else ""
    return f"{words}, which the model of this server does not say{hint}"


@dataclass(frozen=True, slots=True)
class Doubt:
    """The load that shows that the model is not credible, in requests/s, and why."""

    load_rps: float
    words: str


def find_doubt(state: SearchState) -> Doubt | None:
    """Return why the model is not credible, or None."""
    if not state.forecast_rps:
        return None
    believed = f"by the model this server holds {state.forecast_rps:.3g}"
    broken_rps = min((step.highest_rps for step in overloaded_steps(state)), default=math.inf)
    if broken_rps < _REFUTES * state.forecast_rps:
        return Doubt(broken_rps, f"{broken_rps:.3g} requests/s were too many; {believed}")
    # Only steps that should have broken by the model: where the queue has not filled, they hold on the twin as well.
    held_rps = highest_held_rps(state, lambda step: state.worst_objective_ratio(step) > 1 / _FORESEEN)
    if _REFUTES * held_rps > state.forecast_rps:
        return Doubt(held_rps, f"{held_rps:.3g} requests/s held the objectives; {believed}")
    return None


def highest_held_rps(state: SearchState, of: Callable[[SearchStep], bool] = lambda _: True) -> float:
    """Return the highest rate of such steps that held, judged by many requests."""
    highest = _highest_held(state, of)
    return highest.load_rps if highest is not None else 0.0


def _highest_held(state: SearchState, of: Callable[[SearchStep], bool] = lambda _: True) -> SearchStep | None:
    held = (step for step in state.steps if step.has_held and step.is_steady)
    judged = (step for step in held if step.summary.requests.ok >= ENOUGH_REQUESTS and of(step))
    return max(judged, default=None, key=lambda step: (step.load_rps, is_long(step.summary)))


def _least_capacity_rps(held: SearchStep | None) -> float:
    """Return the least capacity that a load which held shows, in requests/s."""
    if held is None:
        return 0.0
    return held.load_rps * (1 - (LEAST_SPREAD if is_long(held.summary) else _SHORT_STEP))


def _cause_before_load(stopped: Stopped) -> Cause | None:
    if stopped.by == reasons.ENDED_BY_GUARD.word:
        return guarded((), stopped.reason)
    return (
        ended_before_load(stopped)
        if stopped.by in (reasons.ENDED_BY_BUDGET.word, reasons.ENDED_BY_INTERRUPT.word)
        else None
    )


def modelless_capacity(state: SearchState, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
    """Return the capacity without a forecast: by the steps where some held and some broke, else a reason."""
    if not steps and (cause := _cause_before_load(stopped)) is not None:
        return no_capacity(FORECAST, cause)
    if state.twin is not None:
        none_holds = "no rate holds the objectives, by the model of this server"
        return no_capacity(FORECAST, Cause(none_holds, reasons.SLOW_UNLOADED.advice))
    if any(step.has_held for step in state.steps) and overloaded_steps(state):
        return empirical_capacity(state, "the server's metrics do not show what one more request costs")
    tripped = [step for step in state.steps if step.tripped is not None and step.has_broken]
    if tripped and not any(step.has_held for step in state.steps):
        lowest = min(tripped, key=_load)
        words = (
            f"the guard stopped every load that was tried, also {lowest.highest_rps:.3g} requests/s ({lowest.tripped})"
        )
        return no_capacity(FORECAST, Cause(words, reasons.ENDED_BY_GUARD.advice), lowest.tripped)
    ended = reasons.find_end(stopped)
    if ended.kind in (ReasonKind.FAILURE, ReasonKind.BLIND, ReasonKind.TRAFFIC):
        has_changed = ended.kind is ReasonKind.TRAFFIC
        cause = Cause(ended.explained, ended.advice) if has_changed else guarded(steps, stopped.reason)
        return no_capacity(FORECAST, cause)
    highest_rps = max((step.load_rps for step in state.steps), default=state.live_rps)
    words = f"at up to {highest_rps:.3g} requests/s too few requests ran at a time to learn what one more costs"
    return Capacity(mode=FORECAST, reason=f"not enough evidence: {words}")


def model_capacity(state: SearchState, knee: KneeEstimate, caveat: str | None) -> Capacity:
    """Return the knee of a credible model: verified, or a forecast with the `caveat` that keeps it from being so."""
    # A load that was too high bounds the capacity whatever the model says. One that the guard stopped as a precaution
    # broke no objective, so the capacity may lie a little above it.
    too_high_rps, surely_rps = (_too_high_rps(state, deviations) for deviations in (1.0, _NINE_OF_TEN))
    if is_crowded(state, knee):
        return _lower_bound(state, knee, too_high_rps)
    rate = min(knee.rate_rps, too_high_rps)
    low, high = knee.interval[0] * rate / knee.rate_rps, knee.interval[1]
    # The server takes what held, whatever the model says, and however little it learnt from steps that were late.
    least_rps, held_rps = _least_capacity_rps(_highest_held(state)), certainly_held_rps(state)
    low = max(low, min(least_rps, rate))
    high = held_rps * (1 + LEAST_SPREAD) if held_rps > high else high
    if unforeseen_overload(state, knee) is not None:
        low = min(low, least_rps)
    refuses = queue_limit(state) if too_high_rps <= knee.rate_rps else None
    limits = knee.bottleneck if refuses is None else None
    return Capacity(
        mode=VERIFIED if caveat is None else FORECAST,
        requests_per_second=rate,
        lower=low,
        upper=min(high, surely_rps * (1 + MAX_VERIFIED_HALF)),
        output_tokens_per_second=rate * mean_length(state.model.workload.output_tokens),
        limiting=refuses or knee.limiting,
        bottleneck=limits.name if limits else None,
        advice=limits.advice if limits else None,
        bottleneck_gain=limits.gain if limits else None,
        roofline=state.model.roofline(state.fit),
        prefill_tokens_per_second=state.fit.prefill_tokens_per_second() if state.fit is not None else None,
        fitted_server=knee.fitted_server,
        reason=caveat,
    )


def _too_high_rps(state: SearchState, deviations: float) -> float:
    """Return the lowest load that was too high, in requests/s; infinite without any.

    A queue that chance fills: with so many standard deviations more requests than planned in the seconds before.
    """

    def bound_rps(step: SearchStep) -> float:
        if not step.is_precaution:
            return step.highest_rps
        by_chance = deviations / math.sqrt(step.load_rps * _QUEUED_S) if step.tripped == QUEUE.word else 0.0
        return step.highest_rps * (1 + max(LEAST_SPREAD, by_chance))

    return min((bound_rps(step) for step in overloaded_steps(state)), default=math.inf)


def _lower_bound(state: SearchState, knee: KneeEstimate, too_high_rps: float) -> Capacity:
    """Return a lower bound: max_num_seqs, which is unknown, is taken to be the largest batch seen."""
    largest_batch = state.model.least_max_num_seqs
    limited = replace(state.twin, max_num_seqs=largest_batch) if state.twin is not None else None
    limited_rps = state.capacity(limited, knee.rate_rps, QUICK_REQUESTS) if limited is not None else 0.0
    if not limited_rps:
        needs = assumption(state, knee)
        return Capacity(mode=FORECAST, reason=f"not enough evidence: max_num_seqs is not known; {needs}")
    rate = min(limited_rps, knee.rate_rps, too_high_rps)
    return Capacity(
        mode=FORECAST,
        requests_per_second=rate,
        lower=knee.interval[0] * rate / knee.rate_rps,
        upper=too_high_rps * (1 + MAX_VERIFIED_HALF) if too_high_rps < math.inf else None,
        output_tokens_per_second=rate * mean_length(state.model.workload.output_tokens),
        roofline=state.model.roofline(state.fit),
        prefill_tokens_per_second=state.fit.prefill_tokens_per_second() if state.fit is not None else None,
        reason=f"a lower bound: max_num_seqs is not known to be more than {largest_batch};"
        f" {knee.rate_rps:.3g} requests/s {assumption(state, knee)}",
    )


def empirical_capacity(state: SearchState, doubt: str) -> Capacity:
    """Return the capacity from the steps alone, for a model that is not credible."""
    held, failed_rps = _highest_held(state), ceiling(state)
    held_rps, least_rps = held.load_rps if held is not None else 0.0, _least_capacity_rps(held)
    tokens = mean_length(state.model.workload.output_tokens)
    is_short = held is not None and not is_long(held.summary)
    if held is not None and failed_rps == math.inf:
        return Capacity(
            mode=EMPIRICAL,
            requests_per_second=least_rps,
            lower=least_rps,
            output_tokens_per_second=least_rps * tokens,
            reason=f"no load that was tried broke an objective: the capacity is at least this ({doubt})",
        )
    if failed_rps > held_rps * CLIMB_FACTOR * CLIMB_FACTOR:
        return Capacity(mode=EMPIRICAL, reason=f"{doubt}, and the steps alone do not show where the knee is")
    rate = math.sqrt(held_rps * failed_rps)
    if state.forecast_rps and math.log(rate / state.forecast_rps) > _MAX_DISAGREEMENT:
        return Capacity(
            mode=EMPIRICAL,
            reason=f"{doubt}; it says {state.forecast_rps:.3g} requests/s, the steps say {rate:.3g}",
        )
    return Capacity(
        mode=EMPIRICAL,
        requests_per_second=rate,
        lower=least_rps,
        upper=failed_rps * (1 + LEAST_SPREAD),
        output_tokens_per_second=rate * tokens,
        limiting=queue_limit(state),
        reason=f"measured without a model: {doubt}{_TOO_SHORT if is_short else ''}",
        roofline=state.model.roofline(None),
    )

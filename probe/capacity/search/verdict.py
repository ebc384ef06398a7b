"""The verdict of a search: which loads were too high, whether the model is refuted, and the published Capacity. Pure.

In: a SearchState and its knee. Out: reasons for doubt, the load to stay below, and a Capacity: by the model ("verified"
or "forecast"), by the trials alone ("empirical"), or none with a reason.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from probe.capacity.model.hints import SET_MAX_NUM_SEQS
from probe.capacity.search.knee import guarded_words, is_long, unjudged_words
from probe.capacity.search.knee_estimate import FLOOR, KneeEstimate
from probe.capacity.search.search_state import QUICK_REQUESTS, TOP_SHARE, SearchState
from probe.capacity.search.trial import Trial
from probe.capacity.search.unverified import SURE, assumption, is_crowded
from probe.core import objectives as slo
from probe.core import reasons
from probe.core.reasons import CLIENT_BOUND, CUT_SHORT, TOO_FEW, Kind
from probe.core.result import Capacity, Stopped
from probe.core.step import StepSummary
from probe.core.token_length import mean_length

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"
# Without a model: steps up, of which two make the widest bracket for a capacity, and how many requests judge a trial:
# of so many, two miss an objective at the knee.
CLIMB_FACTOR, ENOUGH_REQUESTS = 1.12, 40
_FORESEEN = 0.9  # of an objective: the twin reaches this with the requests of a trial that broke it, or nearly
_REFUTES = 0.85  # of the forecast: a load that breaks below this share is no chance, so the model is wrong
_CHANCE = 0.1  # probability of so many misses at a load that just holds; above it, the load has not failed
_SAME = 1e-6  # of a rate: rounding
# As a logarithm: trials that pass a third above the model show only that their queue had no time to fill.
_APART = 0.3
_SHORT_TRIAL = 0.17  # by which steps of 15 s find a knee too high at most, as queues near it grow for minutes
_TOO_SHORT = "; its trials were too short for the longest queues to grow, so it may be lower"


def find_void_reason(steps: Sequence[StepSummary], stopped: Stopped) -> str | None:
    """Return why the run's data cannot give any capacity, or None."""
    ended = reasons.find_end(stopped)
    if ended is reasons.ERROR:
        return f"the run failed ({stopped.reason})"
    if ended.kind in (Kind.ERROR, Kind.VOID):
        return ended.explained
    if ended.kind is Kind.FAILURE and not steps:
        return guarded_words(steps, stopped.reason)
    if any(step.requests.failed for step in steps) and not any(step.requests.ok for step in steps):
        return "no request was answered; the first failure says why"
    failures = [step.reason for step in steps if step.reason not in (None, TOO_FEW.word, CUT_SHORT.word)]
    # A step that this machine was late in shows nothing, and the others remain.
    is_judged = any(step.valid and not step.plan.is_pulse for step in steps)
    failure = next((reason for reason in failures if reason != CLIENT_BOUND.word or not is_judged), None)
    return unjudged_words(failure) if failure is not None else None


def overloaded_trials(state: SearchState) -> list[Trial]:
    """Return the trials whose load was too high.

    A trial that broke is excused if the same or a higher load held, if so many misses may be chance, or if the twin
    breaks with the same requests (some are longer) although it holds the rate.
    """
    return [trial for trial in _above(state) if not _is_foreseen(state, trial) and not _may_be_chance(state, trial)]


def ceiling(state: SearchState) -> float:
    """Return the load to stay below, in requests/s; infinite if there is none.

    A load that the guard stopped as a precaution counts, foreseen by the twin or not.
    """
    foreseen = (trial for trial in _above(state) if trial.is_precaution)
    return min((trial.load_rps for trial in (*overloaded_trials(state), *foreseen)), default=math.inf)


def _load(trial: Trial) -> float:
    return trial.load_rps


def _may_be_chance(state: SearchState, trial: Trial) -> bool:
    """Return whether so many requests may have missed an objective by chance at a load that just holds (binomial)."""
    if trial.tripped is not None:
        return False
    count, promised = trial.step.requests.ok, slo.promised(state.objectives)
    chances = []
    for name in trial.step.broken:
        missed = round((1 - trial.step.good_ratio.get(name, 0.0)) * count)
        chances.append(1 - sum(_binomial(n, count, 1 - promised[name]) for n in range(missed)))
    return min(chances, default=0.0) > _CHANCE


def _binomial(n: int, count: int, share: float) -> float:
    """Return the probability of exactly `n` of `count`, each with probability `share` (above 0, below 1)."""
    ways = math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
    return math.exp(ways + n * math.log(share) + (count - n) * math.log1p(-share))


def _above(state: SearchState) -> list[Trial]:
    """Return the trials that broke an objective above every load that held."""
    held = max((trial.load_rps for trial in state.trials if trial.has_held), default=0.0)
    return [trial for trial in state.trials if trial.has_broken and trial.load_rps > held * (1 + _SAME)]


def _is_foreseen(state: SearchState, trial: Trial) -> bool:
    if state.forecast_rps is None or trial.load_rps > TOP_SHARE * state.forecast_rps:
        return False
    if trial.is_precaution:
        return trial.would_stop_twin
    return trial.predicted is not None and state.worst_objective_ratio(trial) > _FORESEEN


def unforeseen_overload(state: SearchState, knee: KneeEstimate) -> str | None:
    """Return which load below the knee the guard stopped because an objective broke, or None.

    The model does not have what such a load shows: most often a max_num_seqs that no poll showed.
    """
    stopped = [trial for trial in overloaded_trials(state) if trial.tripped is not None and not trial.is_precaution]
    least = min((trial for trial in stopped if trial.load_rps < knee.rate_rps), key=_load, default=None)
    if least is None:
        return None
    return (
        f"{least.load_rps:.3g} requests/s were too many ({least.tripped}), which the model of this server does not say"
        + (f"; {SET_MAX_NUM_SEQS}" if state.model.max_num_seqs is None else "")
    )


def find_doubt(state: SearchState) -> tuple[float, str] | None:
    """Return the load that shows that the model is not credible, and why; None if it is."""
    broke = min((trial.load_rps for trial in overloaded_trials(state)), default=math.inf)
    if state.forecast_rps and broke < _REFUTES * state.forecast_rps:
        return broke, f"{broke:.3g} requests/s were too many; by the model this server holds {state.forecast_rps:.3g}"
    # Only trials that should have broken by the model: where the queue has not filled, they hold on the twin as well.
    stood = highest_held_rps(state, lambda trial: state.worst_objective_ratio(trial) > 1 / _FORESEEN)
    if state.forecast_rps and _REFUTES * stood > state.forecast_rps:
        words = f"{stood:.3g} requests/s held the objectives; by the model this server holds {state.forecast_rps:.3g}"
        return stood, words
    return None


def highest_held_rps(state: SearchState, of: Callable[[Trial], bool] = lambda _: True) -> float:
    """Return the highest rate of such trials that held, judged by many requests."""
    highest = _highest_held(state, of)
    return highest.load_rps if highest is not None else 0.0


def _highest_held(state: SearchState, of: Callable[[Trial], bool] = lambda _: True) -> Trial | None:
    held = (
        trial
        for trial in state.trials
        if trial.has_held and trial.is_steady and trial.step.requests.ok >= ENOUGH_REQUESTS
    )
    return max((each for each in held if of(each)), default=None, key=lambda each: (each.load_rps, is_long(each.step)))


def _least(held: Trial | None) -> float:
    """Return the least capacity that a load which held shows, in requests/s."""
    if held is None:
        return 0.0
    return held.load_rps * (1 - (FLOOR if is_long(held.step) else _SHORT_TRIAL))


def modelless_capacity(state: SearchState, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
    """Return the capacity without a forecast: by the trials where some held and some broke, else a reason."""
    if stopped.by == reasons.GUARD.word and not steps:
        return Capacity(mode=FORECAST, reason=guarded_words(steps, stopped.reason))
    if state.twin is not None:
        return Capacity(mode=FORECAST, reason="no rate holds the objectives, by the model of this server")
    if any(trial.has_held for trial in state.trials) and overloaded_trials(state):
        return empirical_capacity(state, "the server's metrics do not show what one more request costs")
    tripped = [trial for trial in state.trials if trial.tripped is not None]
    if tripped and not any(trial.has_held for trial in state.trials):
        least = min(tripped, key=lambda trial: trial.load_rps)
        words = f"the guard stopped every load that was tried, also {least.load_rps:.3g} requests/s ({least.tripped})"
        return Capacity(
            mode=FORECAST,
            limiting=least.tripped,
            reason=f"{words}; look at the server's log and metrics, `kneewatch check` says whether it answers",
        )
    most = max((trial.load_rps for trial in state.trials), default=state.model.live_rps)
    words = f"at up to {most:.3g} requests/s too few requests ran at a time to learn what one more costs"
    return Capacity(mode=FORECAST, reason=f"not enough evidence: {words}")


def model_capacity(state: SearchState, knee: KneeEstimate, lacks: str | None) -> Capacity:
    """Return the knee of a credible model: verified, or a forecast where it `lacks` something to be verified."""
    # A load that was too high bounds the capacity whatever the model says. One that the guard stopped as a precaution
    # broke no objective, so the capacity may lie a little above it.
    most = min(
        (trial.load_rps * (1 + FLOOR if trial.is_precaution else 1.0) for trial in overloaded_trials(state)),
        default=math.inf,
    )
    if is_crowded(state, knee):
        return _lower_bound(state, knee, most)
    rate = min(knee.rate_rps, most)
    low, high = knee.interval[0] * rate / knee.rate_rps, knee.interval[1]
    if unforeseen_overload(state, knee) is not None:
        low = min(low, _least(_highest_held(state)))
    limits = knee.bottleneck
    return Capacity(
        mode=VERIFIED if lacks is None else FORECAST,
        requests_per_second=rate,
        lower=low,
        upper=min(high, most * (1 + SURE)),
        output_tokens_per_second=rate * mean_length(state.model.workload.output_tokens),
        limiting=knee.limiting,
        bottleneck=limits.name if limits else None,
        advice=limits.advice if limits else None,
        bottleneck_gain=limits.gain if limits else None,
        roofline=state.model.roofline(state.fit),
        prefill_tokens_per_second=state.fit.prefill_tokens_per_second() if state.fit is not None else None,
        fitted_server=knee.fitted_server,
        reason=lacks,
    )


def _lower_bound(state: SearchState, knee: KneeEstimate, most_rps: float) -> Capacity:
    """Return the capacity if max_num_seqs, which is unknown, is no more than is known. `most_rps`: was too high."""
    most = state.model.least_max_num_seqs
    limited = replace(state.twin, max_num_seqs=most) if state.twin is not None else None
    least = state.capacity(limited, knee.rate_rps, QUICK_REQUESTS) if limited is not None else 0.0
    if not least:
        needs = assumption(state, knee)
        return Capacity(mode=FORECAST, reason=f"not enough evidence: max_num_seqs is not known; {needs}")
    rate = min(least, knee.rate_rps, most_rps)
    return Capacity(
        mode=FORECAST,
        requests_per_second=rate,
        lower=knee.interval[0] * rate / knee.rate_rps,
        upper=most_rps * (1 + SURE) if most_rps < math.inf else None,
        output_tokens_per_second=rate * mean_length(state.model.workload.output_tokens),
        roofline=state.model.roofline(state.fit),
        prefill_tokens_per_second=state.fit.prefill_tokens_per_second() if state.fit is not None else None,
        reason=f"a lower bound: max_num_seqs is not known to be more than {most};"
        f" {knee.rate_rps:.3g} requests/s {assumption(state, knee)}",
    )


def empirical_capacity(state: SearchState, doubted: str) -> Capacity:
    """Return the capacity from the trials alone, for a model that is not credible."""
    held, high = _highest_held(state), ceiling(state)
    low, least = held.load_rps if held is not None else 0.0, _least(held)
    tokens = mean_length(state.model.workload.output_tokens)
    is_short = held is not None and not is_long(held.step)
    if held is not None and high == math.inf:
        return Capacity(
            mode=EMPIRICAL,
            requests_per_second=least,
            lower=least,
            output_tokens_per_second=least * tokens,
            reason=f"no load that was tried broke an objective: the capacity is at least this ({doubted})",
        )
    if high > low * CLIMB_FACTOR * CLIMB_FACTOR:
        return Capacity(mode=EMPIRICAL, reason=f"{doubted}, and the trials alone do not show where the knee is")
    rate = math.sqrt(low * high)
    if state.forecast_rps and math.log(rate / state.forecast_rps) > _APART:
        return Capacity(
            mode=EMPIRICAL,
            reason=f"{doubted}; it says {state.forecast_rps:.3g} requests/s, the trials say {rate:.3g}",
        )
    return Capacity(
        mode=EMPIRICAL,
        requests_per_second=rate,
        lower=least,
        upper=high * (1 + FLOOR),
        output_tokens_per_second=rate * tokens,
        reason=f"measured without a model: {doubted}{_TOO_SHORT if is_short else ''}",
        roofline=state.model.roofline(None),
    )

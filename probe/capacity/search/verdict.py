"""What to believe of a search: which loads were too much, whether the model is refuted, and what is published. Pure."""

import math
from collections.abc import Callable, Sequence

from probe.capacity.model.server_model import mean_length
from probe.capacity.search.calibrate import unexplained
from probe.capacity.search.knee import VOID
from probe.capacity.search.search_state import FLOOR, REACHED, TOP, KneeEstimate, SearchState
from probe.capacity.search.trial import Trial
from probe.core import objectives as slo
from probe.core.result import Capacity, Stopped
from probe.core.step import StepSummary
from probe.load.step_summary import CUT_SHORT, TOO_FEW
from probe.observe.guard import SERVER_RESTARTED

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"
# Without a model: steps up, and how many requests judge a rung.
CLIMB, ENOUGH = 1.12, 40
_FORESEEN = 0.9  # of an objective, that the twin reaches with the requests of a rung that broke it
_REFUTES = 0.85  # a load that breaks at so much of the forecast is no chance: the model is wrong
_MORE = 1.25  # as many as were seen to run may run as well
_SURE = 0.08  # half of an interval, relative, above which a figure is not called verified
_CHANCE = 0.1  # of missing an objective so often at a load that just holds it: above it, the load is not refuted
_SAME = 1e-6  # of a rate, by which the same sum may differ
_APART = 0.3  # of rungs above the model, in logarithms: a queue that has not filled lets them pass, so neither counts


def void(steps: Sequence[StepSummary], stopped: Stopped) -> str | None:
    """Why nothing that was seen makes a capacity."""
    if stopped.by == "error":
        return f"the run failed ({stopped.reason})"
    if stopped.reason == SERVER_RESTARTED:
        return "the server restarted: what was seen is of two servers; measure again"
    ours = next((step.reason for step in steps if step.reason not in (None, TOO_FEW, CUT_SHORT)), None)
    return f"{VOID.get(ours, 'a step judged nothing')} ({ours})" if ours is not None else None


def too_much(known: SearchState) -> list[Trial]:
    """The rungs that were too much. What held at the same one or a higher one refutes what broke by chance, and so does
    the model where it does the same with the same requests and says that others would be fine: some are longer.
    """
    return [rung for rung in _above(known) if not _foreseen(known, rung) and not _by_chance(known, rung)]


def ceiling(known: SearchState) -> float:
    """The lowest load to stay below, in requests/s: also one that the guard ended as a precaution, whether or not that
    was foreseen. Infinite where there is none.
    """
    foreseen = (rung for rung in _above(known) if rung.precaution)
    return min((rung.came_rps for rung in (*too_much(known), *foreseen)), default=math.inf)


def _by_chance(known: SearchState, rung: Trial) -> bool:
    """Whether as many requests may have missed an objective by chance at a load that just holds it (binomial)."""
    if rung.tripped is not None:
        return False
    count, promised = rung.step.requests.ok, slo.promised(known.objectives)
    chances = []
    for name in rung.step.broken:
        missed = round((1 - rung.step.good_ratio.get(name, 0.0)) * count)
        chances.append(1 - sum(_binomial(n, count, 1 - promised[name]) for n in range(missed)))
    return min(chances, default=0.0) > _CHANCE


def _binomial(n: int, count: int, share: float) -> float:
    """The probability of exactly `n` of `count`, each of them with this probability, above 0 and below 1."""
    ways = math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
    return math.exp(ways + n * math.log(share) + (count - n) * math.log1p(-share))


def _above(known: SearchState) -> list[Trial]:
    """The rungs that broke, above all that held."""
    held = max((rung.came_rps for rung in known.rungs if rung.held), default=0.0)
    return [rung for rung in known.rungs if rung.broke and rung.came_rps > held * (1 + _SAME)]


def _foreseen(known: SearchState, rung: Trial) -> bool:
    if known.forecast_rps is None or rung.came_rps > TOP * known.forecast_rps:
        return False
    if rung.precaution:
        return rung.on_twin_too
    return rung.predicted is not None and known.worst_over(rung) > _FORESEEN


def doubt(known: SearchState) -> str | None:
    """Why the model is not to be believed; None if it is."""
    broke = min((rung.came_rps for rung in too_much(known)), default=math.inf)
    if known.forecast_rps and broke < _REFUTES * known.forecast_rps:
        return f"{broke:.3g} requests/s were too many, of {known.forecast_rps:.3g} that the model of this server holds"
    # By the model it should have broken; one whose queue has not filled holds on the twin as well.
    stood = _stood(known, lambda rung: known.worst_over(rung) > 1 / _FORESEEN)
    if known.forecast_rps and _REFUTES * stood > known.forecast_rps:
        return f"{stood:.3g} requests/s were in time, of {known.forecast_rps:.3g} that the model says it holds"
    reasons = [unexplained(rung, known.objectives, known.nearly) for rung in known.tops()]
    return next(iter(reasons), None) if all(reasons) else None


def _stood(known: SearchState, of: Callable[[Trial], bool] = lambda _: True) -> float:
    """The highest rate, of such rungs, that was judged by many requests and held."""
    held = (rung for rung in known.rungs if rung.held and rung.steady and rung.step.requests.ok >= ENOUGH)
    return max((rung.came_rps for rung in held if of(rung)), default=0.0)


def nothing(known: SearchState) -> Capacity:
    """Where what was seen tells no law, or none with a capacity."""
    if known.twin is not None:
        return Capacity(mode=FORECAST, reason="no rate holds the objectives, by what was seen of the server")
    most = max((rung.came_rps for rung in known.rungs), default=known.model.live_rps)
    words = f"at up to {most:.3g} requests/s too few ran at a time to tell what one more costs"
    return Capacity(mode=FORECAST, reason=f"not enough evidence: {words}")


def by_model(known: SearchState, knee: KneeEstimate, *, verified: bool = True) -> Capacity:
    """The knee of a model that is believed: verified, where that is possible and allowed, or a forecast."""
    crowded = known.model.max_num_seqs is None and _MORE * known.model.most_running < knee.would_run
    # What was too much is too much, whatever the model says of it; but what the guard ended as a precaution broke no
    # objective of ours, so it may have been a little less than that.
    most = min(
        (rung.came_rps * (1 + FLOOR if rung.precaution else 1.0) for rung in too_much(known)),
        default=math.inf,
    )
    rate = min(knee.rate_rps, most)
    low, high = knee.interval
    limits = knee.bottleneck
    return Capacity(
        mode=VERIFIED if verified and _verified(known, knee) and not crowded else FORECAST,
        requests_per_second=rate,
        lower=low * rate / knee.rate_rps,
        upper=min(high, most * (1 + _SURE)),
        output_tokens_per_second=rate * mean_length(known.model.workload.output_tokens),
        limiting=knee.limiting,
        bottleneck=limits.name if limits else None,
        advice=limits.advice if limits else None,
        bottleneck_gain=limits.gain if limits else None,
        roofline=known.model.roofline(),
        reason=f"assumes max_num_seqs >= {knee.would_run:.0f}; set capacity.server.max_num_seqs" if crowded else None,
    )


def _verified(known: SearchState, knee: KneeEstimate) -> bool:
    """Whether a load near the knee was judged and held, and the knee is sure enough for the word."""
    judged = max((rung.came_rps for rung in known.rungs if rung.held and rung.step.valid), default=0.0)
    low, high = knee.interval
    return REACHED * knee.rate_rps <= judged <= high and high - low <= _SURE * (high + low)


def empirical(known: SearchState, doubted: str) -> Capacity:
    """What the rungs alone say, where the model is refuted."""
    low = _stood(known) or None
    high = ceiling(known)
    tokens = mean_length(known.model.workload.output_tokens)
    if low is not None and high == math.inf:
        return Capacity(
            mode=EMPIRICAL,
            requests_per_second=low,
            lower=low,
            output_tokens_per_second=low * tokens,
            reason=f"no load that was tried broke an objective: the capacity is at least this ({doubted})",
        )
    if low is None or high > low * CLIMB * CLIMB:
        return Capacity(mode=EMPIRICAL, reason=f"{doubted}, and no rung told where the knee is without it")
    rate = math.sqrt(low * high)
    if known.forecast_rps and math.log(rate / known.forecast_rps) > _APART:
        return Capacity(
            mode=EMPIRICAL,
            reason=f"{doubted}; it says {known.forecast_rps:.3g} requests/s, the rungs say {rate:.3g}",
        )
    return Capacity(
        mode=EMPIRICAL,
        requests_per_second=rate,
        lower=low * (1 - FLOOR),
        upper=high * (1 + FLOOR),
        output_tokens_per_second=rate * tokens,
        reason=f"measured without a model: {doubted}",
        roofline=known.model.roofline(believed=False),
    )

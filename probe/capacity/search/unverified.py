"""Why a search's capacity is not verified yet, and what load would verify it. Pure.

In: a SearchState and its knee. Out: the rate of one more step, the shortcoming as a sentence, and the budget of a run
that would do better.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from probe.capacity.model.hints import SET_MAX_NUM_SEQS
from probe.capacity.search.knee_estimate import FEWEST_PARTS, KneeEstimate
from probe.capacity.search.search_state import SAME_RATE, TOP_SHARE, VERIFYING_SHARE, SearchState
from probe.capacity.search.search_step import SearchStep

# Half of an interval, relative, above which a capacity is not called verified (docs/capacity.md).
MAX_VERIFIED_HALF = 0.08
_MORE = 1.25  # times the most requests running in any snapshot may run as well: between polls more do
# GPU clocks follow the temperature, and a search of a minute meets one speed. Another speed shows at any load, so a
# step that only waits for one is light; but at 20 % of the knee too few requests run to fit a cost.
_LEAST_SPAN_S = 100.0
_STEP_S = 30.0
_DRIFT_SHARE = 0.35
_ROOM = 1.1  # seconds of a run for each second of its steps: between them the search computes
# By how much the twin's TPOT or E2E may be off. In runs on vLLM servers of known timing, it was 13 to 24 % where the
# capacity was more than 10 % wrong; where it was right it was mostly at most 7 %, and up to 14 %
# (docs/evidence/accuracy.md).
_OFF = 0.1
_AGAIN_SHARE = 0.9  # of the knee: a step there verifies it, and is no more likely to break it than to hold
_MOST_NEAR = 4  # steps near the knee, at most, to show whether max_num_seqs is the likely one: in some, more run


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds and tokens: of a step, of a run so far, or at most."""

    seconds: float
    tokens: float

    def plus(self, other: "Spending", times: float = 1.0) -> "Spending":
        return Spending(self.seconds + times * other.seconds, self.tokens + times * other.tokens)

    def is_within(self, budget: "Spending") -> bool:
        return self.seconds <= budget.seconds and self.tokens <= budget.tokens


UNLIMITED = Spending(math.inf, math.inf)


def is_crowded(state: SearchState, knee: KneeEstimate) -> bool:
    """Return whether max_num_seqs is unknown and may allow fewer requests than would run at the knee.

    It is taken to allow as many as ever ran, and a few more; `knee` says whether the usual limit would be too low.
    """
    model = state.model
    if model.max_num_seqs is not None:
        return False
    return max(_MORE * model.most_running, model.allowed_running) < knee.would_run or knee.usual_limit_matters


def assumption(state: SearchState, knee: KneeEstimate) -> str:
    """Return what a knee needs where max_num_seqs, a limit of each engine, is not known."""
    return f"assumes max_num_seqs >= {math.ceil(_MORE * knee.would_run / state.model.engines)}; {SET_MAX_NUM_SEQS}"


def shortcoming(state: SearchState, knee: KneeEstimate) -> str | None:
    """Return what is missing to verify a knee: a judged load near it that held, or a narrow interval; None: nothing."""
    if (unknown := _unknown(state, knee)) is not None:
        return unknown
    if (held_rps := certainly_held_rps(state)) > knee.interval[1]:
        return f"{held_rps:.3g} requests/s held, more than the model says"
    if _judged_rps(state) < VERIFYING_SHARE * knee.rate_rps:
        return f"no load of {VERIFYING_SHARE * knee.rate_rps:.3g} requests/s or more held"
    # Rounded up: 8.2 % is not 8 %.
    if (half := _half(knee)) > MAX_VERIFIED_HALF:
        return f"interval {math.ceil(100 * half):d} %, {100 * MAX_VERIFIED_HALF:.0f} % needed"
    if (span_s := _span_s(state)) < _LEAST_SPAN_S:
        return f"the steps took {span_s:.0f} s, {_LEAST_SPAN_S:.0f} s needed, since a server's speed may drift"
    return None


def steps_lacking(state: SearchState, knee: KneeEstimate) -> int:
    """Return how many more steps near the knee would verify it, about; 0 if load would not help."""
    if is_crowded(state, knee) or knee.least_half > MAX_VERIFIED_HALF:
        return 0
    if _span_s(state) < _LEAST_SPAN_S:
        return math.ceil((_LEAST_SPAN_S - _span_s(state)) / _STEP_S)
    if _unknown(state, knee) is not None:
        return 0  # with as many steps as others need, the model is still wrong
    parts = len(state.model.informative_parts)
    if parts < FEWEST_PARTS:
        return FEWEST_PARTS - parts
    spread, needed = (half**2 - knee.least_half**2 for half in (_half(knee), MAX_VERIFIED_HALF))
    # The variance of a mean falls with the number of its parts. With few parts it is itself hardly known.
    return min(max(math.ceil(parts * (spread / needed - 1)), 1), parts) if needed > 0 else 0


def load_to_verify(state: SearchState, knee: KneeEstimate, limit_rps: float) -> tuple[float, float] | None:
    """Return the rate of one more step, at most `limit_rps`, and how many seconds it should last, 0 where any will do.

    None if the knee is verified or load would not help.
    """
    if shortcoming(state, knee) is None:
        return None
    judged_rps, top_rps = _judged_rps(state), min(TOP_SHARE * knee.rate_rps, limit_rps)
    if is_crowded(state, knee):
        # Nearer to the knee it shows whether so many run; a repeat of what held shows it when, by chance, more run.
        if judged_rps < VERIFYING_SHARE * knee.rate_rps:
            return (top_rps, 0.0) if top_rps > judged_rps else None
        return (min(judged_rps, top_rps), 0.0) if _may_show_limit(state, knee, top_rps) else None
    may_verify = steps_lacking(state, knee) > 0
    if may_verify and judged_rps < VERIFYING_SHARE * knee.rate_rps:
        # Where loads above the limit were too high already, none below it would show that the knee holds.
        return (top_rps, 0.0) if top_rps >= VERIFYING_SHARE * knee.rate_rps else None
    # What is measured for longer is nearer to the server's usual speed, verified or not.
    if (lacking_s := max(_LEAST_SPAN_S - _span_s(state), 0.0)) > 0:
        return min(_DRIFT_SHARE * knee.rate_rps, limit_rps), lacking_s
    return (min(_AGAIN_SHARE * knee.rate_rps, limit_rps), 0.0) if may_verify else None


def _may_show_limit(state: SearchState, knee: KneeEstimate, top_rps: float) -> bool:
    """Return whether another step near the knee may show that more requests run than the likely max_num_seqs."""
    near = [each for each in state.steps if each.load_rps >= VERIFYING_SHARE * knee.rate_rps]
    is_safe = not any(each.has_broken for each in near) and top_rps >= VERIFYING_SHARE * knee.rate_rps
    return is_safe and len(near) < _MOST_NEAR and _MORE * state.model.most_running >= knee.would_run


def advice(state: SearchState, knee: KneeEstimate, spent: Spending, step: Spending) -> str | None:
    """Return what is missing to verify a knee and how to get it; None if nothing is.

    `spent`: by this run; `step`: the cost of one more step near the knee.
    """
    lacks = shortcoming(state, knee)
    if lacks is None or _unknown(state, knee) is not None:
        return lacks
    steps = steps_lacking(state, knee)
    if not steps:
        return f"{lacks}; more load would not narrow it, since {knee.least_because}"
    more = Spending(0.0, 0.0).plus(step, _ROOM * steps)
    whole = spent.plus(more)
    options = f"--max-seconds {_rounded(whole.seconds):.0f} --max-tokens {_rounded(whole.tokens):.0f}"
    return f"{lacks}; `kneewatch ramp {options}` may verify it: {more.seconds:.0f} s and {more.tokens:,.0f} tokens more"


def _unknown(state: SearchState, knee: KneeEstimate) -> str | None:
    """Return what is unknown about the server and keeps a knee from being verified, or None."""
    if is_crowded(state, knee):
        return assumption(state, knee)
    for name in ("tpot", "e2e"):  # times of a whole answer: they hardly scatter
        off = state.correction.get(name, 1.0)
        if abs(math.log(off)) > math.log1p(_OFF):
            was = f"{name.upper()} was {off:.2f} times what the model of this server says"
            return f"{was}, so it does not know what takes the time"
    return None


def _half(knee: KneeEstimate) -> float:
    """Return half of the interval, relative."""
    low, high = knee.interval
    return (high - low) / (high + low)


def _span_s(state: SearchState) -> float:
    """Return the seconds from the beginning of the first step to the end of the last."""
    windows = [step.run.window_ns for step in state.steps]
    return (windows[-1][1] - windows[0][0]) * 1e-9 if windows else 0.0


def _judged_rps(state: SearchState, of: Callable[[SearchStep], bool] = lambda _: True) -> float:
    """Return the highest load of such steps that was judged and held."""
    held = (step for step in state.steps if step.has_held and step.summary.valid)
    return max((step.load_rps for step in held if of(step)), default=0.0)


def certainly_held_rps(state: SearchState) -> float:
    """Return the highest load that held twice, or although the twin breaks with the same requests.

    One step that is too short for its queue to fill holds on the twin as well.
    """

    def is_certain(step: SearchStep) -> bool:
        again = (each for each in state.steps if each is not step and each.has_held and each.summary.valid)
        twice = any(each.load_rps >= (1 - SAME_RATE) * step.load_rps for each in again)
        return twice or state.worst_objective_ratio(step) > 1

    return _judged_rps(state, is_certain)


def _rounded(value: float) -> float:
    """Return the value rounded up to two digits."""
    digit = 10.0 ** math.floor(math.log10(max(value, 1.0)) - 1)
    return math.ceil(value / digit) * digit

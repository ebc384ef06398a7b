"""The knee of fixed steps, all closed-loop or all open-loop, and why there is none. Pure.

In: the steps' summaries and why the run ended. Out: a Capacity of mode "empirical", or the reason why there is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from probe.capacity.search.load_words import describe_load, option_of
from probe.core import reasons
from probe.core.objectives import AVAILABILITY
from probe.core.reasons import CUT_SHORT, OVER_OBJECTIVE_SECONDS, REJECTIONS, ReasonKind
from probe.core.result import Capacity, Stopped
from probe.core.step import Pattern, StepPlan, StepSummary, total_rps


class Cause(NamedTuple):
    """Why there is no knee, or no higher step, and what to do about it: clauses without a full stop."""

    why: str
    advice: str | None = None


def below(plan: StepPlan) -> Cause:
    """Return that the knee is below this step's load, and how to begin with less."""
    if plan.arrivals is not None:
        now = plan.arrivals.speed if plan.arrivals.pattern is Pattern.REPLAY else plan.arrivals.rate_rps
        levels = ",".join(f"{now / by:.3g}" for by in (8, 4, 2))
        return Cause(f"the knee is below {describe_load(plan)}", f"begin lower, e.g. {option_of(plan)} {levels}")
    concurrency = plan.concurrency
    lower = [str(2**i) for i in range(concurrency.bit_length()) if 2**i < concurrency]
    if not lower:
        return Cause("one request in flight is too much already", f"{RETRY}, or loosen the objective")
    levels = ",".join(lower)
    return Cause(f"the knee is below {concurrency} requests in flight", f"begin lower, e.g. --concurrency {levels}")


def no_capacity(mode: str, cause: Cause, limiting: str | None = None) -> Capacity:
    """Return a capacity without a rate, for this cause."""
    return Capacity(mode=mode, limiting=limiting, reason=cause.why, advice=cause.advice)


RETRY = "retry when the server is idle"
MODE = "empirical"  # measured, with no model behind it
# A step that is shorter than this, with fewer requests too, may hold a load at which queues still grow.
LONG_S = 180.0
MANY_REQUESTS = 1000
_SHORT = (
    "judged by a step of {seconds:.0f} s, in which the longest queues have no time to grow: the capacity may be up to a"
    " tenth lower"
)
_LATE = "this machine was late in the step that held: it met its objectives even so, at the load that was really sent"
_CLOSED = "measured in a closed loop, which sends a request only after an answer: bursts of arrivals are not in it"

_OVER_OBJECTIVE = Stopped("budget", OVER_OBJECTIVE_SECONDS.word)
# The note on a capacity where several servers answered, without a guard.
TOGETHER = "several servers answer at this address, so user traffic is unknown and not subtracted"


def find_knee(steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
    """Return the highest valid step that held every objective, as a capacity.

    The true knee lies between that step and the next one up that did not hold: one that broke an objective, or was over
    an objective for as long as the budget allows, or in which the server refused requests, which is not within the
    objective of availability. Another step that the guard stopped gives no bound. Of steps with the same
    load, the longest that was judged counts: the others hardly show queues that grow slowly.
    `lower` is the throughput held. `upper`, in a closed loop, is what the broken step reached or, where throughput had
    already collapsed there, the most it could have reached (throughput grows no faster than concurrency); in an
    open loop it is the rate offered in the broken step. None where nothing broke; there is no knee then.
    Steps that are invalid for another reason are ignored. User traffic counts in all of these, so that the capacity
    does not depend on its amount during the run. Where it is unknown in the step that held, the rest is a
    lower bound: there is no `upper`. In the step above, where cancelled requests hide it, it is taken to be the same.
    """
    ended = reasons.find_end(stopped)
    if ended.kind is ReasonKind.VOID:
        return no_capacity(MODE, Cause(ended.explained, ended.advice))
    over = [step for step in steps if stopped == _OVER_OBJECTIVE and step.reason == CUT_SHORT.word]
    spent = [step for step in over if not step.is_late]
    spent += [step for step in steps if step.tripped == REJECTIONS.word and step not in spent]
    steps = [step for step in steps if not _is_repeated(step, [*(s for s in steps if s.valid), *spent])]
    held = [step for step in steps if step.valid and not step.broken and step.throughput_rps > 0]
    best = max(held, key=_load, default=None)
    broke = [step for step in steps if step.valid and step.broken] + spent
    above = min((s for s in broke if best is None or _is_above(s, best)), key=_load, default=None)
    limiting = _limiting(above, stopped)
    if best is None:
        return no_capacity(MODE, _why_none(steps, stopped), limiting)
    higher = _higher(steps, best, stopped) if not broke else None
    return Capacity(
        mode=MODE,
        requests_per_second=_rate(best),
        lower=_rate(best),
        upper=_upper(best, above) if above and _users_rps(best) is not None else None,
        output_tokens_per_second=_output(best) + (best.users.output_tokens_per_second or 0.0),
        knee_concurrency=best.plan.concurrency if above and best.plan.arrivals is None else None,
        limiting=limiting,
        reason="; ".join(_caveats(broke, best, higher)) or None,
        advice=higher.advice if higher is not None else None,
    )


def is_long(step: StepSummary) -> bool:
    """Return whether a step lasted long enough, or had enough requests, to judge a knee by."""
    return step.seconds >= LONG_S or step.requests.ok + step.requests.failed >= MANY_REQUESTS


def _is_repeated(step: StepSummary, judged: Sequence[StepSummary]) -> bool:
    """Return whether the same load was judged for longer as well."""
    return any(other.plan.load == step.plan.load and other.seconds > step.seconds for other in judged)


def _load(step: StepSummary) -> float:
    return step.load


def _rate(step: StepSummary) -> float:
    """Return the rate of probe requests and users; without users where they are unknown."""
    return total_rps(step.certain_rps, step.users)


def _is_above(step: StepSummary, best: StepSummary) -> bool:
    """Return whether a step had more load, with its users: they may have sent less than in the best one."""
    is_known = step.plan.arrivals is not None and _users_rps(step) is not None and _users_rps(best) is not None
    is_more = not is_known or total_rps(_load(step), step.users) > total_rps(_load(best), best.users)
    return _load(step) > _load(best) and is_more


def _output(step: StepSummary) -> float:
    """Return the output tokens a second of the probe's throughput."""
    share = step.certain_rps / step.throughput_rps if step.throughput_rps else 1.0
    return step.output_tokens_per_second * share


def _users_rps(step: StepSummary) -> float | None:
    return step.users.requests_per_second


def _limiting(above: StepSummary | None, stopped: Stopped) -> str | None:
    if above is not None and above.tripped == REJECTIONS.word:
        return REJECTIONS.word
    if above is not None and above.broken:
        is_refused = above.broken[0] == AVAILABILITY and 2 * above.rejected > above.requests.failed
        return REJECTIONS.word if is_refused else above.broken[0]
    if above is not None and stopped == _OVER_OBJECTIVE:
        # The step was cut short and not judged, so take the objective that the fewest of its requests met.
        latencies = {name: ratio for name, ratio in above.good_ratio.items() if name in ("ttft", "tpot")}
        return min(latencies, key=lambda name: latencies[name], default="availability")
    return stopped.reason if reasons.find_end(stopped).is_overload else None


def _upper(best: StepSummary, above: StepSummary) -> float:
    if _users_rps(above) is None:
        above = replace(above, users=best.users)
    if above.plan.arrivals is not None:
        # Chance may send more requests than planned; in a step that was cut short the measured rate says little.
        offered = max(above.offered_rps, _load(above)) if above.valid else _load(above)
        return max(total_rps(offered, above.users), _rate(best))
    if above.valid and _rate(above) >= _rate(best):
        return _rate(above)
    return best.certain_rps * above.plan.concurrency / best.plan.concurrency + (_users_rps(best) or 0.0)


def _why_none(steps: Sequence[StepSummary], stopped: Stopped) -> Cause:
    """Return why there is no knee."""
    judged = min((step for step in steps if step.valid), key=_load, default=None)
    if judged is not None and judged.broken and judged.requests.ok:
        which, broke = describe_load(judged.plan), ", ".join(judged.broken)
        lower = _unjudged([step for step in steps if _load(step) < _load(judged)], stopped)
        begin = below(judged.plan)
        broken = Cause(f"the lowest step judged, {which}, already broke {broke}: {begin.why}", begin.advice)
        return _together([broken, *lower])
    if judged is not None:
        return Cause(f"no request was answered at {describe_load(judged.plan)}; the first failure says why")
    if stopped.by == "guard":
        return guarded(steps, stopped.reason)
    if stopped == _OVER_OBJECTIVE and steps and not any(step.is_late for step in steps):
        begin = below(min(steps, key=_load).plan)
        over = "the first step was over an objective for as long as the budget allows"
        return Cause(f"{over}: {begin.why}", begin.advice)
    if steps:
        return _together(_unjudged(steps, stopped) or [_end(stopped)])
    return ended_before_load(stopped)


def ended_before_load(stopped: Stopped) -> Cause:
    """Return why a run ended before its first step, where the guard did not end it."""
    cause = _end(stopped)
    # Requests sent alone were over the objective, so the server is slow without load.
    return Cause(cause.why, reasons.SLOW_UNLOADED.advice) if stopped == _OVER_OBJECTIVE else cause


def guarded(steps: Sequence[StepSummary], reason: str | None) -> Cause:
    """Return at what the guard stopped the run, and why."""
    trip = reasons.find(reasons.TRIPS, reason) or reasons.ENDED_BY_GUARD
    cut = min((step for step in steps if step.reason == CUT_SHORT.word), key=_load, default=None)
    if cut is not None:
        when = "the first step" if len(steps) == 1 else f"the step at {describe_load(cut.plan)}"
    else:
        when = "the run before a step could be judged" if steps else "the run before its first step"
    stopped = f"the guard stopped {when} ({reason})"
    if not trip.is_overload:
        return Cause(f"{stopped}: {trip.why}", trip.advice)
    if cut is None:
        return Cause(f"{stopped}: {trip.why}", RETRY)
    begin = below(cut.plan)
    return Cause(f"{stopped}: {begin.why}", begin.advice)


def _together(causes: Sequence[Cause]) -> Cause:
    """Return several causes as one, each clause once."""
    whys = dict.fromkeys(cause.why for cause in causes)
    advice = dict.fromkeys(cause.advice for cause in causes if cause.advice)
    return Cause("; ".join(whys), "; ".join(advice) or None)


def _unjudged(steps: Sequence[StepSummary], stopped: Stopped) -> list[Cause]:
    """Return each cause why some of these steps were not judged."""
    words = sorted({step.reason for step in steps if step.reason})
    return [_end(stopped) if word == CUT_SHORT.word else unjudged(word) for word in words]


def unjudged(word: str) -> Cause:
    """Return why a step was not judged."""
    reason = reasons.find(reasons.UNJUDGED, word)
    return Cause(reason.explained, reason.advice) if reason else Cause(f"a step was not judged ({word})")


def _end(stopped: Stopped) -> Cause:
    """Return why the run ended."""
    reason = reasons.find_end(stopped)
    reason = reasons.ENDED_BY_GUARD if reason.is_overload else reason
    word = f" ({stopped.reason})" if stopped.reason and reason is not reasons.ENDED_BY_PLAN else ""
    return Cause(f"{reason.why}{word}", reason.advice)


def _caveats(broke: Sequence[StepSummary], best: StepSummary, higher: Cause | None) -> Iterator[str]:
    """Yield what a reader has to know about the capacity; `higher`: why no higher step broke, if none did."""
    below = [describe_load(step.plan) for step in broke if not _is_above(step, best)]
    if below:
        yield f"not monotone: {below[0]} broke an objective at or below the knee; measure again"
    elif broke and _users_rps(best) is None:
        yield "user traffic is unknown and not added, so the capacity is at least this"
    elif higher is not None:
        yield "no step broke an objective: the capacity is at least this"
        if higher.why:
            yield higher.why
    if best.is_late:
        yield _LATE
    if not is_long(best):
        yield _SHORT.format(seconds=best.seconds)
    if best.plan.arrivals is None:
        yield _CLOSED


def _higher(steps: Sequence[StepSummary], best: StepSummary, stopped: Stopped) -> Cause:
    """Return why no step above the best one was judged; "" where there was none."""
    cut = next((step for step in steps if step.reason == CUT_SHORT.word and _load(step) > _load(best)), None)
    if cut is not None and reasons.find_end(stopped).is_overload:
        return Cause(f"the guard stopped {describe_load(cut.plan)} before it could be judged ({stopped.reason})")
    above = _unjudged([step for step in steps if _load(step) > _load(best)], stopped)
    ended = [] if stopped.by == "done" else [_end(stopped)]
    return _together([*above, *ended] or [Cause("", f"raise {option_of(best.plan)} to find the knee")])

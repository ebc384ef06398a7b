"""The knee of a series of fixed steps, all closed-loop or all open-loop. Pure.

In: the steps' summaries and why the run ended. Out: a Capacity of mode "empirical", or the reason why there is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.capacity.search.load_words import below, describe_load, option_of
from probe.core.result import Capacity, Stopped
from probe.core.step import StepSummary
from probe.load.step_summary import CUT_SHORT, HELD_BACK, MIN_REQUESTS
from probe.observe.guard import (
    ASLEEP,
    OTHER_SERVER,
    OVERLOAD,
    RATE_LIMITED,
    REPLICAS_CHANGED,
    SERVER_RESTARTED,
    SEVERAL_SERVERS,
)

MODE = "empirical"  # measured, with no model behind it
# A step that is shorter than this, with fewer requests too, may hold a load at which queues still grow.
LONG_S, MANY_REQUESTS = 180.0, 1000
_SHORT = (
    "judged by a step of {seconds:.0f} s, in which the longest queues have no time to grow: the capacity may be up to a"
    " tenth lower"
)
_CLOSED = "measured in a closed loop, which sends a request only after an answer: bursts of arrivals are not in it"

# The only reason of the budget that means a slow server rather than a long run.
OVER_OBJECTIVE = "over_objective_seconds"
_OVER_OBJECTIVE = Stopped("budget", OVER_OBJECTIVE)
# Reasons why a step was not judged, with a hint.
VOID = {
    "too_few_requests": f"fewer than {MIN_REQUESTS} requests were answered in a step; give it more time or requests",
    "client_bound": "this machine was too late to judge a step; use a quieter machine, more --workers or a looser"
    " objective",
    HELD_BACK: "the answers arrive at once instead of token by token, so TPOT and ITL cannot be judged; let the proxy"
    " pass streams on (nginx: proxy_buffering off), measure behind it, or remove the tpot and itl objectives",
    "worker_lost": "a load worker died, or did not run for seconds, in a step; look in this machine's log for a kill"
    " for memory or a stop",
}
# What ended a run before a step was complete, with a hint.
_ENDED = {
    "budget": "the budget ran out; raise it",
    "interrupt": "the run was interrupted; let the next one finish",
    "error": "an error ended the run; measure again",
    "guard": "the guard ended the run before a higher step",
}
_RATE_LIMIT = (
    "requests were refused with HTTP 429, which is a rate limit or a full queue, and no knee; raise the limit for"
    " Kneewatch's key, or measure behind the gateway"
)
# After a stop because requests or polls failed.
_NO_KNEE = "that is no knee; look at the server's log, then measure again"
# Reasons that are more specific than the kind of end: budgets outside the run, and reports too late for the guard.
_BY_REASON = {
    "window": "the window of the schedule closed; let the run begin earlier, or make it shorter",
    "tokens_per_day": "the tokens of the day were spent; raise tokens_per_day, or measure less often",
    "client_late": "requests were reported too late for the guard; use a quieter machine or, with Ray, dedicated nodes",
}


# The guard's reasons that leave no capacity: the steps are not all of the server that users get.
NOT_ONE_SERVER = {
    SERVER_RESTARTED: "the server restarted during the run, so its data are of two servers; measure again",
    SEVERAL_SERVERS: "several servers answer at this address, and not all of their metrics pages are read, so the guard"
    " is blind; set metrics_urls to the page of each, or measure each at its own address",
    REPLICAS_CHANGED: "a replica behind the address came or went during the run, so its data are of two servers;"
    " measure while their number does not change",
    ASLEEP: "the server fell asleep; measure again",
    OTHER_SERVER: "the metrics page counted none of the run's requests, so it is another server's and guards nothing;"
    " set metrics_url to the page of the server at base_url",
}


# What a capacity is of where several servers answered, without a guard.
TOGETHER = "measured at an address where several servers answer: user traffic is not known, and does not count"


def find_knee(steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
    """Return the highest valid step that held every objective, as a capacity.

    The true knee lies between that step and the next one up that did not hold: one that broke an objective, or was over
    an objective for as long as the budget allows. A step that the guard stopped gives no bound. Of steps with the same
    load, the longest that was judged counts: the others hardly show queues that grow slowly.
    `lower` is the throughput held. `upper`, in a closed loop, is what the broken step reached or, where throughput had
    already collapsed there, what it could have reached at most (throughput grows no faster than concurrency); in an
    open loop it is the rate offered in the broken step. None where nothing broke; there is no knee then.
    Steps that are invalid for another reason are ignored. User traffic counts in all of these, so that the capacity
    does not depend on how much of it there was during the run. Where it is unknown in the step that held, the rest is a
    lower bound: there is no `upper`. In the step above, where cancelled requests hide it, it is taken to be the same.
    """
    if stopped.reason in NOT_ONE_SERVER:
        return Capacity(mode=MODE, reason=f"{NOT_ONE_SERVER[stopped.reason]} ({stopped.reason})")
    spent = [step for step in steps if stopped == _OVER_OBJECTIVE and step.reason == CUT_SHORT]
    steps = [step for step in steps if not _is_repeated(step, [*(s for s in steps if s.valid), *spent])]
    held = [step for step in steps if step.valid and not step.broken and step.throughput_rps > 0]
    best = max(held, key=_load, default=None)
    broke = [step for step in steps if step.valid and step.broken] + spent
    above = min((s for s in broke if best is None or _load(s) > _load(best)), key=_load, default=None)
    limiting = _limiting(above, stopped)
    if best is None:
        return Capacity(mode=MODE, limiting=limiting, reason=_why_none(steps, stopped))
    return Capacity(
        mode=MODE,
        requests_per_second=_rate(best),
        lower=_rate(best),
        upper=_upper(best, above) if above and _users_rps(best) is not None else None,
        output_tokens_per_second=best.output_tokens_per_second + (best.users.output_tokens_per_second or 0.0),
        knee_concurrency=best.plan.concurrency if above and best.plan.arrivals is None else None,
        limiting=limiting,
        reason="; ".join(_caveats(steps, broke, best, stopped)) or None,
    )


def is_long(step: StepSummary) -> bool:
    """Return whether a step lasted long enough, or had enough requests, to judge a knee by."""
    return step.seconds >= LONG_S or step.requests.ok + step.requests.failed >= MANY_REQUESTS


def _is_repeated(step: StepSummary, judged: Sequence[StepSummary]) -> bool:
    """Return whether the same load was judged for longer as well."""
    return any(_load(other) == _load(step) and other.seconds > step.seconds for other in judged)


def _is_overload(stopped: Stopped) -> bool:
    return stopped.by == "guard" and stopped.reason in OVERLOAD


def _load(step: StepSummary) -> float:
    return step.plan.load


def _rate(step: StepSummary) -> float:
    """Return the rate of probe requests and users; without users where they are unknown."""
    return step.throughput_rps + (_users_rps(step) or 0.0)


def _users_rps(step: StepSummary) -> float | None:
    return step.users.requests_per_second


def _limiting(above: StepSummary | None, stopped: Stopped) -> str | None:
    if above is not None and above.broken:
        return above.broken[0]
    if above is not None and stopped.reason == OVER_OBJECTIVE:
        # The step was cut short and not judged, so take the objective that the fewest of its requests met.
        latencies = {name: ratio for name, ratio in above.good_ratio.items() if name in ("ttft", "tpot")}
        return min(latencies, key=lambda name: latencies[name], default="availability")
    return stopped.reason if _is_overload(stopped) else None


def _upper(best: StepSummary, above: StepSummary) -> float:
    if _users_rps(above) is None:
        above = replace(above, users=best.users)
    if above.plan.arrivals is not None:
        # Chance may send more requests than planned; in a step that was cut short the measured rate says little.
        offered = max(above.offered_rps, _load(above)) if above.valid else _load(above)
        return max(offered + (_users_rps(above) or 0.0), _rate(best))
    if above.valid and _rate(above) >= _rate(best):
        return _rate(above)
    return best.throughput_rps * above.plan.concurrency / best.plan.concurrency + (_users_rps(best) or 0.0)


def _why_none(steps: Sequence[StepSummary], stopped: Stopped) -> str:
    """Return a sentence: why there is no knee, and what to do about it."""
    judged = min((step for step in steps if step.valid), key=_load, default=None)
    if judged is not None and judged.broken and judged.requests.ok:
        which, broke = describe_load(judged.plan), ", ".join(judged.broken)
        lower = _voided([step for step in steps if _load(step) < _load(judged)], stopped)
        return "; ".join([f"the lowest step judged, {which}, already broke {broke}: {below(judged.plan)}", *lower])
    if judged is not None:
        return f"no request was answered at {describe_load(judged.plan)}; the first failure says why"
    if stopped.by == "guard":
        return guarded_words(steps, stopped.reason)
    if stopped == _OVER_OBJECTIVE and steps:
        first = min(steps, key=_load)
        return f"the first step was over an objective for as long as the budget allows: {below(first.plan)}"
    return "; ".join(_voided(steps, stopped)) or _ended(stopped)


def guarded_words(steps: Sequence[StepSummary], reason: str | None) -> str:
    """Return a sentence: at what the guard stopped the run, why, and what to do about it."""
    cut = min((step for step in steps if step.reason == CUT_SHORT), key=_load, default=None)
    if reason == RATE_LIMITED:
        return f"{_RATE_LIMIT} ({reason})"
    if cut is None:
        cause = "try again when the server is calm" if reason in OVERLOAD else "the first failure says why"
        when = "before a step could be judged" if steps else "before its first step"
        return f"the guard stopped the run {when} ({reason}); {cause}"
    where = "the first step" if len(steps) == 1 else f"the step at {describe_load(cut.plan)}"
    advice = below(cut.plan) if reason in OVERLOAD else _NO_KNEE
    return f"the guard stopped {where} ({reason}): {advice}"


def _voided(steps: Sequence[StepSummary], stopped: Stopped) -> list[str]:
    """Return a sentence for each reason why some of these steps were not judged."""
    reasons = sorted({step.reason for step in steps if step.reason})
    return [
        _ended(stopped) if reason == CUT_SHORT else f"{VOID.get(reason, 'a step was not judged')} ({reason})"
        for reason in reasons
    ]


def _ended(stopped: Stopped) -> str:
    why = f" ({stopped.reason})" if stopped.reason else ""
    if stopped.by == "guard" and not _is_overload(stopped):
        return f"the guard ended the run{why}: {_RATE_LIMIT if stopped.reason == RATE_LIMITED else _NO_KNEE}"
    words = _BY_REASON.get(stopped.reason or "") or _ENDED.get(stopped.by, "no step was complete")
    return f"{words}{why}"


def _caveats(
    steps: Sequence[StepSummary], broke: Sequence[StepSummary], best: StepSummary, stopped: Stopped
) -> Iterator[str]:
    """Yield what a reader has to know about the capacity."""
    below = [describe_load(step.plan) for step in broke if _load(step) <= _load(best)]
    if below:
        yield f"not monotone: {below[0]} broke an objective at or below the knee; measure again"
    elif broke and _users_rps(best) is None:
        yield "the load of users is not known, and counts in the capacity: it is at least this"
    elif not broke:
        yield "no step broke an objective: the capacity is at least this"
        yield _higher(steps, best, stopped)
    if not is_long(best):
        yield _SHORT.format(seconds=best.seconds)
    if best.plan.arrivals is None:
        yield _CLOSED


def _higher(steps: Sequence[StepSummary], best: StepSummary, stopped: Stopped) -> str:
    """Return why no step above the best one was judged, or what to do about it."""
    cut = next((step for step in steps if step.reason == CUT_SHORT and _load(step) > _load(best)), None)
    if cut is not None and _is_overload(stopped):
        return f"the guard stopped {describe_load(cut.plan)} before it could be judged ({stopped.reason})"
    higher = [step for step in steps if _load(step) > _load(best)]
    ended = [] if stopped.by == "done" else [_ended(stopped)]
    why = dict.fromkeys([*_voided(higher, stopped), *ended])
    return "; ".join(why) or f"raise {option_of(best.plan)} to find the knee"

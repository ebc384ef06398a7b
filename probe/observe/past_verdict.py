"""Whether a server was healthy for its users in the last hours, by what a Prometheus has of it. Pure.

In: a ServerPast. Out: each objective in each five minutes, the verdict over all of them, and the peak. Requests are all
that the server counted, whoever sent them. Where a bound of the server's histogram leaves open whether a request was in
time, the verdict is unknown, never "yes".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from probe.core.objectives import Objective, Objectives
from probe.core.snapshot import UserLoad, UserTotals
from probe.observe.server_past import ServerPast
from probe.observe.user_objectives import Judged, judged

# Latencies of a request that vLLM has a histogram of.
KNOWN = ("ttft", "tpot", "e2e")
USUAL_AVAILABILITY = 0.999  # without an objective
_LEAST = 10  # late or failed requests in five minutes; fewer are chance
_LATELY = 3  # steps
_STUCK = 0.5  # mean requests that run while no token comes
_FAILED = ("error",)
_ALMOST = 0.5


class Health(StrEnum):
    """Whether users got what was promised, worst first."""

    NO = "no"
    AT_TIMES = "at times"
    UNKNOWN = "unknown"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class LatencyPast:
    """One latency: all requests by its objective, in how many steps they certainly missed it, and whether they met it.

    `all`: None where the server's histogram does not say.
    """

    objective: Objective
    all: Judged | None
    missed: Sequence[float]
    is_met: bool | None
    is_met_lately: bool | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One server. `bad`: the steps in which an objective was missed, requests failed, or no token came."""

    health: Health
    latencies: Mapping[str, LatencyPast]
    ended: float | None
    failed: float | None
    failing: Sequence[float]
    stalled: Sequence[float]
    is_down: bool
    unreadable: float | None  # the share of scrapes that failed
    peak: UserLoad
    peak_at_s: float | None

    @property
    def bad(self) -> Sequence[float]:
        missed = {at for one in self.latencies.values() for at in one.missed}
        return sorted({*missed, *self.failing, *self.stalled})


def verdict(past: ServerPast, objectives: Objectives) -> Verdict:
    """Return the verdict on a server."""
    latencies = {name: _latency(past, name, limit) for name, limit in objectives.latencies().items()}
    ended, failed = _ended(past)
    allowed = 1 - (objectives.availability or USUAL_AVAILABILITY)
    failing = [at for at in past.steps if _fails(failed.get(at), ended.get(at), allowed)]
    stalled = list(_stalled(past))
    up = past.values.get("up", {})
    lately, last = past.steps[-_LATELY:], past.steps[-1]
    is_down = up.get(last, 1.0) < _ALMOST
    all_failed, all_ended = (sum(its.values()) if its else None for its in (failed, ended))
    fails_lately = _fails(sum(failed.get(at, 0.0) for at in lately), sum(ended.get(at, 0.0) for at in lately), allowed)
    is_bad = (
        is_down
        or last in stalled
        or fails_lately
        or _fails(all_failed, all_ended, allowed)
        or any(False in (one.is_met, one.is_met_lately) for one in latencies.values())
    )
    is_bad_at_times = bool(failing or stalled or any(one.missed for one in latencies.values()))
    is_good = bool(latencies) and all(one.is_met for one in latencies.values())
    health = Health.NO if is_bad else Health.AT_TIMES if is_bad_at_times else Health.YES if is_good else Health.UNKNOWN
    scrapes = [up[at] for at in past.steps if at in up]
    unreadable = 1 - sum(scrapes) / len(scrapes) if scrapes else None
    load, at_s = _peak(past)
    return Verdict(health, latencies, all_ended, all_failed, failing, stalled, is_down, unreadable, load, at_s)


def _latency(past: ServerPast, name: str, limit: Objective) -> LatencyPast:
    each: dict[float, Judged] = {}
    for at in past.steps if name in KNOWN else ():
        histogram = past.histogram(name, at)
        if histogram is None:
            continue
        one = judged(UserTotals(histograms={name: histogram}), name, limit.within_s)
        if one is not None:
            each[at] = one
    missed = [at for at, one in each.items() if one.slow >= _LEAST and one.is_met(limit.ratio) is False]
    whole = reduce(_added, each.values()) if each else None
    lately = [each[at] for at in past.steps[-_LATELY:] if at in each]
    recent = reduce(_added, lately) if lately else None
    return LatencyPast(
        limit,
        whole,
        missed,
        whole.is_met(limit.ratio) if whole is not None else None,
        recent.is_met(limit.ratio) if recent is not None and (recent.slow >= _LEAST or not recent.slow) else None,
    )


def _added(one: Judged, other: Judged) -> Judged:
    return Judged(
        max(one.bound_s, other.bound_s),
        one.requests + other.requests,
        one.slow + other.slow,
        one.may_be_fast + other.may_be_fast,
        one.may_be_slow + other.may_be_slow,
    )


def _ended(past: ServerPast) -> tuple[dict[float, float], dict[float, float]]:
    """Return the requests that ended in each step, and those of them that failed: by vLLM, or answered with 5xx."""
    ended: dict[float, float] = {}
    failed: dict[float, float] = {}
    for reason, values in past.parts.get("finished", {}).items():
        for at, count in values.items():
            ended[at] = ended.get(at, 0.0) + count
            failed[at] = failed.get(at, 0.0) + (count if reason in _FAILED else 0.0)
    for at, count in past.values.get("http_errors", {}).items():
        more = max(count - failed.get(at, 0.0), 0.0)
        failed[at] = failed.get(at, 0.0) + more
        ended[at] = ended.get(at, 0.0) + more  # what failed before it reached the engine has not finished
    return ended, failed


def _fails(failed: float | None, ended: float | None, allowed: float) -> bool:
    return failed is not None and bool(ended) and failed >= _LEAST and failed > allowed * (ended or 0.0)


def _stalled(past: ServerPast) -> Iterator[float]:
    """Yield the steps in which requests ran or waited all the time, and no token came."""
    tokens = past.values.get("generation_tokens", {})
    running, waiting = past.values.get("running", {}), past.values.get("waiting", {})
    prompts = past.values.get("prompt_tokens", {})
    for at in past.steps:
        is_busy = running.get(at, 0.0) + waiting.get(at, 0.0) >= _STUCK
        if is_busy and tokens.get(at) == 0 and prompts.get(at) == 0:
            yield at


def _peak(past: ServerPast) -> tuple[UserLoad, float | None]:
    """Return the highest requests/s and output tokens/s of any step, and when the former was."""
    requests = past.values.get("requests") or _ended(past)[0]
    tokens = past.values.get("generation_tokens", {})
    at_s = max(requests, key=requests.__getitem__, default=None)
    most = (max(its.values(), default=None) for its in (requests, tokens))
    rps, tps = (None if one is None else one / past.step_s for one in most)
    return UserLoad(rps, tps), at_s if rps else None

"""A target's state in sentences: what users and canaries meet, because of what. Pure."""

from collections.abc import Iterator, Sequence

from probe.core.failure_log import Since, Trouble
from probe.core.objectives import Objectives
from probe.core.snapshot import CrossChecks, EngineMinutes
from probe.core.target_status import CanaryStatus, TargetStatus
from probe.observe.kv_pressure import FULL
from probe.report.cross_check_text import STALLED_S
from probe.report.failure_text import refusal_words
from probe.report.figures import ago, moment, number, percent, short
from probe.web.state import CLEAR, Evidence, users_fail, users_slow

_MINUTE_S = 60.0
_MUCH = 0.5  # of the objective, or of a time


def since_moment(since: Since | None, now_s: float) -> str:
    """Return since when, such as " since 02:49 UTC (3 h ago)"; "" if unknown."""
    if since is None:
        return ""
    age = ago(since.at_s, now_s)
    return f" since {moment(since.at_s, now_s)} ({age if since.is_exact else f'{age} or earlier'})"


def failing_kinds(
    status: TargetStatus, kinds: Sequence[tuple[CanaryStatus | TargetStatus, Evidence]], now_s: float
) -> Iterator[str]:
    """Yield how many canaries of each failing kind failed, why, and since when."""
    for kind, one in kinds:
        if not one.is_failing(status.objectives.availability) or one.failure is None:
            continue
        named = f"canaries of {kind.workload} with {kind.model}: " if isinstance(kind, CanaryStatus) else ""
        counted = _counted(one, kind.trouble)
        outcome = one.failure.outcome.value.replace("_", " ")
        detail = one.failure.detail or "no reason known"
        since = since_moment(kind.trouble.since if kind.trouble is not None else kind.since, now_s)
        last_ok_s = kind.trouble.last_ok_s if kind.trouble is not None else None
        last = f", last answered {ago(last_ok_s, now_s)}" if last_ok_s is not None else ""
        yield f"{named}{counted} failed ({outcome}: {detail}{refusal_words(one.failure)}){since}{last}"


def _counted(one: Evidence, trouble: Trouble | None) -> str:
    """Return "37 of 60 canaries": of those since the failures began, or of the newest ones."""
    if trouble is not None and trouble.sent >= one.sent > 1:
        return f"{number(trouble.failed)} of {number(trouble.sent)} canaries"
    return f"{one.failed} of the last {one.sent} canaries" if one.sent > 1 else "the first canary"


def slow_kinds(
    status: TargetStatus, kinds: Sequence[tuple[CanaryStatus | TargetStatus, Evidence]], now_s: float
) -> Iterator[str]:
    """Yield how many canaries of each slow kind missed which objective, and since when."""
    limits = status.objectives.latencies()
    for kind, one in kinds:
        named = f"canaries of {kind.workload} with {kind.model}: " if isinstance(kind, CanaryStatus) else ""
        for name in one.slow(status.objectives):
            found = one.missed[name]
            if one.is_failing(status.objectives.availability) and found.late < CLEAR:
                continue  # it is said how many failed
            failed = f", {found.failed} failed" if found.failed else ""
            yield (
                f"{named}{name.upper()} over {short(limits[name].within_s)} in {found.late} of the last {found.judged}"
                f" canaries{failed}{since_moment(found.since, now_s)}"
            )


def users_trouble(checks: CrossChecks, objectives: Objectives) -> Iterator[str]:
    """Yield what users met in the last minutes that they should not have."""
    users = checks.user_minutes
    if users is None:
        return
    within = f" in {_minutes(users.seconds)}"
    if users_fail(users, objectives):
        yield f"users: {number(users.failed)} of {number(users.ended)} requests failed{within}"
    for name in users_slow(users):
        one, limit = users.latencies[name], objectives.latencies()[name].within_s
        yield (
            f"users: {name.upper()} over {short(limit)} in {number(one.late)} of {number(one.requests)}"
            f" requests{within}{_p95(one.p95_s)}"
        )


def _p95(bounds: tuple[float, float | None] | None) -> str:
    if bounds is None:
        return ""
    low, high = bounds
    return f", p95 {short(low)} to {short(high)}" if high is not None else f", p95 over {short(low)}"


def users_words(checks: CrossChecks) -> str:
    """Return what became of users' requests, as a clause; "" if nothing is known."""
    users = checks.user_minutes
    if users is None or users.failed is None or users.ended is None:
        return ""
    within = _minutes(users.seconds)
    if not users.ended:
        return f"users: no request ended in {within}"
    return f"users: {number(users.failed)} of {number(users.ended)} requests failed in {within}"


def _minutes(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds < _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"


def because(status: TargetStatus, checks: CrossChecks) -> str:
    """Return why a target is slow, as far as its server's metrics show it."""
    if (stalled_s := checks.stalled_s or 0.0) >= STALLED_S:
        return f"an engine has requests but has generated no token for {stalled_s:.0f} s"
    lately, causes = checks.engine_minutes, []
    if lately is not None and (full := _full(lately, checks)):
        causes.append(full)
    elif lately is not None and lately.waiting:
        share = f", {percent(checks.queue_share)} of the TTFT" if (checks.queue_share or 0.0) >= _MUCH else ""
        causes.append(f"requests queue ({number(lately.waiting)} waiting{share})")
    causes += _elsewhere(status, checks)
    if causes:
        return " and ".join(causes)
    if lately is None:
        return "not known: the server's metrics are not read"
    return "not known: the server shows no queue and no full KV cache"


def _full(lately: EngineMinutes, checks: CrossChecks) -> str:
    usage = lately.kv_cache_usage
    if usage is None or not (checks.is_kv_cache_too_small or (usage >= FULL and (lately.waiting or lately.preempted))):
        return ""
    parts = [percent(usage)]
    if lately.waiting:
        parts.append(f"{number(lately.waiting)} waiting")
    if lately.preempted:
        parts.append(f"{number(lately.preempted)} preempted in {_minutes(lately.seconds)}")
    return f"the KV cache is full ({', '.join(parts)})"


def _elsewhere(status: TargetStatus, checks: CrossChecks) -> Iterator[str]:
    limit = status.objectives.ttft
    if limit is not None and (gap_s := checks.ttft_gap_s.get("matched", 0.0)) >= _MUCH * limit.within_s:
        yield f"the network or a gateway takes {short(gap_s)} of a canary's TTFT"
    if (checks.held_back_ratio or 0.0) >= _MUCH:
        yield "a proxy holds the stream back"

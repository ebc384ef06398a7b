"""How much more load a target can take, in one sentence: measured, forecast, a bound, or what is missing. Pure."""

from collections.abc import Iterator

from probe.capacity.trend.headroom import headroom
from probe.core.result import CapacityResult
from probe.core.snapshot import REPLICAS
from probe.core.target_status import TargetStatus
from probe.report.figures import ago, number, percent
from probe.web.state import users_fail, users_slow


def how_much(status: TargetStatus, now_s: float) -> str:
    """Return the answer, the most certain one first.

    Users who miss their objectives now show more than a capacity that was found earlier.
    """
    return next(_answers(status, now_s))


def _answers(status: TargetStatus, now_s: float) -> Iterator[str]:
    users, minutes = status.users, status.checks.user_minutes
    rps = users.requests_per_second if users is not None else None
    if status.asleep_since_s is not None:
        yield "not known: the server sleeps"
    if rps and (users_slow(minutes) or users_fail(minutes, status.objectives)):
        yield f"none: over its limit at {number(rps)} requests/s of users"
    measured = status.measured or status.capacity
    found = [*_found(status, measured, "measured", now_s), *_found(status, status.for_users, "forecast", now_s)]
    # Of two, the smaller: users may send other requests than the measured ones.
    yield from (words for _, words in sorted(found, key=lambda one: one[0])[:1])
    if measured is not None and measured.capacity.requests_per_second is None and _is_of_now(status, measured):
        yield from _bounds(measured, now_s)
    yield from (words for _, words in _found(status, status.forecast, "forecast", now_s))
    missing = _missing(status, now_s)
    if rps and _are_held(status):
        yield f"at least {number(rps)} requests/s of users are held; how much more is not known: {missing}"
    yield f"not known: {missing}"


def _found(status: TargetStatus, result: CapacityResult | None, how: str, now_s: float) -> Iterator[tuple[float, str]]:
    """Yield the share of a capacity that users leave, 1 if that is unknown, and the words; nothing without one."""
    if result is None or result.capacity.requests_per_second is None or not _is_of_now(status, result):
        return
    found = result.capacity
    rate = f"{'at least ' if found.is_lower_bound else ''}{number(found.requests_per_second)} requests/s"
    left, when = headroom(status.users, found), f"{how} {ago(result.ended_s, now_s)}"
    if left is None:
        yield 1.0, f"{rate}, {when}"
    elif left < 0:
        yield left, f"none: users are {percent(-left)} above {rate}, {when}"
    else:
        yield left, f"{percent(left)} of {rate} is left, {when}"


def _is_of_now(status: TargetStatus, result: CapacityResult) -> bool:
    """Return whether it is of as many replicas as run now; others say nothing of these."""
    return status.server is None or result.context.flags.get(REPLICAS) == status.server.flags.get(REPLICAS)


def _bounds(result: CapacityResult, now_s: float) -> Iterator[str]:
    """Yield what the steps of a run without a capacity show all the same."""
    valid = [step for step in result.steps if step.valid and step.throughput_rps]
    held = [step.throughput_rps for step in valid if not step.broken]
    broke = [step.throughput_rps for step in valid if step.broken]
    when = f"by the run of {ago(result.ended_s, now_s)}, which found no knee"
    if held:
        yield f"at least {number(max(held))} requests/s held, {when}"
    if broke:
        yield f"none: over its limit at {number(min(broke))} requests/s, {when}"


def _are_held(status: TargetStatus) -> bool:
    minutes = status.checks.user_minutes
    if minutes is None or not minutes.latencies:
        return False
    limits = status.objectives.latencies()
    return all(minutes.latencies.get(name) is not None and minutes.latencies[name].is_met for name in limits)


def _missing(status: TargetStatus, now_s: float) -> str:
    """Return what is missing, and when it will be there."""
    if status.capacity_state == "running":
        return "a capacity run is in progress"
    why = _why(status)
    times = {"capacity run": status.next_run_s, "forecast": status.next_forecast_s}
    due = [f"the next {name} is due in {_in(at_s - now_s)}" for name, at_s in times.items() if at_s is not None]
    return "; ".join([why, *due])


def _why(status: TargetStatus) -> str:
    last, forecast = status.capacity, status.forecast
    is_off = status.next_run_s is None and status.next_forecast_s is None
    if status.capacity_state is not None:
        return f"the last capacity run was refused: {status.capacity_state}"
    if last is not None and not _is_of_now(status, last):
        return "the capacity found is of another number of replicas"
    if last is not None and last.capacity.reason:
        return f"the last capacity run found none: {last.capacity.reason}"
    if forecast is not None and forecast.capacity.reason:
        return f"no forecast: {forecast.capacity.reason}"
    if status.server is None:
        return "the server's metrics are not read"
    return "capacity.mode is off, so nothing looks for it" if is_off else "not measured yet"


def _in(seconds: float) -> str:
    return ago(0.0, max(seconds, 0.0)).removesuffix(" ago")

"""What can never run by its schedule or budget, and what one process cannot run in time."""

import heapq
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from probe.config.capacity import CapacityConfig
from probe.config.targets import TargetConfig, TemplateConfig, WatchConfig
from probe.core.durations import format_duration
from probe.core.load_windows import closes_at, parse_window

if TYPE_CHECKING:
    from probe.runtime.run_times import Trigger

_DAYS = 8.0  # windows repeat each week
_TIMES = 60  # of rare times: each weekday of a day of the month or of the year
_RUNS = 100  # of a target, in a week


def never_problems(capacity: CapacityConfig) -> Iterator[str]:
    """Yield problems of scheduled runs that could never measure, each with what follows the section in its path."""
    if capacity.mode != "verify":
        return
    seconds = capacity.budget.seconds
    if capacity.has_fixed_steps:
        if seconds < capacity.step:
            yield f".budget.seconds: {seconds:g} is less than step, {capacity.step:g}s, so no step could end; raise it"
    elif seconds <= capacity.observe:
        yield (
            f".budget.seconds: {seconds:g} is not more than observe, {capacity.observe:g}s, so no load would follow;"
            " raise it"
        )
    if capacity.schedule.windows and not _meets_window(capacity):
        least = format_duration(capacity.least_s)
        yield (
            f".schedule.cron: at none of its times a window of schedule.windows is open for another {least}, which a"
            " first step takes, so no run would begin; move it into a window"
        )


def run_times(target: WatchConfig, *, is_found: bool) -> "Trigger":
    """Return when a target's capacity runs are due. `is_found`: it is one of a discovery's."""
    from probe.runtime.cron import cron_trigger  # noqa: PLC0415 - slow to import, and needed for scheduled runs only
    from probe.runtime.run_times import spread  # noqa: PLC0415

    schedule = target.capacity.schedule
    times = cron_trigger(schedule.cron, schedule.timezone)
    if not is_found:
        return times
    return spread(times, target.name, schedule.windows, schedule.timezone, target.capacity.budget.seconds)


def crowded(targets: Sequence[WatchConfig], at_once: int, since: datetime) -> str | None:
    """Return which of a week's scheduled runs could not begin within the grace of their times, if each takes all of its
    budget.seconds; None: all could. Discovered targets are not known here, and not counted.
    """
    runs = sorted(_runs(targets, since), key=lambda run: run[0])
    slots = [since] * at_once
    servers: dict[str, datetime] = {}
    late: dict[str, None] = {}
    for due, target in runs:
        begin = max(due, slots[0], servers.get(target.server, since))
        closes = _closes(target.capacity, due)
        if begin > due + timedelta(seconds=target.capacity.schedule.grace) or (closes is not None and begin >= closes):
            late[target.name] = None
            continue
        servers[target.server] = begin + timedelta(seconds=target.capacity.budget.seconds)
        heapq.heapreplace(slots, servers[target.server])
    if not late:
        return None
    names = list(late)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]}{more}: runs could not begin within schedule.grace of their time if those before them take all of"
        f" budget.seconds, and would be given up (late); spread schedule.cron, lower budget.seconds, or raise"
        f" capacity_runs_at_once ({at_once})"
    )


def room(template: TemplateConfig, at_once: int, since: datetime) -> int:
    """Return how many targets of a discovery can be measured at each time of the schedule, if each run takes all of
    budget.seconds.
    """
    from probe.runtime.run_times import room_at  # noqa: PLC0415 - as above

    capacity = template.capacity
    schedule, run_s = capacity.schedule, capacity.budget.seconds
    times = run_times(template, is_found=False)
    first = times.get_next_fire_time(None, since)
    following = first and times.get_next_fire_time(first, first)
    if first is None:
        return 0
    width = room_at(first, following, schedule.windows, schedule.timezone, run_s)
    return at_once * max(int((width.total_seconds() + schedule.grace) / run_s), 1)


def _runs(targets: Sequence[WatchConfig], since: datetime) -> Iterator[tuple[datetime, TargetConfig]]:
    from probe.runtime.run_times import dues  # noqa: PLC0415 - as above

    for target in targets:
        if isinstance(target, TargetConfig) and target.capacity.mode == "verify":
            times = dues(run_times(target, is_found=False), since, days=7)
            yield from ((due.astimezone(UTC), target) for due in islice(times, _RUNS))


def _meets_window(capacity: CapacityConfig) -> bool:
    """Return whether a window is open for long enough at one of the schedule's times."""
    from probe.runtime.cron import cron_trigger  # noqa: PLC0415 - as above
    from probe.runtime.run_times import dues  # noqa: PLC0415

    times = cron_trigger(capacity.schedule.cron, capacity.schedule.timezone)
    for due in dues(times, datetime.now(UTC), days=_DAYS, at_least=_TIMES):
        closes = _closes(capacity, due)
        if closes is None or (closes - due).total_seconds() >= capacity.least_s:
            return True
    return False


def _closes(capacity: CapacityConfig, at: datetime) -> datetime | None:
    """Return when the window around `at` closes; `at` if none is open, None if it never does."""
    return closes_at(tuple(map(parse_window, capacity.schedule.windows)), at, capacity.schedule.timezone)

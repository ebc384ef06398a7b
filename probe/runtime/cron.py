"""Cron expressions. The only module that imports apscheduler, for its triggers."""

import re
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

_YEAR = timedelta(days=366)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def cron_trigger(expression: str, timezone: str = "UTC") -> CronTrigger:
    """Return the trigger for five cron fields. Raise ValueError for anything else.

    Weekdays are passed by name, because APScheduler counts them from Monday and cron from Sunday. Both day and weekday
    are refused: cron means either of them, APScheduler both.
    """
    minute, hour, day, month, weekday = expression.split()
    if "*" not in (day, weekday):
        raise ValueError("day and weekday are both given")
    return CronTrigger(
        minute=minute, hour=hour, day=day, month=month, day_of_week=_weekdays(weekday), timezone=ZoneInfo(timezone)
    )


@cache
def longest_interval_s(expression: str) -> float:
    """Return the longest time (s) between two days with a run in the next year: 86400 for a run every day.

    With fewer than two such days, return a year. Raises ValueError as `cron_trigger` does.
    """
    trigger = cron_trigger(" ".join(["0", "0", *expression.split()[2:]]))
    begin = datetime.now(ZoneInfo("UTC"))
    due = trigger.get_next_fire_time(None, begin)
    days = []
    while due is not None and due < begin + _YEAR:
        days.append(due)
        due = trigger.get_next_fire_time(due, due + timedelta(days=1))
    return max((later - earlier for earlier, later in pairwise(days)), default=_YEAR).total_seconds()


def _weekdays(field: str) -> str:
    """Return a cron field of weekdays (0 to 7 or names; lists, ranges, steps) as a list of names."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.lower().split(","):
        written = re.fullmatch(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([0-9]+))?", part, re.ASCII)
        first, last, step = written.groups() if written else ("", "", "")
        low, high = (_weekday(first), _weekday(last or first)) if first is not None else (0, 6)
        if high < low or (step and first and not last):
            raise ValueError(f"{part!r} is not a range of weekdays")
        days |= {day % 7 for day in range(low, high + 1, int(step or 1))}
    return ",".join(_WEEKDAYS[day] for day in sorted(days))


def _weekday(text: str) -> int:
    day = _WEEKDAYS.index(text) if text in _WEEKDAYS else int(text)
    if not 0 <= day <= len(_WEEKDAYS):
        raise ValueError(f"{text!r} is not a weekday")
    return day

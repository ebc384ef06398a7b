"""Cron expressions as Vixie cron reads them, in a time zone. The triggers are APScheduler's.

Each time on the wall clock is one run. A time that the clock shows twice, as when summer time ends, is its first; one
that it skips comes as much later as the clock leapt.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

_YEAR = timedelta(days=366)
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)  # what cron tells apart
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of each month, at most
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an expression: its numbers, and the names of the first ones."""

    name: str
    low: int
    high: int
    names: Sequence[str] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


class WallClockTrigger:
    """The times of a trigger that reads a wall clock, one for each reading."""

    def __init__(self, readings: BaseTrigger, timezone: str) -> None:
        """Take `readings`: fires at each reading, as if it were UTC."""
        self._readings, self._zone = readings, ZoneInfo(timezone)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time after the previous one; without one, the first that is not before `now`."""
        after = now if previous_fire_time is None else previous_fire_time + timedelta(microseconds=1)
        local = after.astimezone(self._zone)
        # Readings that the clock has skipped within a day may still be to come. No zone has skipped more.
        leapt = _offset(local) - _offset((local.astimezone(UTC) - _DAY).astimezone(self._zone))
        reading = local.replace(tzinfo=UTC, fold=0) - max(leapt, timedelta())
        found: datetime | None = None
        while (shown := self._readings.get_next_fire_time(None, reading)) is not None:
            if found is not None and shown > found.replace(tzinfo=UTC, fold=0):
                break
            # PEP 495: without a fold, the first of two; of a time that is skipped, the same time after the leap.
            moment = shown.replace(tzinfo=self._zone).astimezone(UTC).astimezone(self._zone)
            if moment.timestamp() >= after.timestamp() and (found is None or moment.timestamp() < found.timestamp()):
                found = moment
            reading = shown + _MINUTE
        return found


def cron_trigger(expression: str, timezone: str = "UTC") -> WallClockTrigger:
    """Return the trigger for five cron fields or a nickname such as @daily.

    Raise ValueError that says what is wrong and quotes nothing: a secret may be written there. Of a day and a weekday
    either is enough, unless one of them begins with a star: then both must fit, as in Vixie cron.
    """
    written = _fields(expression)
    minute, hour, day, month, weekday = (_numbers(text, field) for text, field in zip(written, _FIELDS, strict=True))
    any_day, any_weekday = written[2][0] == "*", written[4][0] == "*"
    comes = min(day) <= max(_DAYS[number - 1] for number in month)
    if any_weekday and not comes:
        raise ValueError("no such day ever comes")
    time = {"minute": _joined(minute), "hour": _joined(hour), "month": _joined(month), "timezone": UTC}
    # By name: APScheduler counts weekdays from Monday, cron from Sunday.
    days = {"day": _joined(day)}, {"day_of_week": ",".join(sorted({_WEEKDAYS[number % 7] for number in weekday}))}
    if any_day or any_weekday:
        readings = [CronTrigger(**time, **days[0], **days[1])]
    else:  # a trigger of a day that never comes would look for it in eight thousand years
        readings = [CronTrigger(**time, **each) for each in days[not comes :]]
    return WallClockTrigger(OrTrigger(readings), timezone)


@cache
def longest_interval_s(expression: str) -> float:
    """Return the longest time (s) between two days with a run in the next year: 86400 for a run every day.

    With fewer than two such days, return a year. Raises ValueError as `cron_trigger` does.
    """
    trigger = cron_trigger(" ".join(["0", "0", *_fields(expression)[2:]]))
    begin = datetime.now(UTC)
    due = trigger.get_next_fire_time(None, begin)
    days = []
    while due is not None and due < begin + _YEAR:
        days.append(due)
        due = trigger.get_next_fire_time(due, due)
    return max((later - earlier for earlier, later in pairwise(days)), default=_YEAR).total_seconds()


def _fields(expression: str) -> list[str]:
    fields = _NICKNAMES.get(expression.strip(), expression).split()
    if len(fields) != len(_FIELDS) or not expression.isascii():
        raise ValueError(f"found {len(fields)}" if expression.isascii() else "not ASCII")
    return fields


def _numbers(text: str, field: _Field) -> set[int]:
    """Return the numbers of a field: a list of numbers, names, ranges and stars, the latter two with steps."""
    numbers: set[int] = set()
    for part in text.lower().split(","):
        wrong = ValueError(f"the {field.name} is not within {field.low}-{field.high}")
        if (written := _PART.fullmatch(part)) is None:
            raise wrong
        first, last, step = written.groups()
        if step is not None and first is not None and last is None:
            raise ValueError(f"a step of the {field.name} needs a range, as in {field.low}-{field.high}/2")
        low = field.low if first is None else _number(first, field)
        high = field.high if first is None else _number(last or first, field)
        # A step that leaves only the first number was meant otherwise: */90 is no hour and a half.
        if not field.low <= low <= high <= field.high or not 1 <= int(step or 1) <= max(high - low, 1):
            raise wrong
        numbers.update(range(low, high + 1, int(step or 1)))
    return numbers


def _number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    return int(text) if text.isdigit() else -1


def _joined(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta()

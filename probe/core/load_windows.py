"""Weekly windows in which scheduled load is allowed, in a time zone. Pure.

A window is a time span on some weekdays: `01:00-05:00` is every day, `Sat,Sun 00:00-24:00` the weekend,
`Fri 22:00-04:00` ends on Saturday. It starts and ends when the local clock first shows these times. If the clock skips
one (daylight saving starts), the moment of the skip counts; if it shows one twice, the first counts. So 01:00-05:00
has three hours in one night of the year and five in another.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WRITTEN = re.compile(r"(?:([a-z,-]+) +)?([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})", re.ASCII | re.IGNORECASE)
_DAY_MIN = 24 * 60
_LAST_MINUTE = 59
# Windows that follow one another without a gap for this long never close.
_WEEK = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """Minutes after midnight; `end_min` exceeds 24 hours if the window ends on the next day."""

    days: frozenset[int]  # on which it starts; Monday is 0
    start_min: int
    end_min: int


def parse_window(text: str) -> LoadWindow:
    """Return the window that a text describes. Raises ValueError."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise ValueError(f"{text!r} is not a window")
    start, end = (_minutes(written[hour], written[hour + 1]) for hour in (2, 4))
    if start in (_DAY_MIN, end):
        raise ValueError(f"{text!r} is empty, or starts at the end of a day")
    days = _days(written[1]) if written[1] else frozenset(range(7))
    return LoadWindow(days, start, end if end > start else end + _DAY_MIN)


def closes_at(windows: Sequence[LoadWindow], at: datetime, timezone: str) -> datetime | None:
    """Return when the window around `at` (timezone-aware) closes, following windows that join it without a gap.

    Returns `at` if no window is open, and None if it never closes, for example if there are no windows.
    """
    closes = at.astimezone(UTC)
    if not windows:
        return None
    last = closes + _WEEK
    spans = sorted(_spans(windows, closes, last, ZoneInfo(timezone)))
    for begins, ends in spans:
        if begins <= closes < ends:
            closes = ends
    return None if closes >= last else closes


def _spans(
    windows: Sequence[LoadWindow], since: datetime, until: datetime, zone: ZoneInfo
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and end, in UTC, of all windows that may matter."""
    day, last = since.astimezone(zone).date() - timedelta(days=2), until.astimezone(zone).date()
    while day <= last:
        for window in windows:
            if day.weekday() in window.days:
                yield _moment(day, window.start_min, zone), _moment(day, window.end_min, zone)
        day += timedelta(days=1)


def _moment(day: date, minutes: int, zone: ZoneInfo) -> datetime:
    """Return when the zone's clock first shows this time, or a later one."""
    shown = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 - a clock's face
    first, second = (shown.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first <= second:  # the normal case, or the first of two
        return first
    # The clock skips it: `second` is before the skip, `first` after it.
    while first - second > timedelta(seconds=1):
        middle = second + (first - second) / 2
        if middle.astimezone(zone).replace(tzinfo=None) < shown:
            second = middle
        else:
            first = middle
    return first.replace(microsecond=0)


def _minutes(hours: str, minutes: str) -> int:
    after_midnight = int(hours) * 60 + int(minutes)
    if int(minutes) > _LAST_MINUTE or after_midnight > _DAY_MIN:
        raise ValueError(f"{hours}:{minutes} is not a time of day")
    return after_midnight


def _days(text: str) -> frozenset[int]:
    """Return weekdays from names: lists and ranges, also across the end of the week."""
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        begin = _WEEKDAYS.index(first)
        length = (_WEEKDAYS.index(last) - begin) % 7 if dash else 0
        days |= {(begin + i) % 7 for i in range(length + 1)}
    return frozenset(days)

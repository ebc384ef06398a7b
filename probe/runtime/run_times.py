"""When the capacity runs of a target are due: by cron, and for discovered targets each at its own distance. Pure."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from probe.core.load_windows import closes_at, parse_window

# A night's quiet hours are hardly longer, if no windows say so.
_SPREAD = timedelta(hours=2)
_DAY = timedelta(days=1)  # a window is never longer
# Of the room, by which a target's run moves each day: by the golden ratio its places of any days are far apart.
_MOVES = (5**0.5 - 1) / 2
_BACK = (timedelta(minutes=5), timedelta(hours=1), _DAY)


class Trigger(Protocol):
    """The times of something, as APScheduler's triggers tell them."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time after the previous one; without one, the first that is not before `now`."""


class SpreadTrigger:
    """The times of a trigger, each later by a share of the time that it has: at most until the next one.

    The share is another one each day. Where more runs are due than fit, those at the end of a window are the late ones,
    and so they are not the same ones each night.
    """

    def __init__(self, times: Trigger, share: float, room: Callable[[datetime, datetime | None], timedelta]) -> None:
        """Take `room`: returns how much later than a time it may be, at most a day and until the following one."""
        self._times, self._share, self._room = times, share, room

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time after the previous one; without one, the first that is not before `now`."""
        after = now if previous_fire_time is None else previous_fire_time + timedelta(microseconds=1)
        after = after.astimezone(UTC)
        for back in _BACK:  # to the last time before, which may be so much later; of frequent ones not to all of a day
            due = self._times.get_next_fire_time(None, after - back)
            if due is None or due <= after:
                break
        while due is not None:
            following = self._times.get_next_fire_time(due, due)
            is_last = following is None or following > after
            if is_last and (moment := self._moment(due, following)) >= after:
                return moment
            due = following
        return None

    def _moment(self, due: datetime, following: datetime | None) -> datetime:
        share = (self._share + due.toordinal() * _MOVES) % 1.0
        return due.astimezone(UTC) + share * self._room(due, following)


def spread(times: Trigger, name: str, windows: Sequence[str], timezone: str, run_s: float) -> SpreadTrigger:
    """Return the times for one of many targets, which lie between a time and the last one with `run_s` left in its
    window; without windows, within two hours. Where is a stable hash of the name and the day.
    """
    return SpreadTrigger(
        times, share_of(name), lambda due, following: room_at(due, following, windows, timezone, run_s)
    )


def room_at(
    due: datetime, following: datetime | None, windows: Sequence[str], timezone: str, run_s: float
) -> timedelta:
    """Return how much later than a time a run of `run_s` may begin, at most a day and until the following time."""
    due = due.astimezone(UTC)  # differences of local times leave out what a clock skips
    closes = closes_at(tuple(map(parse_window, windows)), due, timezone)
    left = _SPREAD if closes is None else closes - due - timedelta(seconds=run_s)
    return max(min(left, _DAY if following is None else following - due, _DAY), timedelta())


def share_of(name: str) -> float:
    """Return a number from 0 to less than 1 that is the same in each process and evenly distributed over names."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48


def dues(trigger: Trigger, since: datetime, *, days: float, at_least: int = 0) -> Iterator[datetime]:
    """Yield the times of so many days, and further ones until they are `at_least` so many."""
    due, count = trigger.get_next_fire_time(None, since), 0
    while due is not None and (count < at_least or due < since + timedelta(days=days)):
        yield due
        count += 1
        due = trigger.get_next_fire_time(due, due)

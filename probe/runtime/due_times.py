"""When a task is due: at intervals of the monotonic clock, or at times of the wall clock.

A wall clock that is set neither stops nor hurries what runs at intervals.
"""

import random
from datetime import UTC, datetime, timedelta
from typing import Protocol

from probe.core.clock import Clock
from probe.runtime.cron import cron_trigger

# Share of an interval by which each run is moved at random, so that many instances do not run in step.
_JITTER = 0.1
# The wall clock may be set at any time, and runs on while the machine is suspended: so it is looked at this often.
_LOOK_S = 15.0
_CRON_GRACE_S = 60.0
# A clock set back by more than this was wrong before, and the due time is computed again. After a smaller step nothing
# runs twice. Vixie cron does the same.
_CORRECTED_S = 3 * 3600.0


class DueTimes(Protocol):
    """The times at which one task is due, one after the other."""

    @property
    def grace_s(self) -> float | None:
        """Return after how many seconds of lateness a run is left out; None: a late run is better than none."""
        ...

    def late_s(self) -> float:
        """Return for how long the task has been due, in seconds; negative while it is not."""
        ...

    def wait_s(self) -> float:
        """Return how long to wait before `late_s` is asked again, in seconds."""
        ...

    def advance(self) -> None:
        """Go on to the next due time after now."""
        ...

    def bring_forward(self, seconds: float) -> None:
        """Make the task due in `seconds` unless it is sooner, and then as usual."""
        ...


class Interval:
    """About every `seconds`, for the first time in `first_s`. Times that were missed are left out."""

    grace_s = None

    def __init__(self, clock: Clock, seconds: float, first_s: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._due_ns = clock.monotonic_ns() + int(first_s * 1e9)

    def late_s(self) -> float:
        return (self._clock.monotonic_ns() - self._due_ns) * 1e-9

    def wait_s(self) -> float:
        return -self.late_s()

    def advance(self) -> None:
        # Whole intervals, so that targets spread over an interval stay so after a pause. The nearest number of them:
        # the next run is never in less than half an interval, however late this one is.
        missed = round(max(self.late_s(), 0.0) / self._seconds)
        apart = random.uniform(1 - _JITTER / 2, 1 + _JITTER / 2)  # noqa: S311 - it spreads load, it guards no secret
        self._due_ns += int((missed + apart) * self._seconds * 1e9)

    def bring_forward(self, seconds: float) -> None:
        self._due_ns = min(self._due_ns, self._clock.monotonic_ns() + int(seconds * 1e9))


class Cron:
    """The times of a cron expression of five fields. Raise ValueError for anything else."""

    grace_s = _CRON_GRACE_S

    def __init__(self, clock: Clock, expression: str, timezone: str) -> None:
        self._clock = clock
        self._trigger = cron_trigger(expression, timezone)
        self._last_s = clock.wall_s()
        self._due_s = self._next_s(self._last_s)

    def late_s(self) -> float:
        now_s = self._clock.wall_s()
        if now_s < self._last_s - _CORRECTED_S:
            self._due_s = self._next_s(now_s)
        self._last_s = now_s
        return now_s - self._due_s

    def wait_s(self) -> float:
        return min(-self.late_s(), _LOOK_S)

    def advance(self) -> None:
        self._due_s = self._next_s(max(self._clock.wall_s(), self._due_s))

    def bring_forward(self, seconds: float) -> None:
        self._due_s = min(self._due_s, self._clock.wall_s() + seconds)

    def _next_s(self, after_s: float) -> float:
        """Return the next due time after a wall time; infinite if there is none, as of 31 February."""
        after = datetime.fromtimestamp(after_s, UTC) + timedelta(microseconds=1)
        due = self._trigger.get_next_fire_time(None, after)
        return float("inf") if due is None else float(due.timestamp())

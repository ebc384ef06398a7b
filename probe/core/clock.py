"""Injectable time: a monotonic clock for intervals, wall time for timestamps only.

Intervals never use the wall clock, because it steps and slews. Tests pass their own clock.
"""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic and wall time."""

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds, on one axis for all records of a process."""
        ...

    def wall_s(self) -> float:
        """Return seconds since the epoch, for timestamps that people or Prometheus read."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """perf_counter (Python's finest monotonic clock) and the system's wall time."""

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()

    def wall_s(self) -> float:
        return time.time()

"""Time, injected: a monotonic clock for every interval, wall time only for stamps.

Intervals never come from the wall clock, which steps and slews. Tests pass a clock of their
own instead of patching this one.
"""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Both times a component may ask for."""

    def monotonic_ns(self) -> int:
        """Nanoseconds on one monotonic axis, shared by all records of a process."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch, for stamps that people or Prometheus read."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """perf_counter (the finest monotonic clock Python has) and the system's wall time."""

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()

    def wall_s(self) -> float:
        return time.time()

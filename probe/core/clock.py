"""Injectable time: a monotonic clock for intervals, wall time for timestamps only, and the wait for a processor.

Intervals never use the wall clock, because it steps and slews. Tests pass their own clock.
"""

import os
import time
from dataclasses import dataclass
from typing import Protocol

_SCHEDSTAT = "/proc/thread-self/schedstat"


class Clock(Protocol):
    """Source of monotonic and wall time."""

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds, on one axis for all records of a process."""
        ...

    def wall_s(self) -> float:
        """Return seconds since the epoch, for timestamps that people or Prometheus read."""
        ...

    def waited_ns(self) -> int:
        """Return for how long this thread has been ready to run without a processor, in nanoseconds; 0 if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """perf_counter (Python's finest monotonic clock) and the system's wall time."""

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()

    def wall_s(self) -> float:
        return time.time()

    def waited_ns(self) -> int:
        # Linux' run-queue wait, in the second field (Documentation/scheduler/sched-stats.rst). macOS and gVisor have
        # none. 3 to 10 us.
        try:
            file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            return int(os.read(file, 100).split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        finally:
            os.close(file)

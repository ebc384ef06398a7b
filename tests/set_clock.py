"""A clock that stands still until a test sets it."""

from dataclasses import dataclass

from example_records import WALL_S


@dataclass
class SetClock:
    """The monotonic time is `now_s`; the wall time is that of the tests' records."""

    now_s: float = 0.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def wall_s(self) -> float:
        return WALL_S

    def waited_ns(self) -> int:
        return 0

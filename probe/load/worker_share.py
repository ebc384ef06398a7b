"""The share of a step that one of several workers sends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's share of a step: the `index`-th of `count`."""

    index: int = 0
    count: int = 1

    def of(self, whole: int) -> int:
        """Return this worker's share of a number."""
        return whole // self.count + (self.index < whole % self.count)


WHOLE = WorkerShare()

"""What users leave of a capacity. Pure.

A user's request may be longer than those that capacity was found with, so it is asked both of requests and of output
tokens how much of the capacity is in use; the larger share counts.
"""

from dataclasses import dataclass

from probe.core.result import Capacity
from probe.core.snapshot import UserLoad


@dataclass(frozen=True, slots=True)
class CapacityShare:
    """What users take of a capacity: `live` of `most`, both per second, of `unit`."""

    live: float
    most: float
    unit: str

    @property
    def ratio(self) -> float:
        """1: all of it."""
        return self.live / self.most


def share(users: UserLoad | None, capacity: Capacity | None) -> CapacityShare | None:
    """The larger share of the two; None where users or the capacity are not known."""
    if users is None or capacity is None:
        return None
    pairs = (
        (users.requests_per_second, capacity.requests_per_second, "requests/s"),
        (users.output_tokens_per_second, capacity.output_tokens_per_second, "output tokens/s"),
    )
    known = [CapacityShare(live, most, unit) for live, most, unit in pairs if live is not None and most]
    return max(known, key=lambda one: one.ratio, default=None)


def headroom(users: UserLoad | None, capacity: Capacity | None) -> float | None:
    """1 - live load / capacity; below 0 where users take more than was found possible."""
    used = share(users, capacity)
    return None if used is None else 1 - used.ratio

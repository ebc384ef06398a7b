"""Headroom: the part of a capacity that users do not take. Pure.

Users' requests may be longer than those the capacity was measured with, so the share in use is computed both from
requests and from output tokens; the larger one counts.
"""

from dataclasses import dataclass

from probe.core.result import Capacity
from probe.core.snapshot import UserLoad

REQUESTS = "requests/s"


@dataclass(frozen=True, slots=True)
class CapacityShare:
    """How much of a capacity users take: `live` of `most`, both per second, in `unit`."""

    live: float
    most: float
    unit: str

    @property
    def ratio(self) -> float:
        """Return the share of the capacity in use; 1: the whole capacity."""
        return self.live / self.most


def largest_share(users: UserLoad | None, capacity: Capacity | None) -> CapacityShare | None:
    """Return the larger of both shares; None if user traffic or the capacity is unknown."""
    if users is None or capacity is None:
        return None
    pairs = (
        (users.requests_per_second, capacity.requests_per_second, REQUESTS),
        (users.output_tokens_per_second, capacity.output_tokens_per_second, "output tokens/s"),
    )
    known = [CapacityShare(live, most, unit) for live, most, unit in pairs if live is not None and most]
    return max(known, key=lambda one: one.ratio, default=None)


def headroom(users: UserLoad | None, capacity: Capacity | None) -> float | None:
    """Return 1 - live load / capacity; below 0 if users take more than the capacity found.

    None if it is unknown, as for a forecast that is a lower bound: such a bound is never far above the load of users
    from which it was learnt, however much more the server can do.
    """
    used = largest_share(users, capacity)
    if used is None or capacity is None or (capacity.mode == "forecast" and capacity.is_lower_bound):
        return None
    return 1 - used.ratio

"""The live users of a search: how many requests they send now, and how many at most. Pure.

What a next step may send follows from the users of now.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probe.capacity.model.replay import UserArrivals

_NOW_S = 10.0  # what users sent in the last seconds counts where it differs from before beyond chance
_CHANCE, _HARDLY_EVER = 2.0, 3.0  # standard deviations of a Poisson number
_BESIDE = 2.0  # requests more: somebody tries the server by hand, or a canary is in flight


@dataclass(frozen=True, slots=True)
class LiveUsers:
    """The rate of live users' requests, and over how many seconds it was measured."""

    rate_rps: float = 0.0
    seconds: float = 0.0

    def most_in(self, seconds: float) -> float:
        """Return how many requests they send at most in so many seconds, if nothing but chance adds to them."""
        return _at_most(self.rate_rps * seconds)

    def has_changed(self, before: "LiveUsers", by_rps: float) -> bool:
        """Return whether they send more or less than before, by more than `by_rps` and than chance explains."""
        variances = (one.rate_rps / one.seconds for one in (self, before) if one.seconds)
        return abs(self.rate_rps - before.rate_rps) > by_rps + _HARDLY_EVER * math.sqrt(sum(variances))


def users_of_now(mean: LiveUsers, arrivals: Sequence[UserArrivals]) -> LiveUsers:
    """Return the users at the end of a time: by its mean, or by its last seconds where more of them came, or fewer.

    `arrivals`: their requests in that time, or a little longer.
    """
    if not arrivals:
        return mean
    last = counted(arrivals, arrivals[-1].to_s - _NOW_S)
    expected = mean.rate_rps * last.seconds
    is_more = last.rate_rps * last.seconds > _at_most(expected)
    return last if is_more or last.has_changed(mean, 0.0) else mean


def counted(arrivals: Sequence[UserArrivals], from_s: float = -math.inf) -> LiveUsers:
    """Return the rate of these arrivals from a moment on."""
    inside = [each for each in arrivals if each.from_s >= from_s]
    seconds = inside[-1].to_s - inside[0].from_s if inside else 0.0
    return LiveUsers(sum(each.count for each in inside) / seconds, seconds) if seconds > 0 else LiveUsers()


def _at_most(expected: float) -> float:
    return expected + _CHANCE * math.sqrt(expected) + _BESIDE

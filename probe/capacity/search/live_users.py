"""The live users of a search: how many requests they send now, and how many at most. Pure.

What a next step may send follows from the users of now.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from probe.capacity.model.replay import UserArrivals

BURST_S = 5.0  # users who send more for a shorter time are no load that a server has to hold
_NOW_S = 10.0  # what users sent in the last seconds counts where it differs from before beyond chance
_HARDLY_EVER, _NEVER = 3.0, 4.0  # standard deviations of a Poisson number: in a step, in a whole search
_BESIDE = 2.0  # requests more: somebody tries the server by hand, or a canary is in flight


@dataclass(frozen=True, slots=True)
class LiveUsers:
    """The rate of live users' requests, and over how many seconds it was measured.

    `burst_rps`: the highest rate for BURST_S that was seen lately, if chance does not explain it; else 0.
    """

    rate_rps: float = 0.0
    seconds: float = 0.0
    burst_rps: float = 0.0

    @property
    def most_rps(self) -> float:
        """Return the highest rate for BURST_S that is credible: by chance, or in a burst."""
        expected = self.usual_rps * BURST_S
        return max((expected + _HARDLY_EVER * math.sqrt(expected)) / BURST_S, self.burst_rps)

    @property
    def usual_rps(self) -> float:
        """Return the rate at which they may usually send: the measured one and its standard error."""
        return self.rate_rps + (math.sqrt(self.rate_rps / self.seconds) if self.seconds else 0.0)

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
    is_more = last.rate_rps * last.seconds > at_most(expected)
    return last if is_more or last.has_changed(mean, 0.0) else mean


def burst_of(arrivals: Sequence[UserArrivals], usual_rps: float) -> float:
    """Return the highest rate of these arrivals for BURST_S, 0 where users who usually send so many send it by chance.

    Of arrivals in a shorter time, as many in BURST_S.
    """
    sums = [0, *accumulate(each.count for each in arrivals)]
    highest, first = LiveUsers(), 0
    for last, each in enumerate(arrivals):
        while first < last and each.to_s - arrivals[first + 1].from_s >= BURST_S:
            first += 1
        seconds = max(each.to_s - arrivals[first].from_s, BURST_S)
        found = LiveUsers((sums[last + 1] - sums[first]) / seconds, seconds)
        highest = max(highest, found, key=lambda one: one.rate_rps)
    expected = usual_rps * highest.seconds
    by_chance = expected + _NEVER * math.sqrt(expected) + _BESIDE
    return highest.rate_rps if highest.rate_rps * highest.seconds > by_chance else 0.0


def counted(arrivals: Sequence[UserArrivals], from_s: float = -math.inf) -> LiveUsers:
    """Return the rate of these arrivals from a moment on."""
    inside = [each for each in arrivals if each.from_s >= from_s]
    seconds = inside[-1].to_s - inside[0].from_s if inside else 0.0
    return LiveUsers(sum(each.count for each in inside) / seconds, seconds) if seconds > 0 else LiveUsers()


def at_most(expected: float) -> float:
    """Return how many requests users send at most by chance, who usually send so many, and somebody beside them."""
    return expected + _HARDLY_EVER * math.sqrt(expected) + _BESIDE

"""Whether users' requests met their latency objectives, by what is certain of the server's histograms. Pure.

In: the user totals at each snapshot. Out: whether each objective was met in the last hour; None where that is not
certain.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.core.objectives import Objectives
from probe.core.snapshot import UserTotals
from probe.observe.histogram_arithmetic import bounds_around
from probe.observe.probe_traffic import LATENCIES

_LEAST_REQUESTS = 10  # below it, single requests decide
_HOUR_NS = 3600 * 10**9
_MARK_NS = 300 * 10**9


@dataclass(frozen=True, slots=True)
class Judged:
    """User requests, and how many of them count as slower than an objective.

    `bound_s`: the limit, moved up to the next bound of the server's histogram. `slow`: above it; of which
    `may_be_fast`, because what Kneewatch itself sent may have been among them, and `may_be_slow` of the others, because
    the objective lies between two bounds.
    """

    bound_s: float
    requests: float
    slow: float
    may_be_fast: float
    may_be_slow: float

    @property
    def uncertain(self) -> float:
        """Return the number of requests that are on either side of the objective."""
        return self.may_be_fast + self.may_be_slow

    def __sub__(self, before: "Judged") -> "Judged":
        """Return the requests since an earlier state."""
        return Judged(
            self.bound_s,
            self.requests - before.requests,
            self.slow - before.slow,
            self.may_be_fast - before.may_be_fast,
            self.may_be_slow - before.may_be_slow,
        )

    @property
    def uncertain_ratio(self) -> float:
        """Return the share of requests that may be on either side; 1 of too few requests."""
        return self.uncertain / self.requests if self.requests >= _LEAST_REQUESTS else 1.0

    def is_met(self, ratio: float) -> bool | None:
        """Return whether at least this share was fast enough; None if that is not certain, or of too few requests."""
        if self.requests < _LEAST_REQUESTS:
            return None
        allowed = (1 - ratio) * self.requests
        if self.slow + self.may_be_slow <= allowed:
            return True
        return False if self.slow - self.may_be_fast > allowed else None


def judged(totals: UserTotals, latency: str, within_s: float) -> Judged | None:
    """Return all user requests so far by an objective; None if the server has no bound at or above it."""
    histogram = totals.histograms.get(latency)
    around = bounds_around(histogram, within_s)
    if histogram is None or around is None:
        return None
    below, at = around
    bound_s, good = histogram.buckets[at]
    doubts = totals.doubts.get(latency, (0.0,) * len(histogram.buckets))
    slow = histogram.count - good
    certain = good if below == at else (histogram.buckets[below][1] if below >= 0 else 0.0)
    return Judged(bound_s, histogram.count, slow, min(doubts[at], slow), good - certain)


class UsersHour:
    """What became of the objectives within about the last hour."""

    def __init__(self, objectives: Objectives) -> None:
        self._limits = {name: limit for name, limit in objectives.latencies().items() if name in LATENCIES}
        self._marks: deque[tuple[int, Mapping[str, Judged]]] = deque()
        self._now: Mapping[str, Judged] = {}

    def add(self, at_ns: int, totals: UserTotals) -> None:
        """Take the totals at a snapshot; unknown ones do not count."""
        found = {name: judged(totals, name, limit.within_s) for name, limit in self._limits.items()}
        self._now = {name: one for name, one in found.items() if one is not None}
        if not self._now:
            return
        if self._marks and self._marks[-1][1].keys() != self._now.keys():
            self._marks.clear()
        if not self._marks or at_ns - self._marks[-1][0] >= _MARK_NS:
            self._marks.append((at_ns, self._now))
        while len(self._marks) > 1 and self._marks[1][0] <= at_ns - _HOUR_NS:
            self._marks.popleft()

    def recent(self) -> Iterator[tuple[str, Judged, bool | None]]:
        """Yield each objective, the user requests of the last hour by it, and whether it was met."""
        for name, now in self._now.items():
            one = now - self._marks[0][1][name]
            if one.requests > 0 and one.slow >= 0:
                yield name, one, one.is_met(self._limits[name].ratio)

"""The guard from the stream alone: judges a server by the run's own answers, under load and before it. Pure.

For a server whose metrics cannot be read. A queue, preemptions, a full KV cache, a restart and users' own latency show
only as delays of probe requests, so this guard stops later than the one that reads the metrics.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from probe.core import reasons
from probe.core.objectives import LATENCIES, Objective, Objectives
from probe.core.request import Outcome, RequestRecord
from probe.observe.guard import GuardLimits, GuardVerdict, denied

# What remains unseen in a capacity that was measured with this guard.
_HIDDEN = tuple(dict.fromkeys(row.unseen for row in reasons.TRIPS if row.unseen))
UNSEEN = f"guarded by the run's own answers alone, which do not show {', '.join(_HIDDEN[:-1])} and {_HIDDEN[-1]}"
# How many requests are sent one at a time, to see the server without load.
UNLOADED_REQUESTS = 5
_RECENT = 10  # answers are judged, the newest
_SLOW = 5  # of them are too many slow ones
# After an overload a request alone may take as long as either allows.
_AS_BEFORE = 2.0  # times the unloaded latency
_EASILY = 0.5  # of the objective


@dataclass(frozen=True, slots=True)
class _Latency:
    name: str
    objective: Objective

    def of(self, record: RequestRecord) -> float | None:
        """Return the latency of a request; None where it is undefined or unknown."""
        return LATENCIES[self.name].of_request(record)

    @property
    def words(self) -> str:
        return LATENCIES[self.name].which or LATENCIES[self.name].title


class StreamGuard:
    """The answers of one run: first without load, then under load."""

    def __init__(self, limits: GuardLimits, objectives: Objectives) -> None:
        self._latencies = [_Latency(name, objective) for name, objective in objectives.latencies().items()]
        self._over_objective = limits.over_objective
        self._unloaded_s: dict[str, float] = {}  # medians, by the latency's name
        self._recent: deque[RequestRecord] = deque(maxlen=_RECENT)

    def observe_unloaded(self, records: Sequence[RequestRecord]) -> GuardVerdict | None:
        """Take in the answers of the unloaded server. Return why no load may begin: it is too slow already, or None."""
        for latency in self._latencies:
            if (seconds := _values(latency, records)) and (middle_s := median(seconds)) > 0:
                self._unloaded_s[latency.name] = middle_s
                if middle_s > latency.objective.within_s:
                    words = f"without load the median {latency.words} is {middle_s:.3g} s"
                    return denied(reasons.SLOW_UNLOADED, words)
        return None

    def forget_answers(self) -> None:
        """Forget the answers of a step that has ended."""
        self._recent.clear()

    def answered(self, record: RequestRecord) -> None:
        """Take in an answer under load."""
        if record.outcome is Outcome.OK:
            self._recent.append(record)

    def decide(self) -> GuardVerdict | None:
        """Return why the load has to end: half of the last answers took more than twice the objective; or None."""
        for latency in self._latencies:
            limit_s = self._over_objective * latency.objective.within_s
            slow = sum(seconds > limit_s for seconds in _values(latency, self._recent))
            if slow >= _SLOW:
                words = (
                    f"{slow} of the last {len(self._recent)} answers had a {latency.words} of more than {limit_s:g} s"
                )
                before_s = self._unloaded_s.get(latency.name)
                detail = words if before_s is None else f"{words}; without load {before_s:.3g} s"
                return denied(reasons.SLOW_ANSWERS, detail)
        return None

    def is_as_unloaded(self, records: Sequence[RequestRecord]) -> bool:
        """Return whether requests that were sent alone were answered as before the load, or well within objectives."""
        if not any(record.outcome is Outcome.OK for record in records):
            return False
        for latency in self._latencies:
            allowed_s = max(_AS_BEFORE * self._unloaded_s.get(latency.name, 0.0), _EASILY * latency.objective.within_s)
            if any(seconds > allowed_s for seconds in _values(latency, records)):
                return False
        return True


def _values(latency: _Latency, records: Sequence[RequestRecord] | deque[RequestRecord]) -> list[float]:
    return [seconds for record in records if (seconds := latency.of(record)) is not None]

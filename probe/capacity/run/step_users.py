"""The users' requests in a step of load, counted while it runs: whether they bring its load to its bound. Pure.

The server counts a request at its first token, and does not say whose. Of the run's own requests without one it may
have counted any, so users sent at least what is counted less all that was sent, and at most what is counted less those
that have begun.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from probe.capacity.search.live_users import BURST_S, at_most
from probe.core.request import RequestRecord
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepPlan
from probe.observe.user_load import requests_counted


class _Count(NamedTuple):
    at_ns: int
    least: float
    most: float


class StepUsers:
    """Counts the users' requests in one step; `ended` takes each of the run's own, `poll` each new snapshot."""

    def __init__(self, plan: StepPlan, before: ServerSnapshot | None, opens_ns: int) -> None:
        """Take `before`: the server without load; `opens_ns`: when the part of the step begins that is judged."""
        self._most_rps = math.inf if plan.most_users_rps is None else plan.most_users_rps
        self._usual_rps = plan.usual_users_rps
        self._seconds, self._opens_ns = plan.seconds, opens_ns
        self._before = requests_counted(before) if before is not None else None
        self._due_ns, self._firsts_ns = array("q"), array("q")
        self._surely = 0.0
        self._counts = [_Count(before.at_ns, 0.0, 0.0)] if before is not None else []

    def ended(self, record: RequestRecord) -> None:
        """Take a request that has ended."""
        self._due_ns.append(record.scheduled_ns)
        if record.events:
            self._firsts_ns.append(record.events.at_ns[0])

    def poll(
        self, server: ServerSnapshot, in_flight: Sequence[RequestRecord], others: Iterable[RequestRecord] = ()
    ) -> None:
        """Take a snapshot, the run's requests in flight, and other probe requests that have ended."""
        counted, at_ns = requests_counted(server), server.at_ns
        if self._before is None or counted is None or server.delay_s or at_ns <= self._counts[-1].at_ns:
            return
        began_ns = self._counts[0].at_ns
        beside = [record for record in others if began_ns < record.scheduled_ns <= at_ns]
        sent = sum(due_ns <= at_ns for due_ns in (*self._due_ns, *(record.scheduled_ns for record in in_flight)))
        begun = sum(first_ns <= at_ns for first_ns in self._firsts_ns) + sum(record.reads > 0 for record in in_flight)
        grown = counted - self._before - len(beside)
        # Users do not take a request back. A page that this machine read late has not counted what has begun since.
        self._surely = max(self._surely, grown - sent)
        self._counts.append(_Count(at_ns, grown - sent, max(grown - begun, self._surely)))

    def are_too_many(self) -> bool:
        """Return whether users surely sent more than the step allows for, since any moment in it.

        That is more than at the rate of its bound, and than chance adds to their usual rate. In less than BURST_S they
        may send as many as in BURST_S. Over all that is judged they may not, by chance either.
        """
        last = self._counts[-1]
        judged = next((each for each in self._counts if each.at_ns >= self._opens_ns), last)
        if last.least - judged.most > self._most_rps * max(self._seconds, self._since(judged)):
            return True
        return any(
            last.least - each.most > self._allowed(max(self._since(each), BURST_S)) for each in self._counts[:-1]
        )

    def _allowed(self, seconds: float) -> float:
        return max(self._most_rps * seconds, at_most(self._usual_rps * seconds))

    def _since(self, count: _Count) -> float:
        return (self._counts[-1].at_ns - count.at_ns) * 1e-9

"""When a step sends: warm-up, window, and the extension of a window with too few requests to be judged. Pure."""

from probe.core.step import StepPlan

# A timed step that has sent too few requests to be judged is extended, at most by this many times its length.
_MAX_EXTENSION = 2


class SendingWindow:
    """The times of one step, and the count of its requests. Requests due from `opens_ns` on are judged."""

    def __init__(self, plan: StepPlan, start_ns: int, *, total: int | None, enough: int) -> None:
        """`total`: end after this number of requests, not by time. `enough`: extend for at least so many."""
        self.start_ns = start_ns
        self.opens_ns = start_ns + int(plan.warm_up_s * 1e9)
        self.sent = 0
        self._end_ns = self.opens_ns + int(plan.seconds * 1e9)
        self._total = total
        self._enough = enough
        self._sent_inside = 0
        self._last_due_ns = 0
        self._over_ns: int | None = None  # when a timed step was first found to be over

    def add(self, due_ns: int) -> int:
        """Count a request as sent. Return its number."""
        self.sent += 1
        self._sent_inside += due_ns >= self.opens_ns
        self._last_due_ns = due_ns
        return self.sent

    def is_open(self, at_ns: int) -> bool:
        """Return whether the step still sends: by number, or by time, extended while there are too few to judge.

        The first time found to be over is kept: until then an extended step was fully loaded.
        """
        if self._total is not None:
            return self.sent < self._total
        longest_ns = self._end_ns + _MAX_EXTENSION * (self._end_ns - self.opens_ns)
        inside = at_ns < self._end_ns or (self._sent_inside < self._enough and at_ns < longest_ns)
        if not inside and self._over_ns is None:
            self._over_ns = at_ns
        return inside

    def closes_ns(self, last_done_ns: int, *, is_cut_short: bool) -> int:
        """Return the end of the window that is judged, given when the last request was done."""
        closes_ns = last_done_ns
        if self._total is None and not is_cut_short:
            over_ns = self._end_ns if self._last_due_ns < self._end_ns else self._over_ns or last_done_ns
            closes_ns = min(over_ns, last_done_ns)
        return max(closes_ns, self.opens_ns)

"""The truth server's own record: the timings it wrote, and how late it was against its schedule.

Input: times in nanoseconds, as they happen. Output: one report in milliseconds, with exact percentiles.
"""

import time
from array import array


class Truth:
    """Everything since a reset. The server appends to the arrays itself: a call for every token would cost too much."""

    def __init__(self) -> None:
        self.ttfts, self.gaps, self.lates = array("q"), array("q"), array("q")
        self.turns, self._unread, self._means = array("q"), array("q"), array("q")
        self._requests = self._left = self._joined = self._first_request_ns = self._busy_since_ns = self._busy_ns = 0
        self._cpu_s = time.process_time()

    def asked(self, at_ns: int, unread_ns: int) -> None:
        """Record that a stream begins, `unread_ns` after the kernel received its request."""
        self._unread.append(unread_ns)
        self._first_request_ns = self._first_request_ns or at_ns
        self._busy_since_ns = self._busy_since_ns or at_ns

    def together(self, late_ns: int, count: int, itl_ns: int) -> None:
        """Record that `count` tokens of one stream were due and leave in one write: all but the first without a gap."""
        self._joined += count - 1
        for extra in range(1, count):
            self.gaps.append(0)
            self.lates.append(late_ns - extra * itl_ns)

    def answered(self, at_ns: int, mean_gap_ns: int, *, idle: bool) -> None:
        """Record that a stream is written to its end; with `idle` no other is open."""
        self._requests += 1
        self._means.append(mean_gap_ns)
        self._ended(at_ns, idle=idle)

    def abandoned(self, at_ns: int, *, idle: bool) -> None:
        """Record that the client left before the end of its stream."""
        self._left += 1
        self._ended(at_ns, idle=idle)

    def _ended(self, at_ns: int, *, idle: bool) -> None:
        if idle:
            self._busy_ns += at_ns - self._busy_since_ns
            self._busy_since_ns = 0

    def report(self) -> dict[str, float]:
        """Return TTFT and ITL as written, lateness, duration of a loop turn, time requests waited unread, and the cost.

        `joined` counts the tokens that shared a write, since the server was late by more than an ITL.
        `first_request_ns` is on CLOCK_MONOTONIC, which all processes of a machine share. `busy_s` is the time
        in which at least one stream was open.
        """
        spent_s = time.process_time() - self._cpu_s
        return {
            "requests": self._requests,
            "left": self._left,
            "tokens": len(self.lates),
            "joined": self._joined,
            "first_request_ns": self._first_request_ns,
            "busy_s": self._busy_ns / 1e9,
            "cpu_s": round(spent_s, 4),
            **_percentiles("ttft", self.ttfts),
            **_percentiles("itl", self.gaps),
            **_percentiles("itl_mean", self._means),  # of each request's gaps: what some clients call ITL
            **_percentiles("late", self.lates),
            **_percentiles("turn", self.turns),
            **_percentiles("unread", self._unread),
        }


def _percentiles(name: str, values_ns: "array[int]") -> dict[str, float]:
    """Return exact percentiles, by nearest rank."""
    ordered = sorted(values_ns)
    if not ordered:
        return dict.fromkeys((f"{name}_{key}_ms" for key in ("p50", "p99", "max")), 0.0)
    ranks = {"p50": -(-len(ordered) // 2), "p99": -(-len(ordered) * 99 // 100), "max": len(ordered)}
    return {f"{name}_{key}_ms": round(ordered[rank - 1] / 1e6, 4) for key, rank in ranks.items()}

"""What a server's users ask of it, and whether it was replaced of late: from its counters, read again and again.

In: readings of the server, and our own canaries, which are not users. Out: rates over the last minutes. It does no I/O.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.observe.restarts import restarted

_WINDOW_NS = 300 * 10**9  # the last five minutes
_LEAST_S = 30.0  # over less, a canary more or less is a rate
_SHORTEST_S = 1.0
# Those that time the first token of requests that are streamed only.
_STREAMED_ONLY = ("sglang", "litellm")


@dataclass(frozen=True, slots=True)
class _Reading:
    at_ns: int
    requests: float | None
    output_tokens: float | None


class LiveLoad:
    """The last minutes of one server."""

    def __init__(self) -> None:
        self._last: ServerSnapshot | None = None
        self._changed: tuple[int, str] | None = None
        self._readings: deque[_Reading] = deque()
        self._canaries: deque[tuple[int, int]] = deque()  # when it was done, its output tokens

    def reading(self, server: ServerSnapshot) -> None:
        """The server was read."""
        words = restarted(self._last, server) if self._last is not None else None
        if words is not None:
            self._changed = (server.at_ns, words)
            self._readings.clear()
        self._last = server
        self._readings.append(_Reading(server.at_ns, requests_counted(server), server.generation_tokens))
        # Two are kept whatever their age: a server may be read every ten minutes.
        while len(self._readings) > 2 and self._readings[1].at_ns < server.at_ns - _WINDOW_NS:  # noqa: PLR2004
            self._readings.popleft()

    def canary(self, record: RequestRecord) -> None:
        """A request of ours ended."""
        if record.output_tokens:
            self._canaries.append((record.done_ns, record.output_tokens))
        while self._readings and self._canaries and self._canaries[0][0] < self._readings[0].at_ns:
            self._canaries.popleft()

    def forget(self) -> None:
        """Forgets the rates: there was step-up load of ours among them."""
        self._readings.clear()
        self._canaries.clear()

    def users(self) -> UserLoad | None:
        """Their load over the last minutes; None where too little has been seen of it."""
        if not self._readings:
            return None
        first, last = self._readings[0], self._readings[-1]
        seconds = (last.at_ns - first.at_ns) * 1e-9
        if seconds < _LEAST_S:
            return None
        ours = [tokens for at_ns, tokens in self._canaries if first.at_ns < at_ns <= last.at_ns]
        return UserLoad(
            _rate(first.requests, last.requests, len(ours), seconds),
            _rate(first.output_tokens, last.output_tokens, sum(ours), seconds),
        )

    def changed(self, now_ns: int) -> tuple[float, str] | None:
        """How many seconds ago the server was found to be another one, and what showed it; None: never."""
        return ((now_ns - self._changed[0]) * 1e-9, self._changed[1]) if self._changed else None


def users_beside(records: Iterable[RequestRecord], readings: Sequence[ServerSnapshot]) -> UserLoad:
    """The load of everybody but the senders of `records`, from the first reading to the last, in which these lie.

    Nothing is known where one of ours was cancelled: how much of it the server had counted, only the server knows.
    """
    ours = list(records)
    seen = [reading for reading in readings if "ttft" in reading.histograms]
    if not seen or any(record.outcome is Outcome.ABORTED for record in ours):
        return UserLoad()
    first, last = seen[0], seen[-1]
    seconds = (last.at_ns - first.at_ns) * 1e-9
    if seconds < _SHORTEST_S or restarted(first, last) is not None:
        return UserLoad()
    events = [record.events for record in ours]
    begun = sum(len(e) > 0 and first.at_ns < e.at_ns[0] <= last.at_ns for e in events)
    tokens = sum(sum(e.tokens[bisect_right(e.at_ns, first.at_ns) : bisect_right(e.at_ns, last.at_ns)]) for e in events)
    return UserLoad(
        _rate(requests_counted(first), requests_counted(last), begun, seconds),
        _rate(first.generation_tokens, last.generation_tokens, tokens, seconds),
    )


def mean(parts: Sequence[tuple[UserLoad, float]]) -> UserLoad:
    """Several stretches as one; each with its seconds."""

    def over_time(rates: Sequence[tuple[float | None, float]]) -> float | None:
        known = [(rate, seconds) for rate, seconds in rates if rate is not None]
        whole = sum(seconds for _, seconds in known)
        return sum(rate * seconds for rate, seconds in known) / whole if whole else None

    return UserLoad(
        over_time([(users.requests_per_second, seconds) for users, seconds in parts]),
        over_time([(users.output_tokens_per_second, seconds) for users, seconds in parts]),
    )


def counts_first_tokens(server: ServerSnapshot) -> bool:
    """Whether `requests_counted` counts a request at its first token, and not at its end."""
    return "ttft" in server.histograms and not (server.engine in _STREAMED_ONLY and server.finished)


def requests_counted(server: ServerSnapshot) -> float | None:
    """Requests so far. First tokens: what finished counts errors and aborts too, and long answers late."""
    if counts_first_tokens(server):
        return server.histograms["ttft"].count
    return sum(server.finished.values()) if server.finished else None


def _rate(before: float | None, after: float | None, ours: int, seconds: float) -> float | None:
    return max(after - before - ours, 0.0) / seconds if before is not None and after is not None else None

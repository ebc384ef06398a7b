"""The lengths of users' requests over about the last day. Pure.

In: a server's snapshots, and the user totals at each. Out: the histograms of what users sent since a mark. There
is a mark every four hours.
"""

from collections import deque
from dataclasses import dataclass

from probe.core.snapshot import Histogram, ServerSnapshot, UserTotals
from probe.observe.histogram_arithmetic import growth, have_same_buckets
from probe.observe.probe_traffic import LENGTHS

_EVERY_NS = 4 * 3600 * 10**9
_MARKS = 6  # so that it is the last 20 to 24 hours


@dataclass(frozen=True, slots=True)
class UserLengths:
    """Histograms of prompt and output tokens, and the prompt tokens looked up and found in the prefix cache."""

    prompts: Histogram
    outputs: Histogram
    queries: float = 0.0
    hits: float = 0.0

    @property
    def hit_ratio(self) -> float:
        """Return the share of prompt tokens that were in the prefix cache."""
        return min(self.hits / self.queries, 1.0) if self.queries else 0.0


class LengthHistory:
    """The lengths since the oldest of the marks."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, UserLengths]] = deque(maxlen=_MARKS)
        self._now: UserLengths | None = None
        self._last: ServerSnapshot | None = None
        self._queries = self._hits = 0.0

    def add(self, server: ServerSnapshot, totals: UserTotals) -> None:
        """Take the user totals at a snapshot."""
        last, self._last = self._last, server
        if last is not None:
            self._queries += _growth(last.prefix_cache_queries, server.prefix_cache_queries)
            self._hits += _growth(last.prefix_cache_hits, server.prefix_cache_hits)
        prompts, outputs = (totals.histograms.get(key) for key in LENGTHS)
        if prompts is None or outputs is None:
            return
        self._now = UserLengths(prompts, outputs, self._queries, self._hits)
        if self._marks and not _can_compare(self._marks[-1][1], self._now):
            self._marks.clear()  # another max_model_len has other buckets
        if not self._marks or server.at_ns - self._marks[-1][0] >= _EVERY_NS:
            self._marks.append((server.at_ns, self._now))

    def pause(self) -> None:
        """Leave out what the prefix cache counts until the next snapshot: it is of a load."""
        self._last = None

    def recent(self) -> UserLengths | None:
        """Return the lengths since the oldest mark; None if the server shows none."""
        if self._now is None or not self._marks:
            return None
        before, now = self._marks[0][1], self._now
        return UserLengths(
            growth(before.prompts, now.prompts),
            growth(before.outputs, now.outputs),
            now.queries - before.queries,
            now.hits - before.hits,
        )


def lengths_since_start(server: ServerSnapshot) -> UserLengths | None:
    """Return the lengths of all requests since the server's start; None if its page does not show them."""
    prompts, outputs = (server.histograms.get(key) for key in LENGTHS)
    if prompts is None or outputs is None:
        return None
    return UserLengths(prompts, outputs, server.prefix_cache_queries or 0.0, server.prefix_cache_hits or 0.0)


def _can_compare(before: UserLengths, now: UserLengths) -> bool:
    return have_same_buckets(before.prompts, now.prompts) and have_same_buckets(before.outputs, now.outputs)


def _growth(before: float | None, after: float | None) -> float:
    """Return the growth of a counter; 0 where it is unknown or has fallen."""
    return max(after - before, 0.0) if before is not None and after is not None else 0.0

"""How much later the client of a probe request sees its first token than the server counts it. Pure.

In: what a server's TTFT histogram grew by while only known probe requests were sent, and what the client measured of
them. Out: the range of the delay by network and gateway.

A probe request's own TTFT at the server lies in one of the buckets that grew, so each such growth bounds the delay:
from below by the highest of them, from above by the lowest. If nobody else asked, the sum tells it exactly.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import inf
from statistics import fmean

from probe.core.snapshot import Histogram

# Two answers of one server seldom differ by more in how long they are under way.
JITTER_S = 0.005
_EXACT_JITTER_S = 0.001  # beyond what the last comparisons differ by
_AGE_NS = 3600 * 10**9
_LEAST_SEEN = 3
_MOST_SEEN = 60
_MOST_EXACT = 20
_MOST_SAMPLES = 8  # in one growth: with more, every bucket has grown
_OUTLIERS = 0.1
UNKNOWN = (0.0, inf)


class Distance:
    """The delay of one target's requests, from the last hour."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=_MOST_SEEN)  # at_ns, at least, at most
        self._exact: deque[tuple[int, float]] = deque(maxlen=_MOST_EXACT)

    def add(self, at_ns: int, grown: Histogram, ttfts_s: Sequence[float]) -> None:
        """Take the growth of the histogram, in which are these requests' TTFTs, measured by the client."""
        if not 0 < len(ttfts_s) <= min(_MOST_SAMPLES, grown.count):
            return
        if grown.count == len(ttfts_s):
            gap_s = fmean(ttfts_s) - grown.sum / grown.count
            if gap_s >= 0:  # else the server measures something else: it cannot be later
                self._exact.append((at_ns, gap_s))
        lower, upper = _extent(grown)
        for ttft_s in ttfts_s:
            self._seen.append((at_ns, max(ttft_s - upper, 0.0), max(ttft_s - lower, 0.0)))

    def range_s(self, now_ns: int) -> tuple[float, float]:
        """Return the least and the most that it is now; 0 and infinity while it is unknown.

        Where the evidence is contradictory, because the delay varies, the range spans it.
        """
        exact = sorted(gap for at_ns, gap in self._exact if now_ns - at_ns < _AGE_NS)
        if exact:
            jitter_s = _EXACT_JITTER_S if len(exact) >= _LEAST_SEEN else JITTER_S
            return max(exact[0] - jitter_s, 0.0), exact[-1] + jitter_s
        seen = [each for each in self._seen if now_ns - each[0] < _AGE_NS]
        if len(seen) < _LEAST_SEEN:
            return UNKNOWN
        outliers = int(_OUTLIERS * len(seen))
        least = sorted(each[1] for each in seen)[-1 - outliers]
        most = sorted(each[2] for each in seen)[outliers]
        return min(least, most), max(least, most)


def _extent(grown: Histogram) -> tuple[float, float]:
    """Return the bounds between which all samples of a histogram are."""
    counts = [count for _, count in grown.buckets]
    bounds = [le for le, _ in grown.buckets]
    first = next(i for i, count in enumerate(counts) if count > 0)
    last = bisect_left(counts, counts[-1])
    return bounds[first - 1] if first else 0.0, bounds[last]

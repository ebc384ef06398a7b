"""TTFT and TPOT of a target's canaries and users in the last 24 hours: medians and 95th percentiles of ten minutes.

At most SLOTS slots of eight figures are kept, 4.6 kB, and what the one under way is made of. Another thread may read
while figures are added.

A canary that was not answered is longer than every other one: infinite. So is what lies above the last finite bound of
a server's histogram; between two bounds, users' latencies are interpolated, as Prometheus does it. An answer without
tokens has its E2E as TTFT.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan, nan

from probe.core import latency
from probe.core.request import RequestRecord
from probe.core.snapshot import Histogram

SLOT_S = 600
SLOTS = 86400 // SLOT_S
LATENCIES = ("ttft", "tpot")
CANARIES, USERS = "canaries", "users"
QUANTILES = (0.5, 0.95)
# The figures of a slot.
COLUMNS = tuple((who, name, q) for who in (CANARIES, USERS) for name in LATENCIES for q in QUANTILES)
Row = tuple[int | float | None, ...]  # the slot, and its figures; None: unknown
_MOST = 4096  # canaries of a slot; more would be several a second


def slot_of(wall_s: float) -> int:
    """Return the number of the ten minutes of a wall time."""
    return int(wall_s // SLOT_S)


class LatencyDay:
    """The figures of one target."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Continue with `rows` of `rows_from` from before a restart."""
        self._closed: dict[int, Sequence[float]] = {}
        self._slot: int | None = None  # under way
        self._canaries: dict[str, list[float]] = {name: [] for name in LATENCIES}
        self._before: Mapping[str, Histogram] = {}  # users' totals when the slot began, and now
        self._after: Mapping[str, Histogram] = {}
        for slot, *figures in rows:
            self._keep(int(slot or 0), [nan if one is None else one for one in figures])

    def add(self, record: RequestRecord) -> None:
        """Count a canary that shows whether the server is up."""
        if record.is_up is None:
            return
        self._begin(slot_of(record.done_wall_s))
        found = (latency.wait_s(record), latency.tpot_s(record)) if record.is_up else (inf, inf)
        for values, value in zip(self._canaries.values(), found, strict=True):
            if value is not None and len(values) < _MOST:
                values.append(value)

    def add_users(self, wall_s: float, totals: Mapping[str, Histogram]) -> None:
        """Take the totals of users' latencies at a scrape."""
        self._begin(slot_of(wall_s))
        self._after = totals
        self._before = self._before or totals

    def last(self, who: str, name: str, q: float, now_s: float) -> Sequence[float | None]:
        """Return one figure of each slot of the last 24 hours (s), the oldest first; the last one is under way."""
        column, newest = COLUMNS.index((who, name, q)), slot_of(now_s)
        found = (self._figures(slot) for slot in range(newest - SLOTS + 1, newest + 1))
        values = (figures[column] if figures is not None else nan for figures in found)
        return [None if isnan(value) else value for value in values]

    def rows_from(self, slot: int) -> Iterator[Row]:
        """Yield the figures of this slot and the later ones, to be stored."""
        for each in sorted({*self._closed, *(() if self._slot is None else (self._slot,))}):
            figures = self._figures(each)
            if each >= slot and figures is not None and not all(map(isnan, figures)):
                yield each, *(None if isnan(one) else one for one in figures)

    def _figures(self, slot: int) -> Sequence[float] | None:
        return self._under_way() if slot == self._slot else self._closed.get(slot)

    def _begin(self, slot: int) -> None:
        """Close the slot under way if this one is another."""
        if slot == self._slot:
            return
        if self._slot is not None:
            self._keep(self._slot, self._under_way())
            self._canaries = {name: [] for name in LATENCIES}
            self._before = self._after
        self._slot = slot

    def _keep(self, slot: int, figures: Sequence[float]) -> None:
        self._closed[slot] = array("f", figures)
        while len(self._closed) > SLOTS:  # the furthest one: the clock may have leapt, either way
            del self._closed[max(self._closed, key=lambda each: abs(each - slot))]

    def _under_way(self) -> Sequence[float]:
        canaries = [_percentile(values, q) for values in self._canaries.values() for q in QUANTILES]
        before, after = self._before, self._after
        users = [between(before.get(name), after.get(name), q) for name in LATENCIES for q in QUANTILES]
        # A restart may have been in this slot: what it has not seen since is as it was before.
        known = self._closed.get(self._slot or 0, (nan,) * len(COLUMNS))
        return [was if isnan(one) else one for one, was in zip(canaries + users, known, strict=True)]


def _percentile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least the share `q` does not exceed; infinity may be one of them."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else nan


def between(before: Histogram | None, after: Histogram | None, q: float) -> float:
    """Return the q-quantile of what a histogram has counted since `before`; NaN if that is nothing or not known."""
    if before is None or after is None or [one for one, _ in before.buckets] != [one for one, _ in after.buckets]:
        return nan
    wanted, below, low = q * (after.count - before.count), 0.0, 0.0
    for (bound, now), (_, was) in zip(after.buckets, before.buckets, strict=True):
        count = now - was
        if wanted > 0 and count >= wanted:
            return inf if bound == inf else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return nan

"""Counts of a target's canaries in the last 30 days, by half hours. A half hour without canaries is unknown, not good.

Its arrays never change their length, so another thread may read while canaries are added; it may miss the newest.

The wall clock may leap, for a minute or for good. What was known before a leap is kept beside, and is in force again
when the clock is nearer to it than to what was counted since.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import RequestRecord

SLOT_S = 1800
SLOTS = 30 * 86400 // SLOT_S
# sent: all that Kneewatch did not cancel. judged: answered, and the latency is known. slow: missed a latency objective.
COUNTS = ("sent", "failed", "judged", "slow", *slo.LATENCIES)
Row = tuple[int, ...]  # the slot, and the counts


def slot_of(wall_s: float) -> int:
    """Return the number of the half hour of a wall time."""
    return int(wall_s // SLOT_S)


_A_LEAP = 2  # half hours without canaries: more may be a leap of the clock


@dataclass(slots=True)
class _Rings:
    """The counts of the 30 days that end with the half hour `newest`; the totals are the sums of the rings."""

    newest: int
    rings: dict[str, "array[int]"] = field(default_factory=lambda: {name: array("I", [0] * SLOTS) for name in COUNTS})
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    known: int = 0  # half hours with canaries

    def copy(self) -> "_Rings":
        return _Rings(self.newest, {name: ring[:] for name, ring in self.rings.items()}, dict(self.totals), self.known)

    def advance(self, slot: int) -> None:
        """Make this half hour the newest, and forget those that are too old then."""
        for each in range(max(self.newest + 1, slot - SLOTS + 1), slot + 1):
            self.known -= self.rings["sent"][each % SLOTS] > 0
            for name, ring in self.rings.items():
                self.totals[name] -= ring[each % SLOTS]
                ring[each % SLOTS] = 0
        self.newest = max(self.newest, slot)

    def count(self, name: str, slot: int, count: int) -> None:
        ring = self.rings[name]
        self.known += name == "sent" and count > 0 and not ring[slot % SLOTS]
        ring[slot % SLOTS] += count
        self.totals[name] += count


class CanaryHistory:
    """The counts of one target."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Continue with `rows` of `rows_from` from before a restart, in ascending order."""
        self._now: _Rings | None = None  # None: no canary yet
        self._before: _Rings | None = None  # a leap
        for slot, *counts in rows:
            self._now = self._now or _Rings(slot)
            self._now.advance(slot)
            for name, count in zip(COUNTS, counts, strict=True):
                self._now.count(name, slot, count)

    def add(self, record: RequestRecord, objectives: Objectives) -> None:
        """Count a canary."""
        verdict = slo.met(record, objectives)
        if not verdict:
            return
        slot = slot_of(record.done_wall_s)
        now = self._at(slot)
        is_good = verdict[slo.AVAILABILITY]
        missed = [name for name in objectives.latencies() if not verdict.get(name, True)]
        now.count("sent", slot, 1)
        now.count("failed", slot, not is_good)
        now.count("judged", slot, is_good and slo.ALL in verdict)
        now.count("slow", slot, bool(missed))
        for name in set(COUNTS).intersection(missed):
            now.count(name, slot, 1)

    def last(self, name: str, slots: int, now_s: float) -> Sequence[int]:
        """Return a count for each of the last `slots` half hours, the oldest first; the last one is under way."""
        if self._now is None:
            return [0] * slots
        ring, after = self._now.rings[name], self._now.newest % SLOTS + 1
        gap = min(max(slot_of(now_s) - self._now.newest, 0), SLOTS)
        in_order = ring[after:] + ring[:after] + array("I", [0] * gap)
        return in_order[-slots:]

    def total(self, name: str, slots: int, now_s: float) -> int:
        """Return the sum of `last`."""
        if slots == SLOTS and self._now is not None and self._now.newest == slot_of(now_s):
            return self._now.totals[name]
        return sum(self.last(name, slots, now_s))

    def known_slots(self, slots: int, now_s: float) -> int:
        """Return how many of the last half hours had canaries."""
        if slots == SLOTS and self._now is not None and self._now.newest == slot_of(now_s):
            return self._now.known
        return slots - self.last("sent", slots, now_s).count(0)

    def rows_from(self, slot: int) -> Iterator[Row]:
        """Yield the counts of this half hour and the later ones, to be stored."""
        if self._now is not None:
            for each in range(max(slot, self._now.newest - SLOTS + 1), self._now.newest + 1):
                counts = [self._now.rings[name][each % SLOTS] for name in COUNTS]
                if counts[0]:
                    yield each, *counts

    def _at(self, slot: int) -> _Rings:
        """Return the counts of the days around this half hour, which is one of them now."""
        now, before = self._now, self._before
        if now is not None and before is not None and abs(slot - before.newest) < abs(slot - now.newest):
            now, self._before = before, None
        elif now is not None and (slot > now.newest + _A_LEAP or slot <= now.newest - SLOTS):
            if before is None or now.known >= before.known:  # not those of a clock that has leapt already
                self._before = now.copy()
            now = now if slot > now.newest else None
        now = now or _Rings(slot)
        now.advance(slot)
        self._now = now
        return now

"""Counts of a target's canaries in the last 30 days, by half hours. A half hour without canaries is unknown, not good.

Its arrays never change their length, so another thread may read while canaries are added; it may miss the newest.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

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


class CanaryHistory:
    """The counts of one target, in rings."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """Continue with `rows` of `rows_from` from before a restart, in ascending order."""
        self._rings = {name: array("I", [0] * SLOTS) for name in COUNTS}
        self._totals = dict.fromkeys(COUNTS, 0)  # the sums of the rings
        self._known = 0  # half hours with canaries
        self._newest: int | None = None
        for slot, *counts in rows:
            self._advance(slot)
            for name, count in zip(COUNTS, counts, strict=True):
                self._count(name, slot, count)

    def add(self, record: RequestRecord, objectives: Objectives) -> None:
        """Count a canary."""
        verdict = slo.met(record, objectives)
        if not verdict:
            return
        slot = slot_of(record.done_wall_s)
        self._advance(slot)
        is_good = verdict[slo.AVAILABILITY]
        missed = [name for name in objectives.latencies() if not verdict.get(name, True)]
        self._count("sent", slot)
        self._count("failed", slot, not is_good)
        self._count("judged", slot, is_good and slo.ALL in verdict)
        self._count("slow", slot, bool(missed))
        for name in set(COUNTS).intersection(missed):
            self._count(name, slot)

    def last(self, name: str, slots: int, now_s: float) -> Sequence[int]:
        """Return a count for each of the last `slots` half hours, the oldest first; the last one is under way."""
        if self._newest is None:
            return [0] * slots
        ring, after = self._rings[name], self._newest % SLOTS + 1
        gap = min(max(slot_of(now_s) - self._newest, 0), SLOTS)
        in_order = ring[after:] + ring[:after] + array("I", [0] * gap)
        return in_order[-slots:]

    def total(self, name: str, slots: int, now_s: float) -> int:
        """Return the sum of `last`."""
        if slots == SLOTS and self._newest == slot_of(now_s):
            return self._totals[name]
        return sum(self.last(name, slots, now_s))

    def known_slots(self, slots: int, now_s: float) -> int:
        """Return how many of the last half hours had canaries."""
        if slots == SLOTS and self._newest == slot_of(now_s):
            return self._known
        return slots - self.last("sent", slots, now_s).count(0)

    def rows_from(self, slot: int) -> Iterator[Row]:
        """Yield the counts of this half hour and the later ones, to be stored."""
        if self._newest is not None:
            for each in range(max(slot, self._newest - SLOTS + 1), self._newest + 1):
                counts = [self._rings[name][each % SLOTS] for name in COUNTS]
                if counts[0]:
                    yield each, *counts

    def _advance(self, slot: int) -> None:
        """Make this half hour one of the ring, and forget those that are too old for it."""
        newest = self._newest
        is_far = newest is None or abs(slot - newest) >= SLOTS  # far in the past: the clock was ahead
        stale = range(SLOTS) if newest is None or is_far else range(newest + 1, slot + 1)
        for each in stale:
            self._known -= self._rings["sent"][each % SLOTS] > 0
            for name, ring in self._rings.items():
                self._totals[name] -= ring[each % SLOTS]
                ring[each % SLOTS] = 0
        if stale:
            self._newest = slot

    def _count(self, name: str, slot: int, count: int = 1) -> None:
        ring = self._rings[name]
        self._known += name == "sent" and count > 0 and not ring[slot % SLOTS]
        ring[slot % SLOTS] += count
        self._totals[name] += count

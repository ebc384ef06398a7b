"""A server's counters as totals that never fall, whatever its replicas do. Pure.

In: its snapshots, in order. Out: the same snapshots with counters and histograms that may be exported. As in PromQL,
the growth of each process is taken first and the sum afterwards: in a sum of counters, a replica that restarts or goes
is a fall, which Prometheus takes for growth of all that is left, and one that comes with a history is a jump.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probe.core.server_values import BY_KEY, VALUES, Merge, Value, ValueKind, plain_counters
from probe.core.snapshot import Histogram, ServerSnapshot, as_fields
from probe.observe import histogram_arithmetic
from probe.observe.histogram_arithmetic import growth, have_same_buckets

# A replica that discovery loses for some scrapes counts on as if it had been there: Prometheus looks back as far.
_REMEMBERED_NS = 300 * 10**9
# A process that began earlier than this before the last page of another at its address has not replaced it.
_CLOCKS_DIFFER_S = 60.0
_MAX_LABELS = 20
_OTHER = "other"
_MAX_BOUNDS = 220  # twice what one page may have; more are of a page that keeps changing them
_PLAIN = plain_counters()
_LABELLED: tuple[Value, ...] = tuple(row for row in VALUES if row.label and row.kind is ValueKind.COUNTER)
_Labelled = dict[str, dict[str, float]]


@dataclass(slots=True)
class _Counted:
    """What has been counted, by the keys of the values: by one process, or altogether. `labelled`: by label's value."""

    at_ns: int = 0
    wall_s: float = 0.0
    plain: dict[str, float] = field(default_factory=dict)
    labelled: _Labelled = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)


_NOTHING = _Counted()
_Process = tuple[str, str | None, float | None]  # a page's address, its engine (None: all), when its process began


class CountedTotals:
    """The totals of one server. Of a single page with a single engine they are the page's own.

    Totals of several begin at zero, so that a Kneewatch that restarts is a counter reset without growth: it does not
    know what had been counted by replicas that are gone.
    """

    def __init__(self) -> None:
        self._last: dict[_Process, _Counted] = {}
        self._totals: _Counted | None = None  # None: the server has had one page with one engine so far
        self._only: ServerSnapshot | None = None

    def add(self, snapshot: ServerSnapshot) -> ServerSnapshot:
        """Return the next snapshot with totals in place of its counters and histograms."""
        if self._totals is None and not snapshot.replicas and not snapshot.counted_apart:
            self._only = snapshot
            return snapshot
        if self._totals is None:
            self._totals = _counted(self._only) if self._only is not None else _Counted()
        now: dict[_Process, _Counted] = {}
        pages = snapshot.replicas or {"": snapshot}
        for address, engine, one in _apart(pages):
            page = pages[address]
            process, counted = (address, engine, page.started_s), _counted(one)
            counted.at_ns, counted.wall_s = page.at_ns, page.wall_s
            before = self._before(process)
            if before is not None:
                _add_growth(self._totals, before, counted)
                counted.plain = before.plain | counted.plain
                counted.histograms = before.histograms | counted.histograms
            now[process] = counted
        self._last = {
            process: one
            for process, one in self._last.items()
            if one.at_ns > snapshot.at_ns - _REMEMBERED_NS
            # Not the engines of a page that is read as a whole now, nor the reverse: they would count twice.
            and (process[0] not in pages or (process[1] is None) != bool(pages[process[0]].counted_apart))
        } | now
        return _with_totals(snapshot, self._totals)

    def _before(self, process: _Process) -> _Counted | None:
        """Return what a process had counted: by its last page, nothing if it has replaced another since, or None if it
        is new here and may have counted for long.
        """
        if (last := self._last.get(process)) is not None:
            return last
        *name, started_s = process
        others = [(began_s, one.wall_s) for (*other, began_s), one in self._last.items() if other == name]
        if not others or started_s is None:
            return None
        is_latest = all(began_s is not None and began_s < started_s for began_s, _ in others)
        has_replaced = started_s > max(wall_s for _, wall_s in others) - _CLOCKS_DIFFER_S
        return _NOTHING if is_latest and has_replaced else None


def by_engine(snapshot: ServerSnapshot) -> Iterator[tuple[str, ServerSnapshot]]:
    """Yield the counters of each engine with its name in `ServerSnapshot.by_engine`."""
    pages = snapshot.replicas or {"": snapshot}
    for address, engine, one in _apart(pages):
        yield "/".join(filter(None, (address, engine))), one


def _apart(pages: Mapping[str, ServerSnapshot]) -> Iterator[tuple[str, str | None, ServerSnapshot]]:
    """Yield what counts on its own: a page, or each engine of it and what it counts for all of them ("")."""
    for address, page in pages.items():
        if page.counted_apart:
            yield from ((address, engine, one) for engine, one in page.counted_apart.items())
        else:
            yield address, None, page


def _counted(snapshot: ServerSnapshot) -> _Counted:
    return _Counted(
        plain={key: value for key in _PLAIN if (value := snapshot.value(key)) is not None},
        labelled={row.key: dict(snapshot.parts(row.key)) for row in _LABELLED},
        histograms=dict(snapshot.histograms),
    )


def _add_growth(totals: _Counted, before: _Counted, now: _Counted) -> None:
    """Add what a process has counted since `before`. A value that has fallen counts from zero."""
    is_new = before is _NOTHING
    for key, value in now.plain.items():
        # A value that appears with its first event was zero; any other may have been counted unseen.
        was = before.plain.get(key, 0.0 if is_new or BY_KEY[key].merge is Merge.PRESENT else value)
        totals.plain[key] = totals.plain.get(key, 0.0) + (value - was if value >= was else value)
    for key, of in now.labelled.items():
        known, were = totals.labelled.setdefault(key, {}), before.labelled.get(key, {})
        for label, value in of.items():
            was = were.get(label, 0.0)
            name = label if label in known or len(known) < _MAX_LABELS else _OTHER
            known[name] = known.get(name, 0.0) + (value - was if value >= was else value)
    for key, histogram in now.histograms.items():
        if key in totals.histograms and before.histograms.get(key) == histogram:
            continue  # nothing to add up, which is most of the work
        grown = _grown(None if is_new else before.histograms.get(key, histogram), histogram)
        total = totals.histograms.get(key)
        totals.histograms[key] = grown if total is None else _added(total, grown)


def _grown(before: Histogram | None, now: Histogram) -> Histogram:
    """Return the growth of a process' histogram, whose counts are cumulative: one that fell is of another histogram."""
    if before is None or not have_same_buckets(before, now):
        return now if before is None else histogram_arithmetic.empty(now)
    if any(new < old for (_, old), (_, new) in zip(before.buckets, now.buckets, strict=True)):
        return now
    found = growth(before, now)
    return replace(found, sum=max(found.sum, 0.0))


def _added(total: Histogram, grown: Histogram) -> Histogram:
    """Return the sum in the buckets of both. A count that one of them does not have is that of its next lower bucket,
    so that no latency looks better than it was.
    """
    if have_same_buckets(total, grown):
        return histogram_arithmetic.add(total, grown)
    bounds = sorted({le for one in (total, grown) for le, _ in one.buckets})
    if len(bounds) > _MAX_BOUNDS:
        return grown
    return histogram_arithmetic.add(_within(total, bounds), _within(grown, bounds))


def _within(histogram: Histogram, bounds: Sequence[float]) -> Histogram:
    """Return the histogram in other buckets."""
    counts, found, count = list(histogram.buckets), [], 0.0
    for bound in bounds:
        while counts and counts[0][0] <= bound:
            count = counts.pop(0)[1]
        found.append((bound, count))
    return Histogram(tuple(found), histogram.sum)


def _with_totals(snapshot: ServerSnapshot, totals: _Counted) -> ServerSnapshot:
    """Return the snapshot with the totals of what it has, and of what has appeared with an event of a replica."""
    plain: dict[str, Any] = {
        key: totals.plain.get(key, 0.0)
        for key in _PLAIN
        if snapshot.value(key) is not None or (key in totals.plain and BY_KEY[key].merge is Merge.PRESENT)
    }
    histograms = {
        key: _within(totals.histograms.get(key) or histogram_arithmetic.empty(one), [le for le, _ in one.buckets])
        for key, one in snapshot.histograms.items()
    }
    labelled: Mapping[str, Any] = {key: dict(of) if of else snapshot.parts(key) for key, of in totals.labelled.items()}
    return replace(
        snapshot, **as_fields({**snapshot.others, **snapshot.other_parts, **plain, **labelled, **histograms})
    )

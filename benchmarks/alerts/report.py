"""The report: recall and delay for each kind of fault, false alerts, and the goals. Pure.

In: seeds with their Verdicts. Out: tables and the missed goals.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from statistics import median
from typing import Any

from alerts.rules import FaultKind
from alerts.windows import DAY_S
from benchmarks.alerts.faults import FAST
from benchmarks.alerts.judge import Found, Incident, Verdict

FAST_S = 300.0
# Of all months together: false pages, months for one false ticket, and the least share of paging faults with one page.
FALSE_PAGES, MONTHS_A_TICKET, PAGED_ONCE = 0, 3, 0.95


def by_kind(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return recall, delay and pages of the faults that count, by kind and in total, and the small ones found.

    `paged`: the faults that rang a page at least once; `paged_once`: exactly once.
    """
    found = [one for verdict in verdicts for one in verdict.found]
    rows = []
    for kind in (*FaultKind, "all"):
        mine = [one for one in found if kind in {one.fault.kind, "all"}]
        large, small = [o for o in mine if o.fault.counts], [o for o in mine if not o.fault.counts]
        delays = [one.delay_s for one in large if one.delay_s is not None]
        rows.append(
            {
                "kind": str(kind),
                "faults": len(large),
                "found": len(delays),
                "delay_median_s": round(median(delays)) if delays else None,
                "delay_worst_s": round(max(delays)) if delays else None,
                "small": len(small),
                "small_found": sum(one.delay_s is not None for one in small),
                "paged": sum(one.pages > 0 for one in large),
                "paged_once": sum(one.pages == 1 for one in large),
                "by": _first(large),
            }
        )
    return rows


def _first(found: Sequence[Found]) -> dict[str, int]:
    """Return how often each alert was the first."""
    names = [one.by.removeprefix("Kneewatch") for one in found if one.by]
    return {name: names.count(name) for name in sorted(set(names), key=lambda name: -names.count(name))}


def false_of(verdict: Verdict, severity: str) -> list[Incident]:
    """Return the false alerts of a severity."""
    return [one for one in verdict.false if one.severity == severity]


def missed(seed: int, verdict: Verdict) -> list[str]:
    """Return a text for each fault that was not found, or too late."""
    said = []
    for one in verdict.found:
        where = f"{one.fault.kind} of {one.fault.target}, size {one.fault.size:.2f}"
        if one.fault.counts and one.delay_s is None:
            said.append(f"seed {seed}: not found: {where}")
        elif one.fault.counts and one.fault.kind in FAST and one.delay_s is not None and one.delay_s > FAST_S:
            said.append(
                f"seed {seed}: found after {one.delay_s:.0f} s by {one.by}, and not within {FAST_S:.0f}: {where}"
            )
    return said


def too_often(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a text for each goal on false alerts, and on pages of one fault, that all months together miss."""
    said = []
    for severity, most in (("page", FALSE_PAGES), ("ticket", ceil(len(verdicts) / MONTHS_A_TICKET))):
        count = sum(len(false_of(verdict, severity)) for verdict in verdicts)
        if count > most:
            said.append(f"{count} false {severity}s in {len(verdicts)} months, more than {most}")
    paged = [one.pages for verdict in verdicts for one in verdict.found if one.fault.counts and one.pages]
    once = sum(pages == 1 for pages in paged)
    if once < PAGED_ONCE * len(paged):
        said.append(f"{once} of {len(paged)} faults that paged did so once, fewer than {PAGED_ONCE:.0%}")
    return said


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each row of `by_kind`."""
    cells = [["fault", "found", "delay", "worst", "small ones", "paged once", "first by"]]
    cells += [
        [
            row["kind"],
            f"{row['found']} of {row['faults']}",
            words(row["delay_median_s"]),
            words(row["delay_worst_s"]),
            f"{row['small_found']} of {row['small']}",
            f"{row['paged_once']} of {row['paged']}",
            "" if row["kind"] == "all" else ", ".join(f"{name} {count}" for name, count in row["by"].items()),
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def words(seconds: float | None) -> str:
    """Format a duration, such as 2 min 10 s or 1.3 d."""
    if seconds is None:
        return "-"
    if seconds >= DAY_S:
        return f"{seconds / DAY_S:.1f} d"
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def incident(one: Incident, start_s: float) -> dict[str, Any]:
    """Return an incident for the record; times are in days since the month began."""
    fields = {key: value for key, value in asdict(one).items() if key not in {"start_s", "end_s", "labels", "windows"}}
    windows = sorted(window for window in one.windows if window)
    day = round((one.start_s - start_s) / DAY_S, 3)
    return {**fields, "day": day, "minutes": round((one.end_s - one.start_s) / 60), "windows": windows}


def fault(one: Found, start_s: float) -> dict[str, Any]:
    """Return a fault for the record."""
    what = one.fault
    return {
        "kind": str(what.kind),
        "target": what.target,
        "day": round((what.start_s - start_s) / DAY_S, 3),
        "minutes": round((what.end_s - what.start_s) / 60, 1),
        "size": round(what.size, 3),
        "how": what.how,
        "counts": what.counts,
        "delay_s": None if one.delay_s is None else round(one.delay_s),
        "by": one.by,
        "pages": one.pages,
    }

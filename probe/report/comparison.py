"""A comparison of two measurements, as a table, as text and as JSON."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from probe.capacity.trend.compare import BETTER, SAME, UNCLEAR, UNJUDGED, WORSE, Comparison, ComparisonRow
from probe.capacity.trend.measurement import SECONDS, SHARE, Measurement, Value
from probe.core.text import one_line
from probe.report.figures import MISSING, number, percent

_TOO_FEW = (
    "Note: an unclear percentile without an upper end has too few requests (p95 needs 72, p99 368); measure both again"
    " with --requests-per-step, or for longer."
)
_COLOURS = {WORSE: "red", BETTER: "green", UNCLEAR: "yellow"}


def comparison_table(
    comparison: Comparison, base: Measurement, new: Measurement, *, with_same: bool = False
) -> Table | None:
    """Return the table, one row per metric that has changed, latencies in milliseconds; None where none has.

    `with_same`: one row per metric.
    """
    rows = [row for row in comparison.rows if with_same or row.verdict in (WORSE, BETTER, UNCLEAR)]
    if not rows:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "metric", f"base: {base.name}", f"new: {new.name}", "change", "verdict"):
        table.add_column(Text(one_line(column)), justify="left" if column in ("", "metric", "verdict") else "right")
    section = ""
    for row in rows:
        table.add_row(
            row.section if row.section != section else "",
            f"{row.metric} {_unit(row)}".strip(),
            _cell(row.base),
            _cell(row.new),
            _change(row),
            Text(row.verdict, style=_COLOURS.get(row.verdict, "")),
        )
        section = row.section
    return table


def comparison_verdict(comparison: Comparison, tolerance: float) -> str:
    """Return the verdict as a line."""
    counts = Counter(row.verdict for row in comparison.rows)
    said = f"{counts[WORSE]} worse, {counts[BETTER]} better"
    equal = f"{counts[SAME]} equal (within {percent(tolerance)} of the base)"
    unclear = f", {counts[UNCLEAR]} unclear (changed by more, but the intervals overlap)" if counts[UNCLEAR] else ""
    unjudged = f", {counts[UNJUDGED]} not judged" if counts[UNJUDGED] else ""
    return f"{'WORSE' if comparison.has_regressed else 'Nothing is worse'}: {said}, {equal}{unclear}{unjudged}."


def comparison_words(comparison: Comparison) -> str:
    """Return differing conditions, problems and notes as lines; "" where there are none."""
    lines = [
        f"Differs: {name}: {one or 'not set'} -> {other or 'not set'}" for name, (one, other) in _differs(comparison)
    ]
    lines += [f"Not comparable: {problem}." for problem in comparison.problems]
    lines += [f"Note: {note}." for note in comparison.notes]
    lines += _unbounded(comparison)
    return "\n".join(one_line(line, 400) for line in lines)


def comparison_json(comparison: Comparison, base: Measurement, new: Measurement, tolerance: float) -> dict[str, Any]:
    """Return the comparison for JSON, with values in base units."""
    return {
        "base": base.name,
        "new": new.name,
        "tolerance": tolerance,
        "regressed": comparison.has_regressed,
        "problems": list(comparison.problems),
        "notes": list(comparison.notes),
        "differs": {name: {"base": one, "new": other} for name, (one, other) in comparison.differs.items()},
        "rows": [asdict(row) for row in comparison.rows],
    }


def _unbounded(comparison: Comparison) -> list[str]:
    """Return a line about the percentiles that too few requests leave without an upper end."""
    unclear = [row for row in comparison.rows if row.verdict == UNCLEAR and row.metric.endswith(("p95", "p99"))]
    values = [value for row in unclear for value in (row.base, row.new)]
    if all(value is None or value.upper is not None for value in values):
        return []
    return [_TOO_FEW]


def _differs(comparison: Comparison) -> list[tuple[str, tuple[str | None, str | None]]]:
    """Return the differences that do not prevent a comparison; the others are in `problems`."""
    return [item for item in comparison.differs.items() if not any(p.startswith(item[0]) for p in comparison.problems)]


def _unit(row: ComparisonRow) -> str:
    unit = row.base.unit if row.base is not None else ""
    return {SECONDS: "ms", SHARE: ""}.get(unit, unit)


def _cell(value: Value | None) -> str:
    if value is None:
        return "none"
    if value.lower is None and value.upper is None:
        return _said(value.value, value.unit)
    low, high = (MISSING if bound is None else _said(bound, value.unit) for bound in (value.lower, value.upper))
    return f"{_said(value.value, value.unit)} ({low} to {high})"


def _said(value: float, unit: str) -> str:
    if unit == SECONDS:
        return number(value * 1000)
    return percent(value) if unit == SHARE else number(value)


def _change(row: ComparisonRow) -> str:
    if row.change is None or row.base is None:
        return MISSING
    return f"{row.change:+.1%}"

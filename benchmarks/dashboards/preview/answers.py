"""Prometheus' answers as the data of a panel. Pure.

In: a panel's JSON and, for each of its queries, the series that came. Out: a plain mapping that the page draws: a
`kind`, and names, values and fields. None where there is nothing to show.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dashboards.preview import tables
from benchmarks.dashboards.preview.asking import Answer, on_grid
from benchmarks.dashboards.preview.fields import Named, field_of
from benchmarks.dashboards.preview.intervals import Grid

Json = dict[str, Any]
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of a panel and its answer; an instant query has no grid."""

    target: Mapping[str, Any]
    answers: Sequence[Answer]
    grid: Grid | None = None


def drawn(panel: Mapping[str, Any], asked: Sequence[Asked], link: Callable[[str], str | None]) -> Json | None:
    """Return the panel's data. `link` rewrites an address in a dashboard to one that works from the page."""
    kind = panel["type"]
    if kind == "table":
        return tables.table(panel, [(one.target, one.answers) for one in asked], link)
    if not any(one.answers for one in asked):
        return None
    draw = {"stat": _newest, "heatmap": _heatmap, "xychart": _points}.get(kind)
    if draw is not None:
        return draw(panel, asked)
    return _over_time(panel, asked, "states" if kind == "state-timeline" else "lines")


def legend(written: str, labels: Mapping[str, str]) -> str:
    """Return a series' name: its legend with the labels filled in, or else the series as Prometheus writes it."""
    if written and written != "__auto":
        return re.sub(r"\{\{\s*(.+?)\s*\}\}", lambda match: labels.get(match[1], ""), written).strip()
    inside = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()) if label != "__name__")
    return labels.get("__name__", "") + (f"{{{inside}}}" if inside else "") or "value"


def rounded(value: float | None) -> float | None:
    """Round to six digits: more are not visible, and the page is half as large."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _over_time(panel: Mapping[str, Any], asked: Sequence[Asked], kind: str) -> Json | None:
    series: list[Json] = []
    for one in asked:
        if one.grid is None:
            continue
        for answer in one.answers:
            name = legend(str(one.target.get("legendFormat", "")), answer.labels)
            field = field_of(panel, Named(name, str(one.target.get("refId", ""))))
            values = [rounded(value) for value in on_grid(answer, one.grid)]
            if any(value is not None for value in values):
                series.append({"name": field.get("displayName", name), "field": field, "values": values,
                               "start": one.grid.start_s, "step": one.grid.step_s})  # fmt: skip
    return {"kind": kind, "series": series, "options": panel.get("options", {})} if series else None


def _points(panel: Mapping[str, Any], asked: Sequence[Asked]) -> Json | None:
    """Return each series with its moments' values on the other axis: what Grafana gets by joining the queries."""
    found = _over_time(panel, asked, "points")
    if found is None:
        return None
    by_name = {one["name"]: one for one in found["series"]}
    wanted = [(by_name.get(one["x"]), by_name.get(one["y"])) for one in panel["options"]["series"]]
    series = [y | {"x": x["values"], "of": x["field"]} for x, y in wanted if x is not None and y is not None]
    return found | {"series": series} if series else None


def _newest(panel: Mapping[str, Any], asked: Sequence[Asked]) -> Json:
    values: list[Json] = []
    for one in asked:
        for answer in one.answers:
            name = legend(str(one.target.get("legendFormat", "")), answer.labels)
            field = field_of(panel, Named(name, str(one.target.get("refId", ""))))
            value = _newest_of([value for _, value in answer.samples])
            shown: Json = {"name": field.get("displayName", name), "field": field, "value": number(value)}
            if one.grid is not None and panel.get("options", {}).get("graphMode") == "area":
                shown["course"] = [rounded(value) for value in on_grid(answer, one.grid)]
            values.append(shown)
    return {"kind": "values", "values": values, "options": panel.get("options", {})}


def number(value: float | None) -> float | str | None:
    """Return a number that JSON can hold, or a word such as NaN or +Inf."""
    if value is None or math.isfinite(value):
        return rounded(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _newest_of(values: Sequence[float]) -> float | None:
    """Return the last value that is a number, else the last one."""
    finite = [value for value in values if not math.isnan(value)]
    return finite[-1] if finite else values[-1] if values else None


def _heatmap(panel: Mapping[str, Any], asked: Sequence[Asked]) -> Json | None:
    """Return the cells of a heat map: Prometheus counts what is below each bound, a cell what is between two bounds."""
    one = next((one for one in asked if one.answers and one.grid is not None), None)
    if one is None or one.grid is None:
        return None
    below: dict[float, list[float | None]] = {}
    for answer in one.answers:
        try:
            below[float(answer.labels["le"])] = on_grid(answer, one.grid)
        except (KeyError, ValueError):
            continue
    bounds = sorted(below)
    rows: list[list[float | None]] = []
    before: list[float | None] = [0.0] * one.grid.count
    for bound in bounds:
        here = below[bound]
        rows.append(
            [None if v is None else rounded(max(v - (b or 0.0), 0.0)) for v, b in zip(here, before, strict=True)]
        )
        before = [b if v is None else v for v, b in zip(here, before, strict=True)]
    filled = [i for i, row in enumerate(rows) if any(row)]
    if not filled:
        return None
    kept = slice(max(filled[0] - 1, 0), filled[-1] + 2)  # one empty row around: more is paper
    y_axis = panel.get("options", {}).get("yAxis", {})
    return {
        "kind": "heatmap",
        "bounds": [number(bound) for bound in bounds[kept]],
        "lowest": number(bounds[kept.start - 1]) if kept.start else 0.0,
        "rows": rows[kept],
        "start": one.grid.start_s,
        "step": one.grid.step_s,
        "field": field_of(panel, Named("", str(one.target.get("refId", "")))),
        "unit": y_axis.get("unit") or panel.get("fieldConfig", {}).get("defaults", {}).get("unit", ""),
        "options": panel.get("options", {}),
    }

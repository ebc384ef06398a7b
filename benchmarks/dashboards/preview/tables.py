"""Tables: the frames that Grafana makes of a table's queries, and its transformations of them. Pure.

In: the panel's JSON and each query's answer. Out: columns with their fields, rows of cells, and how they are sorted.
A transformation that is not known here raises QueryError: a table with the wrong columns would mislead.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from benchmarks.dashboards.preview.asking import Answer, QueryError
from benchmarks.dashboards.preview.fields import Named, field_of
from benchmarks.dashboards.preview.variables import filled

Json = dict[str, Any]
Cell = float | str | None
Queried = Sequence[tuple[Mapping[str, Any], Sequence[Answer]]]
_LINK_VALUE = re.compile(r"\$\{__(?:data\.fields\.(\w+)|data\.fields\[\"([^\"]+)\"\]|value\.(?:text|raw))(?::\w+)?\}")


@dataclass(slots=True)
class Frame:
    """Rows by column name, and the query of each column."""

    columns: list[str]
    rows: list[dict[str, Cell]]
    refs: dict[str, str] = field(default_factory=dict)


def table(panel: Mapping[str, Any], queried: Queried, link: Callable[[str], str | None]) -> Json | None:
    """Return the table, or None if it has no row. Raises QueryError."""
    frames = _frames(queried)
    for one in panel.get("transformations", ()):
        if not one.get("disabled"):
            frames = _transformed(frames, str(one["id"]), one.get("options", {}))
    frame = frames[0] if frames else Frame([], [])
    if not frame.rows:
        return None
    columns = [_column(panel, frame, name) for name in frame.columns]
    kept = [(name, column) for name, column in zip(frame.columns, columns, strict=True) if not _hidden(column)]
    rows = [[_cell(name, column["field"], row, link) for name, column in kept] for row in frame.rows]
    sort = [{"column": one["displayName"], "desc": bool(one.get("desc"))} for one in _sorting(panel)]
    return {"kind": "table", "columns": [column for _, column in kept], "rows": rows, "sort": sort[:1]}


def _frames(queried: Queried) -> list[Frame]:
    """Return a frame for each query with an answer: its labels in alphabetical order, then the value."""
    frames: list[Frame] = []
    for target, answers in queried:
        if not answers:
            continue
        ref = str(target.get("refId", ""))
        value = f"Value #{ref}" if len(queried) > 1 else "Value"
        labels = sorted({label for answer in answers for label in answer.labels})
        rows: list[dict[str, Cell]] = [
            {"Time": at_s * 1000, **answer.labels, value: _number(number)}
            for answer in answers
            for at_s, number in answer.samples[-1:]
        ]
        columns = ["Time", *labels, value]
        frames.append(Frame(columns, rows, dict.fromkeys(columns, ref)))
    return frames


def _number(value: float) -> Cell:
    return None if value != value else value  # noqa: PLR0124 - NaN


def _transformed(frames: list[Frame], name: str, options: Mapping[str, Any]) -> list[Frame]:
    match name:
        case "joinByField":
            return [_joined(frames, str(options.get("byField") or "Time"), inner=options.get("mode") == "inner")]
        case "organize":
            return [_organized(frame, options) for frame in frames]
        case "sortBy":
            return [_sorted(frame, options.get("sort", ())) for frame in frames]
        case "filterFieldsByName":
            return [_chosen(frame, options) for frame in frames]
    raise QueryError(f"the preview does not know Grafana's transformation {name}")


def _joined(frames: Sequence[Frame], key: str, *, inner: bool) -> Frame:
    frames = [frame for frame in frames if key in frame.columns]
    rows: dict[Cell, dict[str, Cell]] = {}
    for frame in frames:
        for row in frame.rows:
            if row.get(key) is not None:
                rows.setdefault(row[key], {}).update(row)
    if inner:
        keys = [{row.get(key) for row in frame.rows} for frame in frames]
        rows = {value: row for value, row in rows.items() if all(value in one for one in keys)}
    rest = [name for frame in frames for name in frame.columns if name != key]
    return Frame([key, *dict.fromkeys(rest)], list(rows.values()), _refs(frames))


def _organized(frame: Frame, options: Mapping[str, Any]) -> Frame:
    out, order = options.get("excludeByName", {}), options.get("indexByName", {})
    new = {old: name for old, name in options.get("renameByName", {}).items() if name}
    columns = sorted(
        (name for name in frame.columns if not out.get(name)), key=lambda name: order.get(name, len(frame.columns))
    )
    rows = [{new.get(name, name): row.get(name) for name in columns} for row in frame.rows]
    refs = {new.get(name, name): ref for name, ref in frame.refs.items()}
    return Frame([new.get(name, name) for name in columns], rows, refs)


def _sorted(frame: Frame, sort: Sequence[Mapping[str, Any]]) -> Frame:
    rows = frame.rows
    for one in reversed(sort):
        name = one["field"]
        there = [row for row in rows if row.get(name) is not None]
        there.sort(key=lambda row: (isinstance(row[name], str), row[name]), reverse=bool(one.get("desc")))
        rows = there + [row for row in rows if row.get(name) is None]
    return Frame(frame.columns, rows, frame.refs)


def _chosen(frame: Frame, options: Mapping[str, Any]) -> Frame:
    include, exclude = options.get("include", {}), options.get("exclude", {})
    columns = frame.columns
    if include:
        columns = [name for name in columns if _named(name, include)]
    if exclude:
        columns = [name for name in columns if not _named(name, exclude)]
    return Frame(columns, frame.rows, frame.refs)


def _named(name: str, by: Mapping[str, Any]) -> bool:
    if name in by.get("names", ()):
        return True
    pattern = str(by.get("pattern", "")).strip("/")
    return bool(pattern) and re.search(pattern, name) is not None


def _refs(frames: Sequence[Frame]) -> dict[str, str]:
    return {name: ref for frame in frames for name, ref in frame.refs.items()}


def _column(panel: Mapping[str, Any], frame: Frame, name: str) -> Json:
    text = any(isinstance(row.get(name), str) for row in frame.rows)
    kind = "time" if name == "Time" else "string" if text else "number"
    shown = field_of(panel, Named(name, frame.refs.get(name, ""), kind))
    if kind == "time":
        shown.setdefault("unit", "dateTimeAsLocal")
    return {"name": shown.get("displayName", name), "field": shown, "text": text}


def _hidden(column: Json) -> bool:
    return bool(column["field"].get("custom", {}).get("hidden"))


def _sorting(panel: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    sort: Sequence[Mapping[str, Any]] = panel.get("options", {}).get("sortBy") or ()
    return sort


def _cell(
    name: str, shown: Mapping[str, Any], row: Mapping[str, Cell], link: Callable[[str], str | None]
) -> Cell | Json:
    value = row.get(name)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        value = "+Inf" if value > 0 else "-Inf"
    links = []
    for one in shown.get("links", ()):

        def text(match: re.Match[str]) -> str:
            wanted = match[1] or match[2]
            found = row.get(wanted) if wanted else value
            return "" if found is None else quote(str(found), safe="")

        if address := link(filled(_LINK_VALUE.sub(text, str(one["url"])), {})):
            links.append({"title": str(one.get("title", "")), "href": address})
    return {"value": value, "links": links} if links else value

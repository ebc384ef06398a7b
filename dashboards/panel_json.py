"""The parts of panels in Grafana's JSON: tables, lines and heat maps. Pure.

A table has a query for each column, so Grafana gets one frame per column. They are joined by the key's label; the join
leaves out a column without data, such as user TTFT without users. Heat maps are as Grafana 10 reads them; grafanalib
writes them for an older Grafana.
"""

import string
from collections.abc import Sequence
from typing import Any

from dashboards.pieces import GREEN, PAGES, RED, Column, Query, Steps, Texts

_LOWEST = -1e12  # Grafana compares a missing bound as 0

_LIMIT = {
    "matcher": {"id": "byRegexp", "options": "/^objective/"},
    "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.stacking", "value": {"mode": "none"}},
    ],
}
_BOUND = {
    "matcher": {"id": "byRegexp", "options": "/ bound/"},
    "properties": [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [2, 6]}},
        {"id": "custom.fillOpacity", "value": 0},
    ],
}
# Keys that grafanalib still writes for panels that Grafana replaced years ago.
OLD_HEATMAP_KEYS = (
    "cards", "color", "dataFormat", "heatmap", "hideZeroBuckets", "highlightCards", "legend", "reverseYBuckets",
    "tooltip", "xAxis", "yAxis",
)  # fmt: skip


def reference(index: int) -> str:
    """Return Grafana's name of a panel's query: A, B, ... Raises IndexError beyond Z."""
    return string.ascii_uppercase[index]


def transformations(key: str, title: str, columns: Sequence[Column], rank: str) -> list[dict[str, Any]]:
    """Return transformations that join the queries, sort by the query `rank` (descending) and name the columns."""
    fields = [key, *(f"Value #{reference(i)}" for i in range(len(columns)))]
    return [
        {"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
        {"id": "sortBy", "options": {"sort": [{"field": f"Value #{rank}", "desc": True}]}},
        {"id": "filterFieldsByName", "options": {"include": {"names": fields}}},
        {
            "id": "organize",
            "options": {
                "indexByName": {field: i for i, field in enumerate(fields)},
                "renameByName": dict(zip(fields, (title, *(column.title for column in columns)), strict=True)),
            },
        },
    ]


def column_overrides(title: str, columns: Sequence[Column], links: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the overrides of each column; `links` are titles and addresses for the cells of the key."""
    shown = [{"title": text, "url": address, "targetBlank": text == PAGES} for text, address in links]
    key = _override(title, [_property("links", shown), _property("custom.width", 190)])
    return [key, *(_override(column.title, _look(column)) for column in columns)]


def thresholds(steps: Steps) -> dict[str, Any]:
    """Return Grafana's thresholds, colours by value."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def mappings(texts: Texts | None) -> list[dict[str, Any]]:
    """Return Grafana's mappings, text by value or, for a key such as "<=-1", by range."""
    found: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    for i, (value, (text, color)) in enumerate((texts or {}).items()):
        result = {"text": text, "color": color, "index": i}
        if value.startswith("<="):
            found.append({"type": "range", "options": {"from": _LOWEST, "to": float(value[2:]), "result": result}})
        else:
            values[value] = result
    return [*([{"type": "value", "options": values}] if values else []), *found]


def _look(column: Column) -> list[dict[str, Any]]:
    look = [_property("unit", column.unit), _property("custom.width", column.width)]
    if column.decimals is not None:
        look.append(_property("decimals", column.decimals))
    if column.texts:
        look.append(_property("mappings", mappings(column.texts)))
    if column.steps or column.texts:
        look.append(_property("custom.cellOptions", {"type": "color-background", "mode": "basic"}))
        look.append(_property("thresholds", thresholds(column.steps or [(None, GREEN)])))
    return look


def _override(name: str, properties: list[dict[str, Any]]) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": name}, "properties": properties}


def _property(name: str, value: object) -> dict[str, Any]:
    return {"id": name, "value": value}


def line_overrides(queries: Sequence[Query], right_unit: str | None) -> list[dict[str, Any]]:
    """Return the overrides of the lines, by their legends and by the axis that their query names."""
    return [
        *([_LIMIT] if any(query.legend.startswith("objective") for query in queries) else []),
        *([_BOUND] if any("bound" in query.legend for query in queries) else []),
        *(
            _right_axis(reference(i), right_unit)
            for i, query in enumerate(queries)
            if query.is_on_right_axis and right_unit
        ),
    ]


def _right_axis(reference: str, unit: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byFrameRefID", "options": reference},
        "properties": [{"id": "custom.axisPlacement", "value": "right"}, {"id": "unit", "value": unit}],
    }


def xychart_options(x: Query, y: Sequence[Query]) -> dict[str, Any]:
    """Return a series for each of `y`, by their legends: a frame's fields are found by the names that are displayed.

    As Grafana 10 reads it. Later ones convert it on loading; without `frame` each series would be of another frame.
    """
    return {
        "seriesMapping": "manual",
        "dims": {"frame": 0},
        "series": [{"frame": 0, "x": x.legend, "y": each.legend} for each in y],
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }


def xychart_fields(unit: str, x: Query, y: Sequence[Query], no_value: str) -> dict[str, Any]:
    of_x = [_property("unit", "short"), _property("custom.axisLabel", x.legend)]
    right = [_override(one.legend, [_property("custom.axisPlacement", "right")]) for one in y if one.is_on_right_axis]
    return {
        "defaults": {"unit": unit, "noValue": no_value, "custom": {"show": "points", "pointSize": {"fixed": 5}}},
        "overrides": [_override(x.legend, of_x), *right],
    }


def heatmap_options(unit: str) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {
            "exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "reverse": False, "scale": "exponential",
            "scheme": "Oranges", "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }  # fmt: skip


def heatmap_fields(unit: str, no_value: str) -> dict[str, Any]:
    return {
        "defaults": {
            "unit": unit,
            "noValue": no_value,
            "custom": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}},
        },
        "overrides": [],
    }

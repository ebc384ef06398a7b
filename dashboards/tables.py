"""Grafana's transformations and overrides for a table of one row per target. Pure.

Each column is a query of its own, so Grafana gets one frame per column. They are joined by the key's label; the join
leaves out a column without data, such as user TTFT without users.
"""

import string
from collections.abc import Sequence
from typing import Any

from dashboards.pieces import GREEN, PAGES, Column, Steps, Texts

_LOWEST = -1e12  # Grafana compares a missing bound as 0


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


def overrides(title: str, columns: Sequence[Column], links: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
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

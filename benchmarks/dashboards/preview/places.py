"""The content of a page: rows, and in them panels in Grafana's grid of 24 columns. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.dashboards.preview.answers import Json
from benchmarks.dashboards.preview.intervals import Window
from benchmarks.dashboards.preview.variables import Choice

# Pixels of a unit of the grid, of a table's row, and of its title and head together.
_WIDTH, _UNIT, _TABLE_ROW, _TABLE_HEAD = 24, 38, 30, 80


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel: its place, its texts, and its data or the reason why there are none."""

    id: int
    kind: str
    title: str
    description: str
    place: tuple[int, int, int, int]  # x, y within the row, width, height
    links: Sequence[tuple[str, str]]
    note: str = ""
    data: Json | None = None
    problem: str = ""
    empty: str = "no data"
    text: str = ""


@dataclass(slots=True)
class ShownRow:
    """A row: its title ("" for panels before the first row) and its panels."""

    title: str
    collapsed: bool
    panels: list[Shown] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class View:
    """A dashboard, ready for a page."""

    title: str
    description: str
    window: Window
    choices: Sequence[Choice]
    rows: Sequence[ShownRow]
    events: Sequence[Json]
    links: Sequence[tuple[str, str]]


def placed(panels: Sequence[Mapping[str, Any]]) -> list[tuple[ShownRow, Mapping[str, Any], int]]:
    """Return each panel with its row, and the height at which the row's panels begin."""
    found: list[tuple[ShownRow, Mapping[str, Any], int]] = []
    row, top = ShownRow("", collapsed=False), 0
    for panel in panels:
        if panel["type"] != "row":
            found.append((row, panel, top))
            continue
        row = ShownRow(str(panel.get("title", "")), collapsed=bool(panel.get("collapsed")))
        inside = panel.get("panels") or ()
        top = min((one["gridPos"]["y"] for one in inside), default=panel["gridPos"]["y"] + 1)
        found += [(row, one, top) for one in inside]
    return found


def without_paper(panels: Sequence[Shown]) -> list[Shown]:
    """Shrink tables as wide as the page to the height of their rows, and move up what is below."""
    kept = list(panels)
    for table in panels:
        rows = len(table.data["rows"]) if table.data and table.data["kind"] == "table" else None
        x, y, width, height = table.place
        if (
            rows is None
            or width < _WIDTH
            or (spare := height - math.ceil((rows * _TABLE_ROW + _TABLE_HEAD) / _UNIT)) <= 0
        ):
            continue
        for i, panel in enumerate(kept):
            if panel.id == table.id:
                kept[i] = replace(panel, place=(x, panel.place[1], width, height - spare))
            elif panel.place[1] > y:
                kept[i] = replace(panel, place=(panel.place[0], panel.place[1] - spare, *panel.place[2:]))
    return kept

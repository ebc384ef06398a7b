"""Panels: the only module that imports grafanalib.

In: a title, what good looks like, a unit and queries. Out: grafanalib's panels, and dashboards with
every panel placed. Units are Grafana's names: s, reqps, percentunit, short.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

_WIDTH = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Grafana 10's. grafanalib says 12, which would send panels through a dozen migrations on loading.
_SCHEMA_VERSION = 38

GREEN, YELLOW, RED = "green", "orange", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and its legend. A legend that begins with "objective" is drawn as a dashed limit."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel and its size in the grid: a row is 24 wide."""

    panel: Any
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Row:
    """A question, and the panels that answer it."""

    title: str
    panels: Sequence[Placed]


def timeseries(
    title: str,
    description: str,
    *,
    unit: str,
    queries: Sequence[Query],
    width: int = 8,
    maximum: int | None = None,
    stacked: bool = False,
    min_interval: str | None = None,
) -> Placed:
    """Lines over time. `min_interval` keeps $__rate_interval from being shorter than events are apart."""
    panel = core.TimeSeries(
        title=title,
        description=description,
        dataSource=_DATASOURCE,
        targets=_targets(queries),
        unit=unit,
        valueMin=0,
        valueMax=maximum,
        fillOpacity=40 if stacked else 5,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none"},
        tooltipMode="multi",
        tooltipSort="desc",
        legendCalcs=["lastNotNull", "max"],
        legendDisplayMode="table",
        overrides=[_LIMIT],
        interval=min_interval,
        maxDataPoints=None,
    )
    return Placed(panel, width, 8)


def stat(
    title: str,
    description: str,
    *,
    unit: str,
    queries: Sequence[Query],
    steps: Sequence[tuple[float | None, str]],
    width: int = 4,
    texts: Mapping[str, tuple[str, str]] | None = None,
    no_value: str = "no data",
) -> Placed:
    """The newest values, coloured by `steps` (lower bound, colour; the first bound is None).

    `texts` shows words instead of a number: value to (text, colour).
    """
    panel = core.Stat(
        title=title,
        description=description,
        dataSource=_DATASOURCE,
        # Asked for now: the newest value of a range would show a dead monitor's last "up" for hours.
        targets=_targets(queries, instant=True),
        format=unit,
        reduceCalc="lastNotNull",
        graphMode="none",
        textMode="value_and_name" if len(queries) > 1 or "{{" in queries[0].legend else "value",
        color={"mode": "thresholds"},
        noValue=no_value,
        thresholds=[{"color": color, "value": value} for value, color in steps],
        mappings=[_mapping(texts)] if texts else [],
        maxDataPoints=None,
    )
    return Placed(panel, width, 5)


def variable(name: str, label: str, query: str, *, every: bool = False) -> core.Template:
    """A drop-down filled by `query`; `every` adds "All", which is a regular expression for anything."""
    return core.Template(
        name=name,
        label=label,
        query=query,
        dataSource=_DATASOURCE,
        includeAll=every,
        allValue=".*" if every else None,
        default="$__all" if every else None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )


def datasource() -> core.Template:
    """The drop-down that chooses the Prometheus."""
    return core.Template(name="datasource", label="Prometheus", query="prometheus", type="datasource")


def dashboard(title: str, uid: str, description: str, variables: Sequence[Any], rows: Sequence[Row]) -> str:
    """The dashboard as JSON text with every panel placed, row by row, left to right."""
    model = core.Dashboard(
        title=title,
        uid=uid,
        description=description,
        tags=["kneewatch"],
        templating=core.Templating(list=[datasource(), *variables]),
        panels=_place(rows),
        time=core.Time("now-3h", "now"),
        refresh="30s",
        timezone="browser",
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        schemaVersion=_SCHEMA_VERSION,
        version=1,
    ).auto_panel_ids()
    plain = json.loads(json.dumps(model.to_json_data(), cls=DashboardEncoder))
    return json.dumps(_without_none(plain), indent=2, sort_keys=True) + "\n"


_LIMIT = {
    "matcher": {"id": "byRegexp", "options": "/^objective/"},
    "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.stacking", "value": {"mode": "none"}},
    ],
}


def _targets(queries: Sequence[Query], *, instant: bool = False) -> list[core.Target]:
    return [
        core.Target(
            expr=query.expr,
            legendFormat=query.legend,
            refId=chr(ord("A") + i),
            datasource=_DATASOURCE,
            instant=instant,
            intervalFactor=1,
        )
        for i, query in enumerate(queries)
    ]


def _mapping(texts: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    options = {
        value: {"text": text, "color": color, "index": i} for i, (value, (text, color)) in enumerate(texts.items())
    }
    return {"type": "value", "options": options}


def _place(rows: Sequence[Row]) -> list[Any]:
    panels: list[Any] = []
    y = 0
    for row in rows:
        panels.append(core.RowPanel(title=row.title, gridPos=core.GridPos(h=1, w=_WIDTH, x=0, y=y), maxDataPoints=None))
        y += 1
        x = height = 0
        for placed in row.panels:
            if x + placed.width > _WIDTH:
                x, y, height = 0, y + height, 0
            placed.panel.gridPos = core.GridPos(h=placed.height, w=placed.width, x=x, y=y)
            panels.append(placed.panel)
            x += placed.width
            height = max(height, placed.height)
        y += height
    return panels


def _without_none(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        # The first threshold has no lower bound, and says so with a null.
        return {k: _without_none(v) for k, v in value.items() if v is not None or (k == "value" and "color" in value)}
    return [_without_none(v) for v in value] if isinstance(value, list) else value

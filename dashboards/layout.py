"""A whole dashboard in grafanalib: variables, annotations, links and placed panels.

In: rows of panels. Out: JSON text.
"""

import json
from collections.abc import Sequence
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from alerts.links import Links
from dashboards.intervals import Intervals
from dashboards.pieces import DATASOURCE, WIDTH, Annotation, PanelRow, PlacedPanel

# Grafana 10's. grafanalib writes 12, which would send panels through a dozen migrations on loading.
_SCHEMA_VERSION = 38


def variable(name: str, label: str, query: str, *, every: bool = False) -> core.Template:
    """Return a variable filled by `query`; `every` adds "All", which matches anything."""
    return core.Template(
        name=name,
        label=label,
        query=query,
        dataSource=DATASOURCE,
        includeAll=every,
        allValue=".*" if every else None,
        default="$__all" if every else None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )


def datasource() -> core.Template:
    """Return the variable that chooses the Prometheus."""
    return core.Template(name="datasource", label="Prometheus", query="prometheus", type="datasource")


def dashboard(
    title: str,
    uid: str,
    description: str,
    *,
    variables: Sequence[Any],
    rows: Sequence[PanelRow],
    annotations: Sequence[Annotation],
    others: Sequence[tuple[str, str]],
    links: Links,
    intervals: Intervals,
    since: str = "now-3h",
) -> str:
    """Return the dashboard as JSON text, with its panels placed row by row, left to right.

    `others`: titles and uids of the other dashboards. `links` has their prefix, and the runbooks' address.
    """
    model = core.Dashboard(
        title=title,
        uid=links.uid_prefix + uid,
        description=description,
        tags=["kneewatch"],
        templating=core.Templating(list=[datasource(), *variables]),
        annotations=core.Annotations(list=[_annotation(each, intervals) for each in annotations]),
        links=[
            *(_link(text, f"/d/{links.uid_prefix}{other}", dashboard=True) for text, other in others),
            _link("Runbooks", links.runbooks, dashboard=False),
        ],
        panels=_place(rows, links, intervals),
        time=core.Time(since, "now"),
        refresh="30s",
        timezone="browser",
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        schemaVersion=_SCHEMA_VERSION,
        version=1,
    ).auto_panel_ids()
    plain = json.loads(json.dumps(model.to_json_data(), cls=DashboardEncoder))
    return json.dumps(_without_none(plain), indent=2, sort_keys=True) + "\n"


def _annotation(one: Annotation, intervals: Intervals) -> dict[str, Any]:
    return {
        "name": one.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": one.color,
        # Older Grafana versions read the query from here, newer ones from `target`.
        "expr": one.expr,
        "target": {"refId": "Anno", "expr": one.expr, "interval": intervals.min_step(one.expr)},
        "titleFormat": one.name,
        "textFormat": one.text,
        "useValueForTime": one.has_timestamps,
    }


def _link(title: str, address: str, *, dashboard: bool) -> core.DashboardLink:
    return core.DashboardLink(
        title=title,
        type="link",
        uri=address,
        icon="dashboard" if dashboard else "doc",
        includeVars=dashboard,
        keepTime=dashboard,
        targetBlank=not dashboard,
    )


def _place(rows: Sequence[PanelRow], links: Links, intervals: Intervals) -> list[Any]:
    panels: list[Any] = []
    y = 0
    for row in rows:
        title = core.RowPanel(title=row.title, gridPos=core.GridPos(h=1, w=WIDTH, x=0, y=y), maxDataPoints=None)
        placed, height = _place_row(row.panels, y + 1, links, intervals)
        # A collapsed row contains its panels, placed as they appear when it is opened.
        title.collapsed, title.panels = row.is_collapsed, placed if row.is_collapsed else []
        panels += [title] if row.is_collapsed else [title, *placed]
        y += 1 if row.is_collapsed else 1 + height
    return panels


def _place_row(row: Sequence[PlacedPanel], top: int, links: Links, intervals: Intervals) -> tuple[list[Any], int]:
    """Return the placed panels, and their height together."""
    panels = []
    x = height = 0
    y = top
    for placed in row:
        if x + placed.width > WIDTH:
            x, y, height = 0, y + height, 0
        placed.panel.gridPos = core.GridPos(h=placed.height, w=placed.width, x=x, y=y)
        placed.panel.links = [
            {"title": f"Runbook: {alert}", "url": links.runbook(alert), "targetBlank": True} for alert in placed.alerts
        ]
        for target in placed.panel.targets:
            # The query's own: a panel's minimum interval does not count for $__rate_interval.
            target["interval"] = intervals.min_step(target["expr"])
        panels.append(placed.panel)
        x += placed.width
        height = max(height, placed.height)
    return panels, y + height - top


def _without_none(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        # The first threshold has no lower bound, which Grafana writes as null.
        return {k: _without_none(v) for k, v in value.items() if v is not None or (k == "value" and "color" in value)}
    return [_without_none(v) for v in value] if isinstance(value, list) else value

"""A whole dashboard in grafanalib: variables, annotations, links and placed panels.

In: rows of panels. Out: JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from alerts.build import alerts_by_panel
from alerts.links import DASHBOARDS, Links
from alerts.windows import duration
from dashboards.pieces import DATASOURCE, PAGES, WIDTH, Annotation, PanelRow, PlacedPanel
from dashboards.queries import RATE
from dashboards.variables import PLACE, datasource, scoped
from exporters import names

# Prometheus' own default, and the longest interval that the rules support.
SCRAPE_S = 60.0
# Series that change with each canary, and not with each scrape.
_BY_CANARY = (*(one.name for one in names.ALL if one.source == "client"), names.TASK_LATENESS.name)

# Grafana 10's. grafanalib writes 12, which would send panels through a dozen migrations on loading.
_SCHEMA_VERSION = 38
_GRAFANA = "10.0.0"
# Keys of Grafana before version 5, which grafanalib writes.
_OLD_KEYS = ("__inputs", "hideControls", "rows", "sharedCrosshair", "style")


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between two scrapes of Kneewatch, and between two canaries of the slowest target.

    Grafana computes $__rate_interval from the query's "Min step" or, without one, from the scrape interval in the data
    source's settings, which is 15 s unless somebody has set it. So each query with a rate has a "Min step": its window
    is then at least four scrapes, whatever the settings say.
    """

    scrape_s: float = SCRAPE_S
    canary_s: float = 0.0

    def min_step(self, expr: str) -> str | None:
        """Return the query's "Min step": the time between two values; None if it has no rate."""
        if RATE not in expr:
            return None
        is_by_canary = any(name in expr for name in _BY_CANARY)
        return duration(max(self.scrape_s, self.canary_s) if is_by_canary else self.scrape_s)


def dashboard(
    title: str,
    uid: str,
    description: str,
    *,
    variables: Sequence[Any],
    rows: Sequence[PanelRow],
    annotations: Sequence[Annotation],
    links: Links,
    intervals: Intervals,
    since: str = "now-3h",
    scope: str = PLACE,
) -> str:
    """Return the dashboard as JSON text, with its panels placed row by row, left to right.

    `scope`: matchers for every selector in a panel.
    """
    for placed in (panel for row in rows for panel in row.panels):
        for target in placed.panel.targets:
            # The query's own: a panel's minimum interval does not count for $__rate_interval.
            target["interval"] = intervals.min_step(target["expr"])
            target["expr"] = scoped(target["expr"], scope)
    of_target = any(each.name == "target" for each in variables)
    model = core.Dashboard(
        title=title,
        uid=links.uid_prefix + uid,
        description=description,
        tags=["kneewatch"],
        templating=core.Templating(list=[datasource(), *variables]),
        annotations=core.Annotations(list=[_annotation(each, intervals) for each in annotations]),
        links=_links(uid, links, "targets/${target:raw}" if of_target else ""),
        panels=_place(rows, uid, links),
        time=core.Time(since, "now"),
        refresh="30s",
        timezone="browser",
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        schemaVersion=_SCHEMA_VERSION,
        version=1,
    ).auto_panel_ids()
    plain = json.loads(json.dumps(model.to_json_data(), cls=DashboardEncoder))
    # A key a line, so that changes show; without indentation, which would not fit an object of Kubernetes.
    return json.dumps(_importable(_without_none(plain)), indent=0, sort_keys=True) + "\n"


def _importable(plain: dict[str, Any]) -> dict[str, Any]:
    """Add what Grafana's import page reads, and leave out old keys."""
    source = plain["templating"]["list"][0]
    source["current"] = {"selected": False, "text": "default", "value": "default"}
    panels = [panel for each in plain["panels"] for panel in (each, *each.get("panels", ()))]
    kinds = sorted({panel["type"] for panel in panels} - {"row"})
    requires = [("grafana", "grafana", "Grafana", _GRAFANA), ("datasource", "prometheus", "Prometheus", "1.0.0")]
    requires += [("panel", kind, kind, "") for kind in kinds]
    fields = ("type", "id", "name", "version")
    kept = {key: value for key, value in plain.items() if key not in _OLD_KEYS}
    return {**kept, "__requires": [dict(zip(fields, one, strict=True)) for one in requires]}


def _annotation(one: Annotation, intervals: Intervals) -> dict[str, Any]:
    expr = scoped(one.expr)
    return {
        "name": one.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": one.color,
        # Older Grafana versions read the query from here, newer ones from `target`.
        "expr": expr,
        "target": {"refId": "Anno", "expr": expr, "interval": intervals.min_step(expr)},
        "titleFormat": one.name,
        "textFormat": one.text,
        "useValueForTime": one.has_timestamps,
    }


def _links(uid: str, links: Links, page: str) -> list[core.DashboardLink]:
    """Return the links at the top: the other dashboards, the runbooks and, if its address is known, the page."""
    others = [(title, f"/d/{links.uid_prefix}{other}") for other, title in DASHBOARDS if other != uid]
    return [
        *(_link(title, address, dashboard=True) for title, address in others),
        _link("Runbooks", links.runbooks, dashboard=False),
        *([_link(PAGES, links.page_of(page), dashboard=False)] if links.pages else []),
    ]


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


def _place(rows: Sequence[PanelRow], uid: str, links: Links) -> list[Any]:
    panels: list[Any] = []
    alerts = {title: names for (dashboard, title), names in alerts_by_panel().items() if dashboard == uid}
    y = 0
    for row in rows:
        title = core.RowPanel(title=row.title, gridPos=core.GridPos(h=1, w=WIDTH, x=0, y=y), maxDataPoints=None)
        placed, height = _place_row(row.panels, y + 1, alerts, links)
        # A collapsed row contains its panels, placed as they appear when it is opened.
        title.collapsed, title.panels = row.is_collapsed, placed if row.is_collapsed else []
        panels += [title] if row.is_collapsed else [title, *placed]
        y += 1 if row.is_collapsed else 1 + height
    return panels


def _place_row(
    row: Sequence[PlacedPanel], top: int, alerts: Mapping[str, Sequence[str]], links: Links
) -> tuple[list[Any], int]:
    """Return the placed panels, with links to the runbooks of the alerts of each title, and their height together."""
    panels = []
    x = height = 0
    y = top
    for placed in row:
        if x + placed.width > WIDTH:
            x, y, height = 0, y + height, 0
        placed.panel.gridPos = core.GridPos(h=placed.height, w=placed.width, x=x, y=y)
        placed.panel.links = [
            {"title": f"Runbook: {alert}", "url": links.runbook(alert), "targetBlank": True}
            for alert in alerts.get(placed.panel.title, ())
        ]
        panels.append(placed.panel)
        x += placed.width
        height = max(height, placed.height)
    return panels, y + height - top


def _without_none(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        # The first threshold has no lower bound, which Grafana writes as null.
        return {k: _without_none(v) for k, v in value.items() if v is not None or (k == "value" and "color" in value)}
    return [_without_none(v) for v in value] if isinstance(value, list) else value

"""Panels in grafanalib, which only this module, layout.py and variables.py import.

In: a title, a description of what good looks like, a unit and queries. Out: panels with a size. Units are Grafana's
names: s, reqps, percentunit, short.
"""

from collections.abc import Sequence
from typing import Any, cast

from grafanalib import core

from dashboards import panel_json
from dashboards.pieces import DATASOURCE, NOT_SCRAPED, WIDTH, Column, PlacedPanel, Query, Steps, Texts

# As panel_json.OLD_HEATMAP_KEYS, for panel_json.
_OF_OLD_TABLES = ("color", "columns", "fontSize", "mappings")


def timeseries(
    title: str,
    description: str,
    *,
    unit: str,
    queries: Sequence[Query],
    width: int = 8,
    minimum: int | None = 0,
    maximum: int | None = None,
    stacked: bool = False,
    bars: bool = False,
    right_unit: str | None = None,
    texts: Texts | None = None,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return a line chart. `texts` replace numbers in its legend and tooltip."""
    panel = core.TimeSeries(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries),
        unit=unit,
        valueMin=minimum,
        valueMax=maximum,
        drawStyle="bars" if bars else "line",
        fillOpacity=40 if stacked else 5,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none"},
        tooltipMode="multi",
        tooltipSort="desc",
        legendCalcs=["lastNotNull", "max"],
        legendDisplayMode="table",
        mappings=panel_json.mappings(texts),
        overrides=panel_json.line_overrides(queries, right_unit),
        maxDataPoints=None,
        extraJson={"fieldConfig": {"defaults": {"noValue": no_value}}, "options": {"legend": {"showLegend": True}}},
    )
    return PlacedPanel(panel, width, 8)


def stat(
    title: str,
    description: str,
    *,
    unit: str,
    queries: Sequence[Query],
    steps: Steps,
    width: int = 4,
    texts: Texts | None = None,
    only_names: bool = False,
    decimals: int | None = None,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return a panel of current values, coloured by `steps` (lower bound, colour; the first bound is None).

    `texts` maps values to (text, colour), shown instead of the number. `only_names` shows the legends without values.
    """
    several = len(queries) > 1 or "{{" in queries[0].legend
    panel = core.Stat(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        # An instant query: the newest value of a range would show a dead monitor's last "up" for hours.
        targets=_targets(queries, instant=True),
        format=unit,
        decimals=decimals,
        reduceCalc="lastNotNull",
        graphMode="none",
        textMode="name" if only_names else "value_and_name" if several else "value",
        color={"mode": "thresholds"},
        noValue=no_value,
        thresholds=panel_json.thresholds(steps)["steps"],
        mappings=panel_json.mappings(texts),
        maxDataPoints=None,
    )
    return PlacedPanel(panel, width, 5)


def heatmap(
    title: str,
    description: str,
    *,
    unit: str,
    query: str,
    width: int = 12,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return a heat map over time. `query` returns the buckets of a histogram, by `le` only."""
    panel = core.Heatmap(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets([Query(query, "{{le}}")], format_="heatmap"),
        # One cell per point: 1,000 of them would be a pixel wide each.
        maxDataPoints=120,
        options=panel_json.heatmap_options(unit),
        extraJson={
            **dict.fromkeys(panel_json.OLD_HEATMAP_KEYS),
            "fieldConfig": panel_json.heatmap_fields(unit, no_value),
        },
    )
    return PlacedPanel(panel, width, 8)


def xychart(
    title: str,
    description: str,
    *,
    unit: str,
    x: Query,
    y: Sequence[Query],
    width: int = 12,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return points of the values of `y`, in `unit`, against those of `x` at the same moments."""
    panel = _Panel(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets([x, *y]),
        # Points, and not lines: so many are enough.
        maxDataPoints=500,
        transformations=[{"id": "joinByField", "options": {"byField": "Time", "mode": "inner"}}],
        extraJson={
            "type": "xychart",
            "fieldConfig": panel_json.xychart_fields(unit, x, y, no_value),
            "options": panel_json.xychart_options(x, y),
        },
    )
    return PlacedPanel(panel, width, 8)


class _Panel(core.Panel):  # type: ignore[misc]
    """A panel of a kind that grafanalib does not have."""

    def to_json_data(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.panel_json({}))


def states(
    title: str,
    description: str,
    *,
    queries: Sequence[Query],
    texts: Texts,
    width: int = 12,
    height: int = 8,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return a state timeline: a bar for each series, in the colours and words of `texts`."""
    panel = core.StateTimeline(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries),
        mappings=panel_json.mappings(texts),
        fillOpacity=80,
        showValue="never",
        maxDataPoints=None,
        extraJson={
            "fieldConfig": {"defaults": {"unit": "none", "noValue": no_value}},
            "options": {"legend": {"showLegend": True}},
        },
    )
    return PlacedPanel(panel, width, height)


def table(
    title: str,
    description: str,
    *,
    key: tuple[str, str],
    columns: Sequence[Column],
    rank: str,
    links: Sequence[tuple[str, str]],
    height: int = 12,
    no_value: str = NOT_SCRAPED,
) -> PlacedPanel:
    """Return a table with a row for each value of a label; `key` is the label and its title.

    Columns are current values. `rank` is PromQL for the order, highest first. `links`: for the cells of the key.
    """
    queries = [*(Query(column.expr, column.title) for column in columns), Query(rank, "rank")]
    panel = core.Table(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries, instant=True, format_="table"),
        unit="short",
        overrides=panel_json.column_overrides(key[1], columns, links),
        transformations=panel_json.transformations(*key, columns, panel_json.reference(len(columns))),
        maxDataPoints=None,
        extraJson={
            **dict.fromkeys(_OF_OLD_TABLES),
            "fieldConfig": {
                "defaults": {
                    "noValue": no_value,
                    "custom": {"displayMode": None, "cellOptions": {"type": "auto"}, "inspect": False},
                }
            },
            "options": {"cellHeight": "sm", "footer": {"countRows": False, "reducer": [], "show": False}},
        },
    )
    return PlacedPanel(panel, WIDTH, height)


def _targets(queries: Sequence[Query], *, instant: bool = False, format_: str = "time_series") -> list[dict[str, Any]]:
    # JSON, because grafanalib's Target writes everything twice.
    return [
        {
            "datasource": DATASOURCE,
            "expr": query.expr,
            "format": format_,
            "instant": instant,
            "legendFormat": query.legend,
            "range": not instant,
            "refId": panel_json.reference(i),
        }
        for i, query in enumerate(queries)
    ]

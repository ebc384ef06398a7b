"""What Grafana asks of a Prometheus when it shows a dashboard over 30 days; and how long each answer takes.

In: a dashboard's JSON, and a Prometheus. Out: an Asked for each query: of panels, of marks on the time axis.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import promql_parser

from alerts.windows import duration
from benchmarks.backfill import Prometheus
from dashboards.build import panels_of, substitute

SCRAPE_S = 15  # the data source's scrape interval in Grafana, where it is not set
_POINTS = 1000  # a panel's width in pixels, about
_MARK_STEP = "60s"  # of annotations at least, unless they say otherwise
# Grafana's rounding (rangeutil.roundInterval): up to this many seconds between points, this interval.
_ROUND = (
    (15, 10), (18, 15), (25, 20), (45, 30), (90, 60), (210, 120), (450, 300), (750, 600), (1050, 900), (1500, 1200),
    (2700, 1800), (5400, 3600), (9000, 7200), (16200, 10800), (32400, 21600), (86400, 43200),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """One query with its variables filled in. `step_s` is 0 for one that asks for now alone."""

    dashboard: str
    title: str
    expr: str
    step_s: float


@dataclass(frozen=True, slots=True)
class Asked:
    """The first time a query was asked, and the median of all."""

    query: Query
    first_s: float
    median_s: float
    cpu_s: float
    series: int


def queries(name: str, dashboard: Mapping[str, Any], target: str, range_s: float) -> Iterator[Query]:
    """Yield the queries of all panels, collapsed rows included, and of all annotations, also of those that are off."""
    for panel in panels_of(dashboard):
        for asked in panel.get("targets", ()):
            least = asked.get("interval")
            step_s = interval_s(range_s, panel.get("maxDataPoints") or _POINTS, least or panel.get("interval"))
            expr = _filled(asked["expr"], target, step_s, range_s, least)
            yield Query(name, str(panel["title"]), expr, 0.0 if asked.get("instant") else step_s)
    for mark in dashboard["annotations"]["list"]:
        least = mark["target"].get("interval") or _MARK_STEP
        step_s = interval_s(range_s, _POINTS, least)
        yield Query(name, f"annotation: {mark['name']}", _filled(mark["expr"], target, step_s, range_s, least), step_s)


def interval_s(range_s: float, points: int, least: str | None) -> float:
    """Return the time between two points that Grafana asks for."""
    exact = range_s / points
    rounded = next((interval for below, interval in _ROUND if exact < below), 86400)
    return float(max(rounded, _seconds(least)))


def _seconds(min_step: str | None) -> float:
    """Return a query's "Min step" or, without one, the data source's scrape interval."""
    return float(promql_parser.parse_duration(min_step).total_seconds()) if min_step else SCRAPE_S


def _filled(expr: str, target: str, step_s: float, range_s: float, min_step: str | None) -> str:
    scrape_s = _seconds(min_step)
    rate = max(step_s + scrape_s, 4 * scrape_s)
    filled = substitute(expr, target, ".*", duration(rate), model=".*", span=duration(range_s))
    filled = filled.replace("$__interval", duration(step_s))
    if re.search(r"\$[^\d]", filled):  # "$1" is label_replace's
        raise ValueError(f"a variable that is not filled in: {filled}")
    return filled


def ask(prometheus: Prometheus, query: Query, end_s: float, range_s: float, times: int = 3) -> Asked:
    """Ask the query `times` times, one after the other."""
    took, cpu_s, found = [], prometheus.cpu_s(), 0
    for _ in range(times):
        began = time.perf_counter()
        if query.step_s:
            # Grafana aligns a range to its step, so that a reload draws the same points.
            end = end_s - end_s % query.step_s
            body = {"query": query.expr, "start": end - range_s, "end": end, "step": query.step_s}
            text = prometheus.raw("query_range", **body)
        else:
            text = prometheus.raw("query", query=query.expr, time=end_s)
        took.append(time.perf_counter() - began)
        found = text.count(b'"metric":')
    return Asked(query, took[0], median(took), (prometheus.cpu_s() - cpu_s) / times, found)

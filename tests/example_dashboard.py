"""A small dashboard with a panel of every kind, and a Prometheus that has the same answers for it each time."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import httpx

NOW_S = 1_800_000_000.0
HOSTILE = '</script><script>document.title="broken in"</script><b>"\'&'
_STEPS = [{"color": "green", "value": None}, {"color": "orange", "value": 0.5}, {"color": "red", "value": 1}]
_TEXTS = [{"type": "value", "options": {"0": {"text": "DOWN", "color": "red"}, "1": {"text": "up", "color": "green"}}}]
_DASHED = {"matcher": {"id": "byRegexp", "options": "/^objective/"}, "properties": [
    {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
    {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
]}  # fmt: skip


def panel(
    number: int, kind: str, title: str, exprs: Mapping[str, str], *, instant: bool = False, **more: Any
) -> dict[str, Any]:
    """Return a panel of 8 by 8. `exprs` maps legends to PromQL; `unit` and `overrides` go where Grafana has them."""
    defaults = {"unit": more.pop("unit", "s"), "thresholds": {"mode": "absolute", "steps": _STEPS}}
    defaults |= more.pop("defaults", {})
    targets = [
        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, "instant": instant}
        for i, (legend, expr) in enumerate(exprs.items())
    ]
    return {
        "id": number, "type": kind, "title": title, "description": f"About {title}. Good: low.", "targets": targets,
        "gridPos": {"x": (number - 2) % 3 * 8, "y": 1 + (number - 2) // 3 * 8, "w": 8, "h": 8},
        "fieldConfig": {"defaults": defaults, "overrides": [_DASHED, *more.pop("overrides", [])]}, **more,
    }  # fmt: skip


def table(number: int, exprs: Sequence[str]) -> dict[str, Any]:
    """Return a table with one row per target, sorted by its last query."""
    names = ["target", *(f"Value #{chr(ord('A') + i)}" for i in range(len(exprs)))]
    link = [{"title": "Target", "url": "/d/other?var-target=${__value.raw}&var-datasource=${datasource}"}]
    columns = [
        {"matcher": {"id": "byName", "options": "Target"}, "properties": [{"id": "links", "value": link}]},
        {"matcher": {"id": "byName", "options": "TTFT"}, "properties": [
            {"id": "unit", "value": "s"},
            {"id": "custom.cellOptions", "value": {"type": "color-background"}},
        ]},
        {"matcher": {"id": "byName", "options": "Up"}, "properties": [{"id": "mappings", "value": _TEXTS}]},
    ]  # fmt: skip
    made = panel(number, "table", "Targets", {str(i): expr for i, expr in enumerate(exprs)}, instant=True, unit="none",
                 overrides=columns)  # fmt: skip
    for target in made["targets"]:
        target["format"] = "table"
    made["transformations"] = [
        {"id": "joinByField", "options": {"byField": "target", "mode": "outer"}},
        {"id": "sortBy", "options": {"sort": [{"field": names[-1], "desc": True}]}},
        {"id": "filterFieldsByName", "options": {"include": {"names": names[:-1]}}},
        {"id": "organize", "options": {"renameByName": dict(zip(names, ["Target", "Up", "TTFT"], strict=False))}},
    ]
    return made


def dashboard() -> dict[str, Any]:
    """Return a dashboard with a panel of each kind, and one each that is empty, that fails, and that is collapsed."""
    rows = [{"id": 1, "type": "row", "title": "All kinds", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}}]
    folded = panel(12, "timeseries", "Folded", {"x": "steady"}) | {"gridPos": {"x": 0, "y": 40, "w": 8, "h": 8}}
    panels = [
        panel(2, "timeseries", "Lines", {"{{who}}": "wave", "objective": "steady"}, options={
            "legend": {"displayMode": "table", "showLegend": True, "calcs": ["lastNotNull", "max"]}}),
        panel(3, "stat", "Up", {"up": "one"}, instant=True, unit="none", defaults={"mappings": _TEXTS}),
        panel(4, "heatmap", "Heat", {"{{le}}": "buckets"}),
        panel(5, "state-timeline", "States", {"{{who}}": "flips"}, unit="none", defaults={"mappings": _TEXTS}),
        panel(6, "stat", "Shares", {"{{who}}": "shares"}, instant=True, unit="percentunit",
              defaults={"min": 0, "max": 1}),
        table(7, ["ups", "shares", "shares"]),
        panel(8, "timeseries", "Empty", {"x": "nothing"}, defaults={"noValue": "none was seen"}),
        panel(9, "timeseries", "Failing", {"x": "fails"}),
        panel(10, "text", "Words", {}, options={"content": f"Read this: {HOSTILE}"}),
        panel(13, "xychart", "Points", {"load": "slope", "latency": "wave_alone"},
              options={"series": [{"frame": 0, "x": "load", "y": "latency"}, {"frame": 0, "x": "load", "y": "none"}]}),
        {"id": 11, "type": "row", "title": "More", "collapsed": True, "panels": [folded],
         "gridPos": {"x": 0, "y": 39, "w": 24, "h": 1}},
    ]  # fmt: skip
    names = [{"name": "datasource", "type": "datasource", "query": "prometheus"},
             {"name": "target", "label": "Target", "type": "query", "query": "label_values(tasks, target)"},
             {"name": "workload", "type": "query", "query": 'label_values(x{target="$target"}, workload)',
              "includeAll": True, "allValue": ".*"}]  # fmt: skip
    marks = {"name": "Restart", "expr": "restarts", "iconColor": "red", "enable": True, "useValueForTime": True,
             "textFormat": "{{who}} began"}  # fmt: skip
    return {
        "uid": "made", "title": "Made", "description": "Of every kind.", "panels": [*rows, *panels],
        "templating": {"list": names}, "annotations": {"list": [marks]}, "time": {"from": "now-1h", "to": "now"},
    }  # fmt: skip


# PromQL to series: labels, and the value at a moment, None where there is none.
_KNOWN: Mapping[str, Sequence[tuple[Mapping[str, str], Any]]] = {
    "wave": [
        ({"who": "p50"}, lambda at_s: 0.1 + 0.02 * math.sin(at_s / 300)),
        ({"who": HOSTILE}, lambda at_s: None if at_s % 1200 < 300 else 0.25),
    ],
    "slope": [({}, lambda at_s: at_s - NOW_S + 3600)],
    "wave_alone": [({}, lambda at_s: None if at_s % 1200 < 300 else 0.25)],
    "steady": [({}, lambda _: 0.5)],
    "one": [({}, lambda _: 1.0)],
    "ups": [({"target": name}, lambda _, up=up: up) for name, up in (("b", 1.0), ("a", 0.0), (HOSTILE, 1.0))],
    "shares": [({"target": "a", "who": "a"}, lambda _: 0.25), ({"target": "b", "who": "b"}, lambda _: 1.25)],
    "flips": [({"who": "a"}, lambda at_s: float(at_s % 1200 < 600)), ({"who": HOSTILE}, lambda _: 1.0)],
    "buckets": [({"le": bound}, lambda _, n=n: n) for bound, n in (("0.1", 2.0), ("0.5", 5.0), ("+Inf", 5.0))],
    "restarts": [({"who": HOSTILE}, lambda _: (NOW_S - 1800) * 1000)],
    "nothing": [],
}


def prometheus(request: httpx.Request) -> httpx.Response:
    """Answer as Prometheus does."""
    if (label := re.search(r"/label/(\w+)/values$", request.url.path)) is not None:
        return httpx.Response(200, json={"status": "success", "data": [f"b-{label[1]}", f"a-{label[1]}"]})
    asked = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
    if asked["query"].endswith("[5m]"):  # how often it scrapes
        samples = [[NOW_S - 15 * i, "1"] for i in reversed(range(4))]
        return _answer("matrix", [{"metric": {}, "values": samples}])
    if asked["query"] not in _KNOWN:
        return httpx.Response(400, json={"status": "error", "error": f'unknown "{asked["query"]}"\n<b>'})
    known = _KNOWN[asked["query"]]
    if "time" in asked:
        at_s = float(asked["time"])
        return _answer("vector", [{"metric": labels, "value": [at_s, str(value(at_s))]} for labels, value in known])
    start_s, end_s, step_s = (float(asked[name]) for name in ("start", "end", "step"))
    times = [start_s + i * step_s for i in range(round((end_s - start_s) / step_s) + 1)]
    return _answer("matrix", [
        {"metric": labels, "values": [[at_s, str(value(at_s))] for at_s in times if value(at_s) is not None]}
        for labels, value in known
    ])  # fmt: skip


def _answer(kind: str, result: object) -> httpx.Response:
    return httpx.Response(200, json={"status": "success", "data": {"resultType": kind, "result": result}})


def text() -> str:
    """Return the dashboard's JSON."""
    return json.dumps(dashboard())

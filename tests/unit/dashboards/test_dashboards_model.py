"""What Grafana gets: read by its own models, nothing over another, every panel explained and linked."""

import itertools
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from for_each import for_each
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as sdk
from grafana_foundation_sdk.models import prometheus
from our_dashboards import BY_UID, CONFIG, DASHBOARDS, PANELS, ROOT, title

from alerts.build import render as rules_of
from alerts.links import CAPACITY, FLEET, PROBE, RUNBOOKS, SERVER, TARGET
from dashboards import build
from exporters import names

_PLACES = ["datasource", "cluster", "namespace", "group"]
VARIABLES = {
    FLEET: _PLACES,
    **{uid: [*_PLACES, "target", "model", "workload"] for uid in (TARGET, SERVER, CAPACITY)},
    PROBE: [*_PLACES, "target"],
}
KINDS = {"timeseries", "stat", "heatmap", "state-timeline", "table", "xychart"}
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=lambda d: d["uid"])
each_panel = for_each([panel for _, panel in PANELS], title)


@each_dashboard
def test_grafanas_own_model_reads_the_dashboard(dashboard: dict[str, Any]) -> None:
    register_default_plugins()
    model = sdk.Dashboard.from_json(dashboard)
    assert (model.uid, model.title) == (dashboard["uid"], dashboard["title"])
    assert model.panels is not None
    panels = [each for panel in model.panels for each in (panel, *(getattr(panel, "panels", None) or ()))]
    shown = [panel for panel in panels if panel.type_val != "row"]
    assert [panel.type_val for panel in shown] == [panel["type"] for panel in build.panels_of(dashboard)]
    targets = [target for panel in shown for target in getattr(panel, "targets", None) or []]
    assert all(isinstance(target, prometheus.Dataquery) for target in targets)
    assert [target.expr for target in targets] == build.queries(dashboard)
    assert all(target.range_val is not target.instant for target in targets)
    assert [variable.name for variable in model.templating.list_val or []] == VARIABLES[dashboard["uid"]]
    assert [mark.expr for mark in model.annotations.list_val or []] == build.annotations(dashboard)
    assert [(link.include_vars, link.keep_time) for link in model.links or []] == [(True, True)] * 4 + [(False, False)]


@each_dashboard
def test_no_panel_covers_another_or_leaves_the_grid(dashboard: dict[str, Any]) -> None:
    open_ = dashboard["panels"]
    _apart([panel["gridPos"] for panel in open_])
    for row in open_:
        # Opened, a collapsed row pushes down what comes after it.
        inside = [panel["gridPos"] for panel in row.get("panels", ())]
        _apart(inside)
        assert all(place["y"] > row["gridPos"]["y"] for place in inside)
    ids = [panel["id"] for panel in open_] + [panel["id"] for row in open_ for panel in row.get("panels", ())]
    assert len(set(ids)) == len(ids)


def _apart(grid: list[dict[str, int]]) -> None:
    for a, b in itertools.combinations(grid, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)
    assert all(g["x"] >= 0 and g["x"] + g["w"] <= 24 for g in grid)


@each_dashboard
def test_a_title_is_there_once(dashboard: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in build.panels_of(dashboard)]
    titles += [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert sorted(set(titles)) == sorted(titles)


@each_panel
def test_every_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["type"] in KINDS
    assert "Good: " in panel["description"] or "good use" in panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["legendFormat"] and target["datasource"] == panel["datasource"] for target in panel["targets"])
    assert [target["refId"] for target in panel["targets"]] == sorted({target["refId"] for target in panel["targets"]})


@each_panel
def test_a_panel_has_a_handful_of_lines(panel: dict[str, Any]) -> None:
    if panel["type"] == "timeseries":
        assert len(panel["targets"]) <= 6


@each_panel
def test_a_single_value_is_the_value_now_and_not_the_last_one_of_a_dead_monitor(panel: dict[str, Any]) -> None:
    now = panel["type"] in {"stat", "table"}
    assert all(target["instant"] is now for target in panel["targets"])


@each_panel
def test_a_heat_map_is_one_histogram_by_its_bounds(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        heat = panel["type"] == "heatmap"
        assert target["format"] == {"heatmap": "heatmap", "table": "table"}.get(panel["type"], "time_series")
        assert bool(re.match(r"sum by \(le\) \(increase\(\w+_bucket\{", target["expr"])) is heat
        assert (target["legendFormat"] == "{{le}}") is heat


@each_panel
def test_axes_and_limits_are_those_of_queries_that_are_there(panel: dict[str, Any]) -> None:
    legends = [target["legendFormat"] for target in panel["targets"]]
    for override in panel["fieldConfig"].get("overrides", ()):
        matcher = override["matcher"]
        if matcher["id"] == "byFrameRefID":
            assert matcher["options"] in {target["refId"] for target in panel["targets"]}
        if matcher["options"] == "/^objective/":
            assert any(legend.startswith("objective") for legend in legends)


@each_panel
def test_links_of_a_panel_lead_to_runbooks_that_are_there(panel: dict[str, Any]) -> None:
    for link in panel["links"]:
        page = link["url"].removeprefix(RUNBOOKS)
        assert re.fullmatch(r"Kneewatch\w+\.md", page)
        assert (ROOT / "docs/runbooks" / page).is_file(), f"no runbook {page}"
        assert page.removesuffix(".md") in link["title"]


def test_every_alert_is_behind_a_panel() -> None:
    linked = {link["url"].removeprefix(RUNBOOKS).removesuffix(".md") for _, panel in PANELS for link in panel["links"]}
    alerts = {found for text in rules_of().values() for found in re.findall(r"alert: (\w+)", text)}
    assert alerts <= linked


@each_dashboard
def test_every_dashboard_leads_to_the_others_and_to_the_runbooks(dashboard: dict[str, Any]) -> None:
    *others, runbooks = dashboard["links"]
    assert {link["url"] for link in others} == {f"/d/{uid}" for uid in BY_UID if uid != dashboard["uid"]}
    assert runbooks["url"] == RUNBOOKS


def test_a_row_of_the_fleet_leads_to_its_targets_dashboards() -> None:
    (table,) = [panel for panel in BY_UID[FLEET]["panels"] if panel["type"] == "table"]
    (links,) = [
        one["value"]
        for override in table["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byName", "options": "Target"}
        for one in override["properties"]
        if one["id"] == "links"
    ]
    for link, uid in zip(links, (TARGET, CAPACITY), strict=True):
        address = urlsplit(link["url"])
        assert address.path == f"/d/{uid}"
        places = "&${cluster:queryparam}&${namespace:queryparam}"  # Grafana fills in `var-cluster=...`
        assert places in address.query
        asked = parse_qs(address.query.replace("&${__url_time_range}", "").replace(places, ""))
        assert asked == {"var-datasource": ["${datasource}"], "var-target": ["${__value.raw}"]}
        # What is given is a variable there.
        assert {name.removeprefix("var-") for name in asked} <= set(VARIABLES[uid])


def test_the_fleets_columns_are_joined_by_target_sorted_and_named() -> None:
    (table,) = [panel for panel in BY_UID[FLEET]["panels"] if panel["type"] == "table"]
    join, sort, keep, name = table["transformations"]
    assert join == {"id": "joinByField", "options": {"byField": "target", "mode": "outer"}}
    *columns, rank = [f"Value #{target['refId']}" for target in table["targets"]]
    assert sort == {"id": "sortBy", "options": {"sort": [{"field": rank, "desc": True}]}}
    # What is sorted by is a number that means nothing by itself.
    assert keep["options"]["include"]["names"] == ["target", *columns]
    places = name["options"]["indexByName"]
    assert sorted(places, key=places.__getitem__) == ["target", *columns]
    titles = {field: name["options"]["renameByName"][field] for field in ("target", *columns)}
    assert [override["matcher"]["options"] for override in table["fieldConfig"]["overrides"]] == list(titles.values())
    assert len(set(titles.values())) == len(titles)
    colours = [
        any(one["id"] == "custom.cellOptions" for one in override["properties"])
        for override in table["fieldConfig"]["overrides"]
    ]
    assert sum(colours) >= 11


@each_dashboard
def test_a_mark_is_asked_for_where_old_and_new_grafanas_look(dashboard: dict[str, Any]) -> None:
    marks = {mark["name"]: mark for mark in dashboard["annotations"]["list"]}
    own, of_target = ["Configuration", "Kneewatch version"], ["Capacity run", "Guard trip", "Server restart"]
    assert list(marks)[:7] == (own if dashboard["uid"] == FLEET else [*of_target, "Server version", "Asleep", *own])
    for mark in marks.values():
        interval = {"interval": "1m"} if "$__rate_interval" in mark["expr"] else {}
        assert mark["target"] == {"refId": "Anno", "expr": mark["expr"], **interval}
        assert mark["iconColor"]
        # A label that the query does not keep would be shown as it is written.
        labels = set(re.findall(r"\{\{(\w+)\}\}", mark["textFormat"]))
        kept = re.match(r"(?:1000 \* )?\w+ by \(([\w, ]+)\)", mark["expr"])
        assert kept is not None
        assert labels <= set(kept[1].split(", "))
        assert mark["useValueForTime"] == mark["expr"].startswith("1000 * ")


@each_panel
def test_a_legend_names_labels_that_its_query_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        by = {label for group in re.findall(r" by \(([\w, ]+)\)", target["expr"]) for label in group.split(", ")}
        added = set(re.findall(r'label_replace\(.*, "(\w+)", "[^"]*", "', target["expr"], re.DOTALL))
        recorded = {label for level in re.findall(r"(\w+):kneewatch_", target["expr"]) for label in level.split("_")}
        assert asked <= by | added | recorded


def test_the_questions_come_in_the_order_in_which_they_are_asked() -> None:
    rows = {
        uid: [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
        for uid, dashboard in BY_UID.items()
    }
    assert rows[FLEET] == ["Is any target in trouble?", "Which one?", "Since when?"]
    assert rows[TARGET] == [
        "Is it slow or broken, for users, and how much more can it take?",
        "Since when, and for whom?",
        "Why?",
    ]
    assert rows[SERVER] == [
        "Do the client and the server agree?",
        "Latency in detail",
        "Queue, batch and KV cache in detail",
        "What do users send?",
        "GPUs",
        "More GPU metrics",
        "Engines of a data-parallel server",
        "Prefill and decode on different servers",
        "Optional server metrics",
    ]
    assert rows[CAPACITY] == [
        "How much can it serve?",
        "How close is user traffic?",
        "What limits it?",
        "Has it shifted, and is the forecast right?",
        "What did measuring cost?",
    ]
    assert rows[PROBE] == [
        "Is everything running?",
        "Is its timing accurate?",
        "Do its tasks run for the target?",
        "Can it read the server?",
        "Which servers are discovered, and which shards watch them?",
        "What does it cost?",
    ]


def test_a_collapsed_row_keeps_its_panels_until_it_is_opened() -> None:
    collapsed = {
        uid: {panel["title"] for panel in dashboard["panels"] if panel.get("collapsed")}
        for uid, dashboard in BY_UID.items()
    }
    assert collapsed == {
        FLEET: set(), CAPACITY: set(), PROBE: set(), TARGET: set(),
        SERVER: {
            "GPUs", "More GPU metrics", "Engines of a data-parallel server", "Prefill and decode on different servers",
            "Optional server metrics",
        },
    }  # fmt: skip
    shown = {panel["title"] for panel in build.panels_of(BY_UID[SERVER])}
    assert {"Links", "Running, by engine", "Speculative decoding"} <= shown
    assert not {"Links", "Speculative decoding"} & {panel["title"] for panel in BY_UID[SERVER]["panels"]}


def test_the_row_of_gpus_is_open_where_a_target_has_some() -> None:
    target = CONFIG.targets[0]
    gpu = target.gpu.model_copy(update={"dcgm_urls": ("http://node:9400/metrics",)})
    with_gpus = CONFIG.model_copy(update={"targets": (target.model_copy(update={"gpu": gpu}),)})
    for config, is_collapsed in ((CONFIG, True), (with_gpus, False)):
        rows = {one["title"]: one for one in json.loads(build.render(config)[f"{SERVER}.json"])["panels"]}
        assert rows["GPUs"]["collapsed"] is is_collapsed


def test_a_server_that_sleeps_is_asleep_and_neither_up_nor_down() -> None:
    def texts(mappings: list[dict[str, Any]]) -> dict[str, str]:
        (by_value,) = [one["options"] for one in mappings if one["type"] == "value"]
        return {value: shown["text"] for value, shown in by_value.items()}

    by_title = {(uid, panel["title"]): panel for uid, panel in PANELS}
    last, table = by_title[TARGET, "Last canary"], by_title[FLEET, "Targets, worst first"]
    (of_up,) = [one for one in table["fieldConfig"]["overrides"] if one["matcher"]["options"] == "Up"]
    (mapped,) = [one["value"] for one in of_up["properties"] if one["id"] == "mappings"]
    assert (
        texts(mapped) == texts(last["fieldConfig"]["defaults"]["mappings"]) == {"0": "DOWN", "1": "up", "2": "asleep"}
    )
    exprs = [last["targets"][0]["expr"], *(one["expr"] for one in table["targets"] if one["legendFormat"] == "Up")]
    for expr in exprs:  # a sleeping server has no kneewatch_target_up, and its metrics can be read
        assert re.match(r"2 \* \(max(?: by \(target\) )?\(kneewatch_server_asleep\{[^}]*\}\) == 1\) or ", expr), expr


@for_each([panel for _, panel in PANELS], title)
def test_an_empty_panel_says_what_is_missing(panel: dict[str, Any]) -> None:
    """No "No data" at three in the morning, which may be a server without GPUs or a dead Kneewatch."""
    said = panel["fieldConfig"]["defaults"]["noValue"]
    assert said not in {"no data", "unknown", "not known", "never"}
    if any(series.name in target["expr"] for target in panel["targets"] for series in names.GPU):
        assert "no GPU metrics" in said or panel["type"] == "table"


def test_points_are_of_fields_that_the_joined_frame_has() -> None:
    """Grafana finds them by the names that are shown: those of the legends."""
    (panel,) = [panel for _, panel in PANELS if panel["type"] == "xychart"]
    x, *y = [target["legendFormat"] for target in panel["targets"]]
    assert [(one["x"], one["y"], one["frame"]) for one in panel["options"]["series"]] == [(x, each, 0) for each in y]
    assert {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]} <= {x, *y}
    (join,) = panel["transformations"]
    assert join == {"id": "joinByField", "options": {"byField": "Time", "mode": "inner"}}


def test_a_task_is_as_old_as_it_was_when_scraped() -> None:
    """At a scrape every minute, each task that runs more often would else be overdue most of the time."""
    by_title = {panel["title"]: panel["targets"] for _, panel in PANELS}
    for name in ("Overdue tasks", "Time since each task ran"):
        (target,) = by_title[name]
        assert "timestamp(kneewatch_task_last_success_timestamp_seconds{" in target["expr"]
        assert not re.search(r"\btime\(\)", target["expr"])


def test_an_upper_bound_that_the_last_result_lacks_is_an_earlier_one() -> None:
    target, *_ = next(panel["targets"] for _, panel in PANELS if panel["title"] == "Capacity and users")
    parts = {re.findall(r'"bound", "([^"]+)"', part)[0]: part for part in target["expr"].split("\nor ")}
    assert "and max" in parts["upper bound"]
    assert "unless max" in parts["earlier upper bound"]
    assert all(parts[name].count("@ end()") == 1 for name in ("upper bound", "earlier upper bound"))


def test_a_legend_of_labels_has_room_for_them() -> None:
    """Its table has two values beside each name, and cuts a name that is too long for what is left."""
    narrow = {
        panel["title"]
        for _, panel in PANELS
        if panel["type"] == "timeseries" and panel["gridPos"]["w"] < 8
        if any("{{" in target["legendFormat"] for target in panel["targets"])
    }
    assert narrow == set()

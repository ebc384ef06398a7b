"""Dashboards read as Grafana reads them: times, variables, fields, answers and tables."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_dashboard import HOSTILE, NOW_S, dashboard, panel, prometheus, table

from benchmarks.dashboards.preview.answers import Asked, drawn, legend
from benchmarks.dashboards.preview.asking import Answer, Asker, QueryError, UnreachableError, on_grid
from benchmarks.dashboards.preview.fields import UNITS
from benchmarks.dashboards.preview.gather import Sitting, gather
from benchmarks.dashboards.preview.intervals import Grid, Window, rate_interval, step_of
from benchmarks.dashboards.preview.places import Shown, View
from benchmarks.dashboards.preview.write import write_pages
from dashboards.build import panels_of, render
from probe.config.config_file import load_config

ROOT = Path(__file__).parents[2]
CONFIG = load_config(ROOT / "deploy/examples/kneewatch.yml")
OURS = [json.loads(text) for text in render(CONFIG).values()]
GRID = Grid(1000.0, 10.0, 4)


def view_of(made: dict[str, Any], **more: Any) -> tuple[View, list[httpx.Request]]:
    """Return the dashboard drawn from the fake Prometheus, and the queries it received."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return prometheus(request)

    async def gathered() -> View:
        async with Asker("http://prometheus:9090", httpx.MockTransport(answer)) as asker:
            sitting: dict[str, Any] = {
                "now_s": NOW_S,
                "scrape_s": 15.0,
                "given": {"target": "b"},
                "pages": {"other": "other.html"},
            }
            return await gather(made, Sitting(asker, **(sitting | more)))

    return asyncio.run(gathered()), asked


def shown(view: View, title: str) -> Shown:
    (found,) = [one for row in view.rows for one in row.panels if one.title == title]
    return found


def data(view: View, title: str) -> dict[str, Any]:
    found = shown(view, title).data
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("hours", "scrape_s", "step_s"), [(3, 15, 30), (1, 15, 15), (24, 15, 300), (7 * 24, 15, 1800), (0.05, 1, 1)]
)
def test_a_step_is_grafanas_for_three_hundred_points(hours: float, scrape_s: float, step_s: float) -> None:
    assert step_of(Window(0, hours * 3600), scrape_s) == step_s


def test_the_rate_window_holds_four_scrapes_and_a_step() -> None:
    assert rate_interval(15, 15) == 60
    assert rate_interval(300, 15) == 315


def test_missing_samples_between_two_times_are_a_gap() -> None:
    answer = Answer({}, ((1000.0, 1.0), (1020.0, math.nan), (1030.0, 4.0), (1100.0, 9.0)))
    assert on_grid(answer, GRID) == [1.0, None, None, 4.0]


def test_variables_have_what_was_given_or_all_or_the_first_there_is() -> None:
    given, _ = view_of(dashboard())
    assert [(one.name, one.text, one.query) for one in given.choices] == [
        ("target", "b", "b"),
        ("workload", "all", ".*"),
    ]
    free, asked = view_of(dashboard(), given={})
    assert free.choices[0].text == "a-target"
    assert any(request.url.params.get("match[]") == "tasks" for request in asked)


def test_grafanas_own_variables_follow_the_step_and_a_querys_min_step() -> None:
    made = dashboard()
    one = panel(2, "timeseries", "One", {"x": "rate(a[$__rate_interval]) + b[$__range]"}, interval="2m")
    other = panel(3, "timeseries", "Two", {"x": "rate(c[$__rate_interval])"})
    other["targets"][0]["interval"] = "2m"
    made["panels"] = [one, other]
    _, asked = view_of(made)
    queries = [httpx.QueryParams(r.content.decode()) for r in asked if r.url.path.endswith("query_range")]
    by_name = {q["query"]: q["step"] for q in queries if "restarts" not in q["query"]}
    # A panel's least interval makes points rarer; only a query's makes the window wider, as in Grafana.
    assert by_name == {"rate(a[135s]) + b[3600s]": "120", "rate(c[480s])": "120"}


@pytest.mark.parametrize("made", OURS, ids=lambda one: one["uid"])
def test_the_preview_knows_every_unit_and_matcher_of_our_dashboards(made: dict[str, Any]) -> None:
    for one in panels_of(made):
        config = one["fieldConfig"]
        units = [p["value"] for o in config["overrides"] for p in o["properties"] if p["id"] == "unit"]
        assert {config["defaults"]["unit"], *units} <= set(UNITS)
        known = {"byName", "byRegexp", "byFrameRefID", "byType"}
        assert {o["matcher"]["id"] for o in config["overrides"]} <= known
        assert one["type"] in {"timeseries", "stat", "heatmap", "state-timeline", "table", "xychart"}


@pytest.mark.parametrize("made", OURS, ids=lambda one: one["uid"])
def test_every_panel_of_our_dashboards_is_shown_in_its_place(made: dict[str, Any]) -> None:
    """Where each answer has every label there is, so that nothing is empty and every transformation runs."""
    labels = {"target": "b", "le": "0.5", "reason": "full", "mode": "verify", "version": "1"}

    def answer(request: httpx.Request) -> httpx.Response:
        if "/label/" in request.url.path:
            return prometheus(request)
        asked = httpx.QueryParams(request.content.decode())
        at_s = float(asked.get("time") or asked["end"])
        one: dict[str, Any] = {"metric": labels}
        one |= {"value": [at_s, "0.25"]} if "time" in asked else {"values": [[at_s, "0.25"]]}
        kind = "vector" if "time" in asked else "matrix"
        return httpx.Response(200, json={"status": "success", "data": {"resultType": kind, "result": [one]}})

    async def gathered() -> View:
        async with Asker("http://prometheus:9090", httpx.MockTransport(answer)) as asker:
            return await gather(made, Sitting(asker, NOW_S, 15.0, {"target": "b"}, {}))

    view = asyncio.run(gathered())
    panels = [one for row in view.rows for one in row.panels]
    assert len(panels) == len(list(panels_of(made)))
    assert [(one.title, one.problem) for one in panels if one.data is None] == []
    for row in view.rows:
        cells = [(x, y) for one in row.panels for x in range(one.place[0], one.place[0] + one.place[2])
                 for y in range(one.place[1], one.place[1] + one.place[3])]  # fmt: skip
        assert len(set(cells)) == len(cells), row.title


def test_a_legend_is_filled_from_labels_or_is_the_series() -> None:
    assert legend("{{ a }} by {{b}}", {"a": "1"}) == "1 by"
    assert legend("", {"__name__": "up", "b": "2", "a": "1"}) == 'up{a="1", b="2"}'


def test_buckets_become_what_lies_between_their_bounds() -> None:
    view, _ = view_of(dashboard())
    heat = data(view, "Heat")
    assert heat["bounds"] == [0.1, 0.5, "+Inf"]
    assert [row[0] for row in heat["rows"]] == [2.0, 3.0, 0.0]
    assert heat["lowest"] == 0.0


def test_points_are_of_the_moments_of_both_queries_and_of_no_query_that_is_missing() -> None:
    view, _ = view_of(dashboard())
    (points,) = data(view, "Points")["series"]
    assert (points["name"], len(points["x"]) == len(points["values"])) == ("latency", True)
    assert None in points["values"]
    assert points["x"] == sorted(points["x"])


def test_lines_keep_their_gaps_and_a_limit_its_dashes() -> None:
    view, _ = view_of(dashboard())
    p50, hostile, objective = data(view, "Lines")["series"]
    assert (p50["name"], hostile["name"], objective["name"]) == ("p50", HOSTILE, "objective")
    assert None in hostile["values"]
    assert None not in p50["values"]
    assert objective["field"]["custom"]["lineStyle"]["fill"] == "dash"


def test_a_single_value_that_is_not_a_number_is_shown_as_a_word() -> None:
    made = panel(2, "stat", "One", {"x": "x"}, instant=True)
    answers = [Answer({}, ((0.0, value),)) for value in (math.inf, math.nan, 2.0)]
    found = drawn(made, [Asked(made["targets"][0], answers)], lambda _: None)
    assert found is not None
    assert [one["value"] for one in found["values"]] == ["+Inf", "NaN", 2.0]


def test_queries_are_joined_into_rows_the_worst_first_and_the_unknown_last() -> None:
    view, _ = view_of(dashboard())
    targets = data(view, "Targets")
    assert [one["name"] for one in targets["columns"]] == ["Target", "Up", "TTFT"]
    names, ups, ttfts = zip(*targets["rows"], strict=True)
    # Only the target that the pages are about has a page to lead to.
    assert names == ({"value": "b", "links": [{"title": "Target", "href": "other.html"}]}, "a", HOSTILE)
    assert ups == (1.0, 0.0, 1.0)
    assert ttfts == (1.25, 0.25, None)


def test_a_table_that_would_mislead_is_refused_in_its_place() -> None:
    made = dashboard()
    made["panels"] = [table(2, ["ups", "shares", "shares"])]
    made["panels"][0]["transformations"].append({"id": "pivot", "options": {}})
    view, _ = view_of(made)
    assert shown(view, "Targets").problem == "the preview does not know Grafana's transformation pivot"


def test_a_panel_says_that_it_has_no_data_or_why_its_query_fails() -> None:
    view, _ = view_of(dashboard())
    assert (shown(view, "Empty").data, shown(view, "Empty").empty) == (None, "none was seen")
    assert shown(view, "Failing").problem == 'unknown "fails" <b>'
    assert shown(view, "Lines").problem == ""


def test_marks_are_where_the_value_says_or_where_it_begins_to_be_above_zero() -> None:
    made = dashboard()
    made["annotations"]["list"].append({"name": "Flip", "expr": "flips", "textFormat": "{{who}}"})
    view, _ = view_of(made)
    restart, flip = view.events
    assert restart["marks"] == [{"at": NOW_S - 1800, "text": f"{HOSTILE} began"}]
    begun = [mark["at"] for mark in flip["marks"] if mark["text"] == "a"]
    assert begun == [NOW_S - 3600 + 1200 * i for i in range(len(begun))]
    assert len(begun) == 4


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (400, '{"status":"error","error":"parse error\\nat 1"}', QueryError, "parse error at 1"),
        (200, "<html>", UnreachableError, "HTTP 200 and no answer of Prometheus's to a query"),
        (502, '["gateway"]', UnreachableError, "HTTP 502 and no answer of Prometheus's to a query"),
        (200, '{"status":"success","data":{"result":[1]}}', QueryError, "not Prometheus's answer to a query"),
    ],
)
def test_an_answer_that_is_none_is_one_line(status: int, body: str, error: type[QueryError], says: str) -> None:
    async def asked() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
        async with Asker("http://prometheus:9090", transport) as asker:
            await asker.instant("up", NOW_S)

    with pytest.raises(error) as raised:
        asyncio.run(asked())
    assert str(raised.value) == says
    assert type(raised.value) is error


def test_an_address_where_nothing_listens_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(QueryError) as raised:
        write_pages(render(CONFIG), "http://127.0.0.1:1", "llama-8b", tmp_path / "out")
    assert str(raised.value) == "no connection: Connection refused"
    assert not (tmp_path / "out").exists()

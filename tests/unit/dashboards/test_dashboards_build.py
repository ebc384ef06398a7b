import itertools
import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as sdk
from grafana_foundation_sdk.models import prometheus

from dashboards import build
from exporters import names
from probe.config import load_config

ROOT = Path(__file__).parents[3]
CONFIG = load_config(ROOT / "deploy/examples/kneewatch.yml")
DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in build.render(CONFIG).items()}
PANELS = [panel for dashboard in DASHBOARDS.values() for panel in build.panels_of(dashboard)]
QUERIES = [query for dashboard in DASHBOARDS.values() for query in build.queries(dashboard)]


def test_the_committed_example_is_what_the_generator_makes() -> None:
    for name, text in build.render(CONFIG).items():
        assert (ROOT / "dashboards/generated" / name).read_text() == text, "run `make generate`"


def test_write_puts_the_rendered_files_into_a_new_folder(tmp_path: Path) -> None:
    paths = build.write(CONFIG, tmp_path / "a" / "b")
    assert {path.name: path.read_text() for path in paths} == build.render(CONFIG)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=lambda d: d["uid"])
def test_grafanas_own_model_reads_the_dashboard(dashboard: dict[str, Any]) -> None:
    register_default_plugins()
    model = sdk.Dashboard.from_json(dashboard)
    assert (model.uid, model.title) == (dashboard["uid"], dashboard["title"])
    assert model.panels is not None
    assert [panel.type_val for panel in model.panels] == [panel["type"] for panel in dashboard["panels"]]
    targets = [target for panel in model.panels for target in getattr(panel, "targets", None) or []]
    assert all(isinstance(target, prometheus.Dataquery) for target in targets)
    assert [target.expr for target in targets] == build.queries(dashboard)
    assert [variable.name for variable in model.templating.list_val or []] == ["datasource", "target", "workload"]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_is_promql_once_its_variables_are_filled_in(query: str) -> None:
    filled = build.substitute(query, "llama-8b", "short-chat")
    assert "$" not in filled
    promql_parser.parse(filled)


@pytest.mark.parametrize("query", QUERIES)
def test_every_series_in_a_query_is_one_that_is_exported(query: str) -> None:
    known = {series.bucket if series.kind == "histogram" else series.name for series in names.ALL}
    used = set(re.findall(rf"{names.PREFIX}\w+", query))
    assert used
    assert used <= known


@pytest.mark.parametrize("query", [q for q in QUERIES if names.LOOP_LAG.name not in q])
def test_every_query_is_about_the_chosen_target(query: str) -> None:
    assert query.count("{") == query.count('target="$target"')


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_every_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 40
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["legendFormat"] for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("panel", [p for p in PANELS if p["type"] == "stat"], ids=lambda p: p["title"])
def test_a_single_value_is_the_value_now_and_not_the_last_one_of_a_dead_monitor(panel: dict[str, Any]) -> None:
    assert all(target["instant"] for target in panel["targets"])


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=lambda d: d["uid"])
def test_no_panel_covers_another_or_leaves_the_grid(dashboard: dict[str, Any]) -> None:
    grid = [panel["gridPos"] for panel in dashboard["panels"]]
    for a, b in itertools.combinations(grid, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)
    assert all(g["x"] >= 0 and g["x"] + g["w"] <= 24 for g in grid)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_questions_come_in_the_order_in_which_they_are_asked() -> None:
    (dashboard,) = DASHBOARDS.values()
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Is it slow or broken, for users?", "Why?", "How much more can it take?", "Can I trust it?"]


def test_the_rate_window_holds_the_slowest_canary() -> None:
    canary = CONFIG.targets[0].canary.model_copy(update={"every": 120.0})
    slow = CONFIG.model_copy(update={"targets": (CONFIG.targets[0].model_copy(update={"canary": canary}),)})
    (text,) = build.render(slow).values()
    assert {p["interval"] for p in build.panels_of(json.loads(text)) if p["title"] in {"TTFT", "TPOT", "ITL"}} == {"2m"}


def test_trips_of_the_guard_are_counted_like_runs() -> None:
    """Both count from zero from the start, and a restart of the monitor resets both."""
    (panel,) = [panel for panel in PANELS if panel["title"] == "Runs and guard trips, 1 day"]
    for series, target in zip(
        (names.CAPACITY_RUNS, names.GUARD_TRIPS, names.CAPACITY_REFUSALS), panel["targets"], strict=True
    ):
        assert f'(increase({series.name}{{target="$target"}}[1d]))' in target["expr"]

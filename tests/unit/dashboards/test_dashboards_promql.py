"""What dashboards ask of Prometheus: PromQL, of series that are there, about the chosen target, and never much."""

import re
from typing import Any

import promql_parser
import pytest
from for_each import for_each
from our_dashboards import BY_UID, DASHBOARDS

from alerts import sli, trends, user_mix
from alerts.build import render as rules_of
from alerts.links import CAPACITY, FLEET, SERVER, TARGET
from dashboards import build
from exporters import names

PANEL_QUERIES = [
    (uid, target["instant"], target["expr"])
    for uid, dashboard in BY_UID.items()
    for panel in build.panels_of(dashboard)
    for target in panel["targets"]
]
KNOWN = {
    f"{series.name}{part}"
    for series in names.ALL
    for part in (("_bucket", "_sum", "_count") if series.kind == "histogram" else ("",))
}
QUERIES = sorted({(uid, expr) for uid, _, expr in PANEL_QUERIES})
MARKS = [(uid, expr) for uid, dashboard in BY_UID.items() for expr in build.annotations(dashboard)]
BUDGETS = {one.budget_record for one in (*sli.CANARIES, *sli.USERS)}
RECORDS = BUDGETS | set(trends.RECORDS) | set(user_mix.SHOWN)
KNOWN |= RECORDS
DIFFERENT = sorted({query for _, query in [*QUERIES, *MARKS]})
# The only ones that are about the process and not about a target.
OF_THE_PROCESS = {
    series.name
    for series in (names.LOOP_LAG, names.TASK_LATENESS, names.CPU, names.MEMORY, names.STARTED, names.BUILD_INFO,
                   names.CONFIG_TAKEN, names.CONFIG_TAKEN_AT, names.CONFIG_HASH, names.SHARD, names.SHARDS,
                   names.DISCOVERED, names.DISCOVERY_FAILING, names.FORECAST_CPU)
}  # fmt: skip
NOT_SHOWN = {
    names.gpu("DCGM_FI_DEV_FB_RESERVED").name,
    names.TARGET_INFO.name,  # is to be joined with, by the labels of one's own pods
    names.OTLP_FAILURES.name,
    names.LOOP_STALLS.name,  # beside the lag, and in the log with the cause
    names.LOST_LOG_LINES.name,
    *(series.name for series in names.STANDARD_PROCESS),  # for dashboards of all processes
    names.OBJECTIVE_WINDOW.name,
    names.CANARY_TIMEOUT.name,
    names.CAPACITY_SCHEDULE.name,
    names.DISCOVERY_LEAST.name,
    names.LINKS.name,
    names.FIRST_VISIBLE.name,  # of models with hidden tokens only; beside TTFT in the waterfall
}


def _series(query: str) -> set[str]:
    names_ = set(re.findall(r"kneewatch_[a-zA-Z0-9_]+", re.sub(r"\w+:kneewatch_\w+:\w+", "", query)))
    return names_ | (RECORDS & set(re.findall(r"\w+:kneewatch_\w+:\w+", query)))


def _of_the_process(query: str) -> bool:
    return {re.sub("_(bucket|sum|count)$", "", name) for name in _series(query)} <= OF_THE_PROCESS


@for_each(DIFFERENT)
def test_every_query_is_promql_of_series_that_are_exported_or_recorded(query: str) -> None:
    filled = build.substitute(query, "llama-8b", "short-chat", model="llama")
    assert "$" not in filled.replace('"$1"', "")  # of label_replace
    promql_parser.parse(filled)
    used = _series(query)
    assert used or query.startswith("vector(") or "ALERTS{" in query
    assert used <= KNOWN


def test_series_recorded_for_dashboards_are_in_the_rules() -> None:
    recorded = {name for text in rules_of().values() for name in re.findall(r"record: (\S+)", text)}
    assert recorded >= RECORDS


def test_every_series_is_on_a_dashboard() -> None:
    used = {name for _, query in (*QUERIES, *MARKS) for name in _series(query)}
    parts = ("", "_bucket", "_sum", "_count")
    unused = {series.name for series in names.ALL if not any(f"{series.name}{part}" in used for part in parts)}
    assert unused == NOT_SHOWN
    assert used >= RECORDS


def test_every_query_of_one_target_is_about_the_chosen_one() -> None:
    for uid, query in [*QUERIES, *MARKS]:
        if uid in {TARGET, SERVER, CAPACITY} and not _of_the_process(query):
            assert query.count("{") == query.count('target="$target"'), query


def test_the_capacity_is_one_curve_on_each_dashboard() -> None:
    drawn = [
        (uid, panel["title"])
        for uid, dashboard in BY_UID.items()
        for panel in build.panels_of(dashboard)
        if panel["type"] == "timeseries"
        if any(re.search(rf"{names.CAPACITY_RPS.name}\b", target["expr"]) for target in panel["targets"])
    ]
    assert drawn == [(TARGET, "Users against capacity"), (CAPACITY, "Capacity and users")]


@pytest.mark.parametrize("uid", BY_UID)
def test_queries_use_variables_that_their_dashboard_has(uid: str) -> None:
    own = {variable["name"] for variable in BY_UID[uid]["templating"]["list"]}
    used = {name for one, query in [*QUERIES, *MARKS] if one == uid for name in re.findall(r"\$(\w+)", query)}
    assert used <= own | {"__rate_interval", "__range", "1"}
    by_variables = {name for one in BY_UID[uid]["templating"]["list"] for name in re.findall(r"\$(\w+)", one["query"])}
    assert used | by_variables >= own - {"datasource"}


@pytest.mark.parametrize("uid", BY_UID)
def test_a_variables_own_query_uses_those_before_it(uid: str) -> None:
    before: set[str] = set()
    for variable in BY_UID[uid]["templating"]["list"]:
        used = set(re.findall(r"\$(\w+)", variable["query"]))
        assert used <= before
        before.add(variable["name"])
        # One at a time: no panel could say which of several a line is about.
        assert not variable["multi"]


@pytest.mark.parametrize("uid", [TARGET, CAPACITY])
@pytest.mark.parametrize("name", ["model", "workload"])
def test_models_and_workloads_are_those_of_capacities_too(uid: str, name: str) -> None:
    """Users' workload has a forecast and no canaries, and so has every workload of a passive target."""
    (query,) = [one["query"] for one in BY_UID[uid]["templating"]["list"] if one["name"] == name]
    (matched,) = re.findall(r'__name__=~"([^"]+)"', query)
    assert {one.name for one in names.ALL if re.fullmatch(matched, one.name)} == {
        names.REQUESTS.name,
        names.CAPACITY_RPS.name,
    }


def test_over_time_little_is_asked_of_all_targets() -> None:
    """Fifty targets' histograms over a month are hundreds of millions of samples: Prometheus would take a minute."""
    over_time = [query for _, instant, query in PANEL_QUERIES if not instant] + [query for _, query in MARKS]
    for query in over_time:
        if "$target" not in query and not _of_the_process(query):
            assert _series(query) <= set(trends.RECORDS), query


def test_as_of_now_short_windows_are_asked_of_all_targets() -> None:
    windows = {window for uid, _, query in PANEL_QUERIES if uid == FLEET for window in re.findall(r"\[(\w+)\]", query)}
    assert windows == {"5m", "15m", "1h"}


def test_latencies_of_canaries_are_those_of_the_chosen_workload() -> None:
    for _, query in QUERIES:
        if 'traffic="canary"' in query and "$target" in query:
            assert 'workload=~"$workload"' in query


def test_all_of_a_variable_is_anything() -> None:
    for dashboard in DASHBOARDS.values():
        variables: dict[str, dict[str, Any]] = {one["name"]: one for one in dashboard["templating"]["list"]}
        for name in ("model", "workload"):
            if name in variables:
                assert (variables[name]["includeAll"], variables[name]["allValue"]) == (True, ".*")
        if "target" in variables:
            assert not variables["target"]["includeAll"]


def test_substitute_fills_in_what_grafana_would() -> None:
    query = 'a{target="$target",model=~"$model",workload=~"$workload"}[$__rate_interval] b[$__range]'
    filled = build.substitute(query, "t", "w", "30s", model="m", span="6h")
    assert filled == 'a{target="t",model=~"m",workload=~"w"}[30s] b[6h]'
    assert build.substitute("$target $workload $model $__rate_interval", "t") == "t .* .* 1m"


@pytest.mark.parametrize(
    "series", [names.CAPACITY_RUNS, names.GUARD_TRIPS, names.CAPACITY_REFUSALS], ids=lambda series: series.name
)
def test_capacity_counters_are_queried_by_increase(series: names.Series) -> None:
    """They count from zero from the start, and a restart of the monitor resets all of them."""
    assert any(f"(increase({series.name}{{" in query for uid, query in QUERIES if uid == CAPACITY)

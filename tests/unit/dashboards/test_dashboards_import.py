"""What lets one set of dashboards serve any Grafana: import by hand, filters, and links to the monitor's pages."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from for_each import for_each
from our_dashboards import BY_UID, CONFIG, DASHBOARDS

from alerts.links import FLEET, TARGET
from dashboards import build

each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=lambda d: d["uid"])
QUERIES = sorted(
    {(uid, expr) for uid, one in BY_UID.items() for expr in (*build.queries(one), *build.annotations(one))}
)
# Keys of Grafana before version 5, which grafanalib still writes.
_OLD_KEYS = {"__inputs", "hideControls", "rows", "sharedCrosshair", "style"}


def _sources(value: Any) -> Iterator[Any]:
    """Yield every data source that is named in a dashboard."""
    if isinstance(value, dict):
        yield from (found for key, found in value.items() if key == "datasource")
        for inner in value.values():
            yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


@each_dashboard
def test_a_dashboard_is_imported_by_hand_and_provisioned_alike(dashboard: dict[str, Any]) -> None:
    """Provisioning does not fill in `__inputs`, so the data source is a variable, Grafana's default one at first."""
    assert not _OLD_KEYS & set(dashboard)
    assert "id" not in dashboard
    source = dashboard["templating"]["list"][0]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert source["current"] == {"selected": False, "text": "default", "value": "default"}
    sources = list(_sources(dashboard))
    assert len(sources) > 10
    assert all(found == {"type": "prometheus", "uid": "${datasource}"} for found in sources)


@each_dashboard
def test_a_dashboard_says_what_it_requires(dashboard: dict[str, Any]) -> None:
    required = {(one["type"], one["id"]): one["version"] for one in dashboard["__requires"]}
    kinds = {panel["type"] for panel in build.panels_of(dashboard)}
    assert set(required) == {("grafana", "grafana"), ("datasource", "prometheus"), *(("panel", kind) for kind in kinds)}
    assert required["grafana", "grafana"] == "10.0.0"


@each_dashboard
def test_cluster_namespace_and_group_come_before_what_they_filter(dashboard: dict[str, Any]) -> None:
    variables = dashboard["templating"]["list"]
    assert [one["name"] for one in variables[:4]] == ["datasource", "cluster", "namespace", "group"]
    for one in variables[1:4]:
        assert (one["includeAll"], one["allValue"]) == (True, ".*")
    cluster, namespace, group = (one["query"] for one in variables[1:4])
    assert cluster == "label_values(kneewatch_task_interval_seconds, cluster)"
    assert namespace == 'label_values(kneewatch_task_interval_seconds{cluster=~"$cluster"}, namespace)'
    place = '{cluster=~"$cluster",namespace=~"$namespace"}'
    assert group == f"label_values(kneewatch_task_interval_seconds{place}, target)"
    for one in variables[4:]:
        assert 'cluster=~"$cluster",namespace=~"$namespace"' in one["query"]


def test_a_group_is_the_discovery_of_a_found_server_or_the_target_itself() -> None:
    """As the alerts' label `group`."""
    group = next(one for one in BY_UID[FLEET]["templating"]["list"] if one["name"] == "group")
    pattern = re.compile(group["regex"].strip("/"))
    targets = ("pods/llama-0", "pods/llama-1", "llama-8b", "podsters")
    groups = {found[1] for target in targets if (found := pattern.match(target))}
    assert groups == {"pods", "llama-8b", "podsters"}
    (of_target,) = [one for one in BY_UID[TARGET]["templating"]["list"] if one["name"] == "target"]
    wanted = re.compile(re.search(r'target=~"([^"]+)"', of_target["query"])[1].replace("$group", "pods"))  # type: ignore[index]
    assert [bool(wanted.fullmatch(target)) for target in targets] == [True, True, False, False]
    everything = re.compile(wanted.pattern.replace("pods", ".*"))
    assert all(everything.fullmatch(target) for target in (*targets, ""))


@for_each(QUERIES)
def test_every_selector_filters_by_cluster_and_namespace(query: tuple[str, str]) -> None:
    _, expr = query
    matchers = re.findall(r'\{((?:[^}"]|"[^"]*")*)\}', expr)
    names = re.findall(
        r"\b(?:\w+:)?kneewatch_\w+|\b__name__=|\bALERTS\b", re.sub(r'"[^"]*"', "", expr.replace('"__name__"', ""))
    )
    filtered = [one for one in matchers if 'cluster=~"$cluster",namespace=~"$namespace"' in one]
    assert len(filtered) == len(matchers) == len(names)
    promql_parser.parse(build.substitute(expr, "llama-8b"))


def test_the_fleet_filters_by_group() -> None:
    for expr in build.queries(BY_UID[FLEET]):
        assert expr.count('target=~"($group)(/.*)?"') == expr.count('cluster=~"$cluster"') > 0


def test_the_target_dashboard_is_short_and_begins_with_state_alerts_headroom_and_budgets() -> None:
    assert len(list(build.panels_of(BY_UID[TARGET]))) <= 18
    _, *shown = BY_UID[TARGET]["panels"]
    first = [panel["title"] for panel in shown if panel["gridPos"]["y"] == shown[0]["gridPos"]["y"]]
    assert first == ["Last canary", "Firing alerts", "Headroom", "Burn rate, last hour", "Error budget left"]


def test_dashboards_link_the_monitors_pages_where_their_address_is_configured() -> None:
    address = "https://kneewatch.example.org/monitor"
    plain, linked = (
        [json.loads(text) for text in build.render(config).values()]
        for config in (CONFIG, CONFIG.model_copy(update={"web_external_url": f"{address}/"}))
    )
    assert all(link["title"] != "Kneewatch" for one in plain for link in one["links"])
    for one in linked:
        (link,) = [link for link in one["links"] if link["title"] == "Kneewatch"]
        of_target = any(variable["name"] == "target" for variable in one["templating"]["list"])
        assert link["url"] == (f"{address}/targets/${{target:raw}}" if of_target else f"{address}/")
        assert (link["includeVars"], link["keepTime"], link["targetBlank"]) == (False, False, True)
    (table,) = [panel for panel in linked[0]["panels"] if panel["type"] == "table"]
    properties = itertools.chain.from_iterable(one["properties"] for one in table["fieldConfig"]["overrides"])
    (links,) = [one["value"] for one in properties if one["id"] == "links"]
    assert links[-1] == {"title": "Kneewatch", "url": f"{address}/targets/${{__value.raw}}", "targetBlank": True}

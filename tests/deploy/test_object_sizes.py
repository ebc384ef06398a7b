"""Objects fit into the annotation in which `kubectl apply` and Argo CD keep a copy of them, however they are made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _gojsonnet
import helm_python
import pytest
import yaml
from chart_values import kustomized, rendered

from alerts import build
from alerts.rules import MOST_BYTES, Manifest
from benchmarks.kustomizations import DASHBOARDS

Object = dict[str, Any]
LIMIT = 262_144  # of Kubernetes, for all annotations of an object
# What else an object has: a long name, a namespace, labels of others and the annotations of their tools.
ROOM = 30_000


def copied(one: Object) -> int:
    """Return the length of the copy: JSON as Go writes it, with <, > and & in six bytes each."""
    text = json.dumps(one, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))


def check(objects: list[Object]) -> None:
    sizes = {one["metadata"]["name"]: copied(one) for one in objects}
    assert max(sizes.values()) < LIMIT - ROOM, sizes


@pytest.mark.fault(
    "KU83",
    'All rules in one PrometheusRule, which `kubectl apply` and Argo CD refuse: "metadata.annotations: Too long"',
    users_see="several PrometheusRules from the chart, `--format operator` and the mixin, each below 262,144 bytes",
    stays="every rule, in its order",
    area="Kubernetes",
)
def test_rules_fit_from_the_chart_and_from_the_command_which_divide_them_alike(
    chart: helm_python.Chart, chart_folder: Path
) -> None:
    assert f"$most := {MOST_BYTES} " in (chart_folder / "templates/prometheus-operator.yaml").read_text()
    found = rendered(chart, {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}})
    check(found)
    charts = [one for one in found if one["kind"] == "PrometheusRule"]
    (text,) = build.render(manifest=Manifest("monitoring")).values()
    commands = list(yaml.load_all(text, yaml.CSafeLoader))
    check(commands)
    assert [one["spec"] for one in commands] == [one["spec"] for one in charts]
    assert [one["metadata"]["name"] for one in commands] == [one["metadata"]["name"] for one in charts]
    assert sum(map(copied, commands)) > LIMIT, "in one object they would not fit"


def test_rules_fit_from_the_mixin(deploy: Path) -> None:
    mixin = _gojsonnet.evaluate_snippet("test", f"(import '{deploy / 'mixin/mixin.libsonnet'}').prometheusRuleObjects")
    objects = json.loads(mixin)
    check(list(objects.values()))
    groups = [group["name"] for one in objects.values() for group in one["spec"]["groups"]]
    assert sorted(groups) == sorted(group.name for group in build.groups())


@pytest.mark.kubectl
def test_dashboards_fit_from_the_kustomization(kubectl: str) -> None:
    check(kustomized(kubectl, DASHBOARDS))


def many(number: int) -> list[Object]:
    return [{"name": f"g{n}", "rules": [{"record": "a", "expr": "a > 0 < 1 & é" * 1000}]} for n in range(number)]


@pytest.mark.parametrize("divide", ["chart", "command"])
def test_own_rules_are_divided_too_in_their_order(chart: helm_python.Chart, divide: str) -> None:
    groups = many(20)
    ways: dict[str, Callable[[], list[Any]]] = {
        "command": lambda: Manifest().wrap(groups),
        "chart": lambda: [
            one
            for one in rendered(chart, {"prometheusRule": {"enabled": True, "rules": json.dumps({"groups": groups})}})
            if one["kind"] == "PrometheusRule"
        ],
    }
    objects = ways[divide]()
    assert [group for one in objects for group in one["spec"]["groups"]] == groups
    assert len(objects) == 4, "as few as fit"
    assert all(copied(one["spec"]) <= MOST_BYTES + 20 for one in objects)


def test_a_group_that_alone_is_too_large_is_named(chart: helm_python.Chart) -> None:
    rules = [{"record": "a", "expr": ">" * MOST_BYTES}]
    text = json.dumps({"groups": [{"name": "large", "rules": rules}]})
    with pytest.raises(helm_python.HelmRenderError, match='group "large" is larger than an object may be'):
        rendered(chart, {"prometheusRule": {"enabled": True, "rules": text}})

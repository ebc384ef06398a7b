"""The mixin: the generated rules and dashboards under the names that mixins have."""

import json
from pathlib import Path
from typing import Any

import _gojsonnet
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FIELDS = ("prometheusAlerts", "prometheusRules", "grafanaDashboards")


@pytest.fixture(scope="module")
def mixin(deploy: Path) -> dict[str, Any]:
    shown = ", ".join(f"{field}: mixin.{field}" for field in FIELDS)
    program = f"local mixin = import '{deploy / 'mixin/mixin.libsonnet'}'; {{ {shown} }}"
    loaded: dict[str, Any] = json.loads(_gojsonnet.evaluate_snippet("test", program))
    return loaded


def test_every_group_is_in_one_of_two_fields_and_whole(mixin: dict[str, Any]) -> None:
    generated = yaml.safe_load((ROOT / "alerts/generated/kneewatch.rules.yml").read_text())["groups"]
    alerts, records = (mixin[field]["groups"] for field in FIELDS[:2])
    assert sorted([*alerts, *records], key=lambda group: str(group["name"])) == sorted(
        generated, key=lambda group: str(group["name"])
    )
    assert all(any("alert" in rule for rule in group["rules"]) for group in alerts)
    assert not any("alert" in rule for group in records for rule in group["rules"])


def test_the_dashboards_are_the_generated_ones(mixin: dict[str, Any]) -> None:
    generated = {file.name: json.loads(file.read_text()) for file in (ROOT / "dashboards/generated").glob("*.json")}
    assert mixin["grafanaDashboards"] == generated

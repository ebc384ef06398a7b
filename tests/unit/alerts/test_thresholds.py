"""Thresholds of alerts: one row each, which rules, options, the chart and the mixin have."""

import json
import re
from pathlib import Path
from typing import Any

import _gojsonnet
import helm_python
import pytest
import yaml

from alerts import build
from alerts.output_options import chosen_thresholds
from alerts.rules import Alert
from alerts.thresholds import DEFAULTS, THRESHOLDS, TOKENS, Threshold, thresholds
from benchmarks import rules_template
from probe.core.errors import ConfigError

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/helm/kneewatch"
# Within the limits of each, and no default.
OTHERS = {each.name: 2_000 if each.most > 1_000 else 0.55 for each in THRESHOLDS}


def own_rules() -> list[dict[str, Any]]:
    text = build.render(thresholds=thresholds(**OTHERS))[build.FILE]
    groups: list[dict[str, Any]] = yaml.load(text, yaml.CSafeLoader)["groups"]
    return groups


def of_alert(threshold: Threshold) -> list[Alert]:
    rules = (rule for group in build.groups(thresholds=TOKENS) for rule in group.rules)
    return [rule for rule in rules if isinstance(rule, Alert) and rule.name == threshold.alert]


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda each: each.name)
def test_the_rules_of_its_alert_have_it(threshold: Threshold) -> None:
    assert threshold.least <= threshold.default <= threshold.most
    rules = of_alert(threshold)
    assert rules
    assert all(threshold.token in rule.expr for rule in rules)


def test_the_template_is_up_to_date_and_becomes_the_rules() -> None:
    text = rules_template.TEMPLATE.read_text()
    assert text == rules_template.text(), "alerts/generated/kneewatch.rules.tmpl: run make generate"
    for each in THRESHOLDS:
        text = text.replace(each.token, DEFAULTS[each])
    assert text == build.render()[build.FILE]


def test_the_chart_has_each_with_its_default_and_limits_and_sets_it() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["prometheusRule"]["thresholds"]
    assert values == {each.name: each.default for each in THRESHOLDS}
    schema = json.loads((CHART / "values.schema.json").read_text())
    limits = schema["properties"]["prometheusRule"]["properties"]["thresholds"]
    assert limits["properties"] == {
        each.name: {"type": "number", "minimum": each.least, "maximum": each.most} for each in THRESHOLDS
    }
    assert limits["additionalProperties"] is False
    given = {
        "config": {"targets": [{"name": "a", "base_url": "http://a"}]},
        "prometheusRule": {"enabled": True, "thresholds": OTHERS},
    }
    with helm_python.Chart.load(CHART) as chart:
        text = chart.render(given, name="kneewatch")["kneewatch/templates/prometheus-operator.yaml"]
    rules = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    assert [group for one in rules for group in one["spec"]["groups"]] == own_rules()


def test_the_mixin_has_each_with_its_default_and_sets_it() -> None:
    mixin = f"import '{ROOT / 'deploy/mixin/mixin.libsonnet'}'"
    default = json.loads(_gojsonnet.evaluate_snippet("test", f"({mixin})._config.thresholds"))
    assert default == {each.name: each.default for each in THRESHOLDS}
    own = f"({mixin}) + {{ _config+:: {{ thresholds+: {json.dumps(OTHERS)} }} }}"
    shown = f"local mixin = {own}; mixin.prometheusAlerts.groups + mixin.prometheusRules.groups"
    groups = json.loads(_gojsonnet.evaluate_snippet("test", shown))
    assert {group["name"]: group for group in groups} == {group["name"]: group for group in own_rules()}


@pytest.mark.parametrize(
    ("text", "figures"), [("headroom=20%", "0.2"), ("headroom=.2", "0.2"), ("headroom=0.2", "0.2")]
)
def test_a_share_is_a_number_or_a_percentage(text: str, figures: str) -> None:
    assert chosen_thresholds([text]).texts == {**DEFAULTS.texts, "headroom": figures}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (["headrom=0.2"], "--set headrom=0.2: expected NAME=VALUE, with NAME one of preemption_share, "),
        (["0.2"], "--set 0.2: expected NAME=VALUE"),
        (["headroom"], "--set headroom: expected a number from 0.01 to 0.9, such as headroom=0.15"),
        (["headroom=15"], "--set headroom=15: expected a number from 0.01 to 0.9"),
        (["headroom=-1%"], "--set headroom=-1%: expected a number from"),
        (["headroom=nan"], "--set headroom=nan: expected a number from"),
        (["capacity_drop=10%"], "--set capacity_drop=10%: expected a number from 0.2 to 0.9"),
        (["headroom=0.2", "headroom=0.3"], "--set headroom=0.3: headroom is given twice"),
    ],
)
def test_others_are_refused(written: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        chosen_thresholds(written)

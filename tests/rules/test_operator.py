"""The rules as PrometheusRules: the same rules, in objects that the operator's own types take."""

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build
from alerts.rules import Manifest
from probe.config.config_file import load_config

ROOT = Path(__file__).parents[2]
CONFIG = load_config(ROOT / "deploy/examples/multi.yml", environ={})
LABELS = {"release": "kube-prometheus-stack"}


@pytest.fixture(scope="module")
def text() -> str:
    (text,) = build.render(manifest=Manifest("monitoring", LABELS)).values()
    return text


@pytest.fixture(scope="module")
def rules(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.fixture(scope="module")
def operators_type() -> Any:
    """Return the type generated from the operator's resource definition. Imported by name: its 60,000 lines are slow to
    check.
    """
    return importlib.import_module("cloudcoil.models.prometheus_operator.v1").PrometheusRule


def test_the_rules_are_those_of_the_plain_file(rules: list[dict[str, Any]]) -> None:
    plain = yaml.safe_load(build.render()[build.FILE])
    assert [group for rule in rules for group in rule["spec"]["groups"]] == plain["groups"]
    assert [rule["metadata"] for rule in rules] == [
        {"name": name, "namespace": "monitoring", "labels": LABELS}
        for name in ("kneewatch", "kneewatch-2", "kneewatch-3")
    ]


def test_a_namespace_and_labels_are_there_only_when_asked_for() -> None:
    (text,) = build.render(manifest=Manifest()).values()
    assert all(list(rule["metadata"]) == ["name"] for rule in yaml.safe_load_all(text))


def test_the_operators_type_takes_the_objects_and_loses_nothing_of_them(
    rules: list[dict[str, Any]], operators_type: Any
) -> None:
    """It drops what it does not know, so what comes back tells whether there was such a thing."""
    for rule in rules:
        assert operators_type.model_validate(rule).model_dump(by_alias=True, exclude_none=True) == rule


@pytest.mark.parametrize(("where", "value"), [("interval", "soon"), ("intervall", "30s"), ("rules", [{"alert": "A"}])])
def test_the_operators_type_would_have_noticed(
    rules: list[dict[str, Any]], operators_type: Any, where: str, value: object
) -> None:
    rule = rules[0]
    wrong = {**rule, "spec": {"groups": [{**rule["spec"]["groups"][0], where: value}]}}
    try:
        back = operators_type.model_validate(wrong).model_dump(by_alias=True, exclude_none=True)
    except ValueError:
        return
    assert back != wrong


@pytest.mark.prometheus
def test_promtool_takes_the_rules_in_the_objects(rules: list[dict[str, Any]], promtool: str, tmp_path: Path) -> None:
    for rule in rules:
        file = tmp_path / "spec.yml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        run = subprocess.run(
            [promtool, "check", "rules", file], capture_output=True, text=True, check=False, timeout=60
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_an_expression_of_several_lines_is_written_as_such(text: str) -> None:
    assert "expr: |-\n" in text
    assert "\\n" not in text

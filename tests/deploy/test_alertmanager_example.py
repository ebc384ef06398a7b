"""The example for Alertmanager: read by its own tool, and about alerts that there are."""

import re
import subprocess
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.build import render
from benchmarks.alerts import inhibit
from benchmarks.alerts.replay import Firing
from benchmarks.alerts.rules import rules_of, seconds_of
from probe.config.config_file import config_from

_LABELS = ["alertname", "severity"]
# A target of each kind, so that every alert is there.
EVERYTHING = config_from(
    {
        "objectives": {
            "chat": {
                "window": "30d",
                "availability": 0.999,
                "ttft": {"ratio": 0.95, "within": "500ms"},
                "tpot": {"ratio": 0.95, "within": "50ms"},
            }
        },
        "targets": [
            {
                "name": "measured",
                "base_url": "http://a:8000",
                "objectives": "chat",
                "canary": {"every": "15s"},
                "capacity": {"mode": "verify"},
                "gpu": {"dcgm_urls": ["http://node:9400/metrics"], "labels": {"pod": "a"}},
            },
            {"name": "passive", "base_url": "http://b:8000", "passive": True},
        ],
    },
    "test",
)


@pytest.fixture(scope="module")
def file(deploy: Path) -> Path:
    return deploy / "examples/alertmanager.yml"


@pytest.fixture(scope="module")
def config(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


@pytest.fixture(scope="module")
def severities() -> dict[str, set[str]]:
    """Return the severities of each alert."""
    (text,) = render().values()
    found: dict[str, set[str]] = {}
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                found.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    return found


def matching(matchers: list[str], severities: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Return the alerts and severities that these matchers match."""
    found = {(name, severity) for name, all_of_it in severities.items() for severity in all_of_it}
    for matcher in matchers:
        label, sign, value = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        if label not in _LABELS:
            continue
        at = _LABELS.index(label)
        pattern = value if sign == "=~" else re.escape(value)
        found = {pair for pair in found if bool(re.fullmatch(pattern, pair[at])) is (sign != "!=")}
    return found


@pytest.mark.prometheus
def test_amtool_accepts_it(amtool: str, file: Path) -> None:
    done = subprocess.run([amtool, "check-config", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["severity=page", "alertname=KneewatchTTFTBurn"], "page"),
        (["severity=ticket", "alertname=KneewatchTTFTBurn"], "ticket"),
        (["severity=none", "alertname=KneewatchTargetDown"], "none"),
        (["severity=page", "alertname=KneewatchTargetDown"], "page"),
        (["severity=page", "alertname=KneewatchKneeDropped"], "page"),
        (["severity=ticket", "alertname=KneewatchKneeDropped"], "ticket"),
        (["severity=page", "alertname=KneewatchProbeGone"], "page"),
        (["severity=ticket", "alertname=KneewatchClientBound"], "ticket"),
        (["alertname=SomebodyElses"], "ticket"),
    ],
)
def test_each_severity_has_its_receiver(amtool: str, file: Path, labels: list[str], receiver: str) -> None:
    command = [amtool, "config", "routes", "test", f"--config.file={file}", *labels, "target=x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, receiver), done.stderr


def test_every_severity_of_our_rules_is_routed(config: dict[str, Any], severities: dict[str, set[str]]) -> None:
    assert set().union(*severities.values()) == {receiver["name"] for receiver in config["receivers"]}


def test_every_rule_has_something_to_silence(config: dict[str, Any], severities: dict[str, set[str]]) -> None:
    for rule in config["inhibit_rules"]:
        assert matching(rule["source_matchers"], severities), rule
        assert matching(rule["target_matchers"], severities), rule
        assert "target" in rule["equal"], "one target's trouble is no news of another"


def test_a_discovery_without_a_kneewatch_silences_its_own_alerts_alone(file: Path) -> None:
    """Its alerts have no target, like KneewatchShardsMismatch, which must notify all the same."""
    fires = [
        Firing({"alertname": f"Kneewatch{name}", "severity": severity, **labels}, 0.0, 600.0)
        for name, severity, labels in (
            ("ProbeGone", "page", {"discovery": "pods"}),
            ("NothingFound", "ticket", {"discovery": "pods"}),
            ("NothingFound", "ticket", {"discovery": "others"}),
            ("ShardsMismatch", "ticket", {"job": "kneewatch"}),
            ("TTFTBurn", "page", {"target": "pods"}),
        )
    ]
    reported = inhibit.sent(fires, inhibit.inhibitions(file.read_text()))
    assert [firing for firing in fires if firing not in reported] == [fires[1]]


def test_a_burning_budget_inhibits_no_other_objective(config: dict[str, Any], severities: dict[str, set[str]]) -> None:
    """It may burn because one canary in fifty fails, and the first token may take two seconds on the same day."""
    for rule in config["inhibit_rules"]:
        if "alertname" not in rule["equal"]:
            sources = {name for name, _ in matching(rule["source_matchers"], severities)}
            assert not {name for name in sources if name.endswith("Burn")}, rule


def test_every_inhibition_stays_in_its_cluster(config: dict[str, Any]) -> None:
    for rule in config["inhibit_rules"]:
        assert "cluster" in rule["equal"] or 'alertname="KneewatchProbeGone"' in rule["source_matchers"], rule


def test_no_ticket_silences_a_page(config: dict[str, Any], severities: dict[str, set[str]]) -> None:
    for rule in config["inhibit_rules"]:
        sources = {severity for _, severity in matching(rule["source_matchers"], severities)}
        targets = {severity for _, severity in matching(rule["target_matchers"], severities)}
        assert "ticket" not in sources or targets == {"ticket"}, rule
        assert sources != {"none"} or rule["source_matchers"] == [
            'alertname="KneewatchTargetDown"',
            'severity="none"',
        ]


def test_alerts_never_silence_each_other(config: dict[str, Any], severities: dict[str, set[str]]) -> None:
    """A circle would leave nobody to tell; graphlib raises CycleError."""
    order: TopologicalSorter[tuple[str, str]] = TopologicalSorter()
    for rule in config["inhibit_rules"]:
        same_alert = "alertname" in rule["equal"]
        sources = matching(rule["source_matchers"], severities)
        for target in matching(rule["target_matchers"], severities):
            order.add(target, *(source for source in sources if not same_alert or source[0] == target[0]))
    assert list(order.static_order())


def test_alerts_that_name_a_cause_are_never_inhibited_by_an_outage(
    config: dict[str, Any], severities: dict[str, set[str]]
) -> None:
    silenced = {
        target
        for rule in config["inhibit_rules"]
        if 'alertname="KneewatchTargetDown"' in rule["source_matchers"]
        for target, _ in matching(rule["target_matchers"], severities)
    }
    assert "KneewatchTTFTCollapse" in silenced
    # Canaries may fail on their own while users wait or fail: a burning budget is never hidden.
    kept = "Burn|GPU|Stalled|Knee(Dropped|Down)|Headroom|Probe|Config"
    assert not {name for name in silenced if re.search(kept, name)}


def test_an_outage_of_two_hours_is_not_repeated_while_its_page_outlasts_it(config: dict[str, Any]) -> None:
    (text,) = render().values()
    (kept_s,) = {
        rule.keep_s
        for rule in rules_of(text)
        if rule.alert == "KneewatchAvailabilityBurn" and rule.labels["severity"] == "page"
    }
    (pages,) = [route for route in config["route"]["routes"] if route.get("matchers") == ['severity="page"']]
    assert seconds_of(pages["repeat_interval"]) > kept_s + 7200

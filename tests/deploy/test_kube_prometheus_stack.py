"""The values for kube-prometheus-stack: the routes and inhibitions of the example for Alertmanager, in the chart's."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

# As the chart has them, in the order in which Alertmanager tries and applies them.
CHARTS_ROUTE = {"receiver": "null", "matchers": ['alertname = "Watchdog"']}


@pytest.fixture(scope="module")
def example(deploy: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((deploy / "examples/alertmanager.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def config(deploy: Path) -> dict[str, Any]:
    values = yaml.safe_load((deploy / "examples/kube-prometheus-stack.yml").read_text())
    loaded: dict[str, Any] = values["alertmanager"]["config"]
    return loaded


def test_kneewatchs_alerts_are_grouped_as_in_the_example(config: dict[str, Any], example: dict[str, Any]) -> None:
    charts, ours = config["route"]["routes"]
    assert charts == CHARTS_ROUTE
    assert ours == {"matchers": ['alertname=~"Kneewatch.+"'], **example["route"]}


def test_no_inhibition_of_the_example_silences_another_teams_alert(example: dict[str, Any]) -> None:
    """It may have the same severities and names of alerts in two namespaces."""

    def named(matchers: list[str]) -> bool:
        return any("Kneewatch" in matcher and not matcher.startswith("alertname!=") for matcher in matchers)

    for rule in example["inhibit_rules"]:
        assert named(rule["source_matchers"]), rule
        assert named(rule["target_matchers"]) or "alertname" in rule["equal"], rule


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "KneewatchProbeGone", "severity": "page", "target": "a"}, "page"),
        ({"alertname": "KneewatchAvailabilityBurn", "severity": "page", "target": "pods/a"}, "page"),
        ({"alertname": "KneewatchHeadroomLow", "severity": "ticket", "target": "a"}, "ticket"),
        ({"alertname": "KneewatchTargetDown", "severity": "none", "target": "a"}, "none"),
        ({"alertname": "Watchdog", "severity": "none"}, "null"),
        ({"alertname": "AnotherTeams", "severity": "page"}, "null"),
    ],
)
def test_the_routes_lead_there(
    amtool: str, tmp_path: Path, config: dict[str, Any], labels: dict[str, str], receiver: str
) -> None:
    # The chart's defaults, which the values are merged into.
    root = {"receiver": "null", "group_by": ["namespace"], **config["route"]}
    file = tmp_path / "alertmanager.yml"
    file.write_text(yaml.safe_dump({**config, "route": root}))
    given = [f"{name}={value}" for name, value in labels.items()]
    command = [amtool, "config", "routes", "test", f"--config.file={file}", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == receiver

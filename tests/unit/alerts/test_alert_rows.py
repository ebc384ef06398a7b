"""Each alert's row: what it names exists, and what an alert needs beside its row is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build
from alerts.inhibitions import INHIBITIONS, ROUTES, Inhibition, Route
from alerts.links import CAPACITY
from alerts.rules import Alert
from dashboards.build import panels_of, render
from probe.config.config_file import load_config
from probe.prometheus.queries import KNEE_PAGE

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs/runbooks"
ALERTS = build.alerts()
_NAME = re.compile(r'alertname="(\w+)"')
HEADINGS = ["First five minutes", "Decide", "Call", "Meaning", "Causes", "When to ignore"]
FIRST = "1. Open the alert's `page_url`, and run its `command`."
_DECISIONS = re.compile(r"^- \*\*(Scale|Roll back|Shed|Restart|Drain|Wait)\*\* ", re.MULTILINE)
_WHEN = re.compile(r"^(At once|After 15 minutes|Within a working day|Before the next \w+)\b.*: ")


@pytest.fixture(scope="module")
def panels() -> set[tuple[str, str]]:
    """Return the uid of the dashboard and the title of each panel."""
    boards = [json.loads(text) for text in render(load_config(ROOT / "deploy/examples/kneewatch.yml")).values()]
    return {(board["uid"], panel["title"]) for board in boards for panel in panels_of(board)}


@pytest.fixture(scope="module")
def rule_tests() -> tuple[set[str], set[str]]:
    """Return the alerts that fire in a case of tests/rules, and those of its groups that do not."""
    groups = {f"{group.name}.yml": group.rules for group in build.groups()}
    fires, quiet = set(), set()
    for file in (ROOT / "tests/rules").glob("*.test.yml"):
        text = file.read_text()
        case: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
        judged = {one.name for name in case["rule_files"] for one in groups.get(name, ()) if isinstance(one, Alert)}
        for query in (query for test in case["tests"] for query in test.get("promql_expr_test", ())):
            samples = [_NAME.findall(one.get("labels", "")) for one in query["exp_samples"]]
            if "ALERTS{" not in query["expr"] or [] in samples:
                continue
            found, named = {name for names in samples for name in names}, _NAME.findall(query["expr"])
            fires |= found
            quiet |= (judged & set(named) if named else judged) - found
    return fires, quiet


@pytest.mark.parametrize("alert", ALERTS, ids=lambda one: f"{one.name}-{one.severity}")
def test_what_an_alert_names_and_needs_is_there(
    alert: Alert, panels: set[tuple[str, str]], rule_tests: tuple[set[str], set[str]]
) -> None:
    of_name = [one for one in ALERTS if one.name == alert.name]
    assert {(uid, title) for uid, titles in alert.panels.items() for title in titles} <= panels
    assert all(one in INHIBITIONS for one in alert.silenced_by)
    assert alert.route is None or alert.route in ROUTES
    assert bool(alert.finds or alert.follows) != bool(alert.unseen), "name a fault that it finds, or why none can"
    assert alert.means
    assert alert.summary != alert.description
    assert alert.severity in ({"none", "page"} if alert.name == "KneewatchTargetDown" else {"page", "ticket"})
    page = RUNBOOKS / f"{alert.name}.md"
    assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == HEADINGS
    parts = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=\n## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL))
    assert parts["First five minutes"].startswith(FIRST)
    assert _DECISIONS.match(parts["Decide"]), "begin with what to do about the load or the deploy, or wait"
    assert re.search(r"`kubectl .*(deploy|statefulset)/|\*\*Wait\*\*|`kubectl .*(pod|drain) |`helm ", parts["Decide"])
    assert _WHEN.match(parts["Call"]), "say after how long whom to call"
    for cases in rule_tests:
        assert alert.name in cases, "tests/rules lacks a case in which it fires, or one in which it does not"
    for column in ("means", "panels", "silenced_by", "route", "finds", "follows", "unseen", "command"):
        assert all(getattr(one, column) == getattr(alert, column) for one in of_name), column


def test_every_runbook_belongs_to_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("row", [*INHIBITIONS, *ROUTES], ids=lambda row: row.why[:40])
def test_what_alertmanager_is_told_names_alerts_that_there_are(row: Inhibition | Route) -> None:
    source, other = (row.source, row.target) if isinstance(row, Inhibition) else ((), row.matchers)
    texts = " ".join((row.why, *source, *other))
    assert set(re.findall(r"Kneewatch[A-Z]\w+", texts)) <= {alert.name for alert in ALERTS}
    assert other or any(row in (*alert.silenced_by, alert.route) for alert in ALERTS), "it concerns no alert"


def test_only_pages_on_the_capacity_do_not_keep_it_from_being_measured() -> None:
    pages = {alert.name for alert in ALERTS if alert.severity == "page" and alert.dashboard == CAPACITY}
    assert pages == {KNEE_PAGE}

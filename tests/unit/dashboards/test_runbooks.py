"""What runbooks refer to exists: panels, by the dashboard that is named beside them, and alerts."""

import json
import re
from pathlib import Path

import pytest

from alerts.build import FILE
from alerts.build import render as rules
from dashboards.build import panels_of, render
from probe.config.config_file import load_config

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))
CONFIG = load_config(ROOT / "deploy/examples/kneewatch.yml")
DISCOVERY = load_config(ROOT / "tests/rules/config-discovery.yml")
TITLES = {panel["title"] for text in render(CONFIG).values() for panel in panels_of(json.loads(text))}
DASHBOARDS = {
    one["title"]: {panel["title"] for panel in panels_of(one)} for one in map(json.loads, render(CONFIG).values())
}
ALERTS = set(re.findall(r"alert: (\w+)", rules()[FILE]))
# Quoted titles after "panel", "panels" or a dashboard's name.
_NAMED = re.compile(r'(?:\b[Pp]anels? |\*Kneewatch / \w+\*[,:] )((?:"[^"]+"(?:, | and )?)+)')
# A dashboard, and the quoted titles that follow it.
_ON = re.compile(r'\*(Kneewatch / \w+)\*[,:] ((?:"[^"]+"(?:, | and )?)+)')


def _text(page: Path) -> str:
    return " ".join(page.read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_panels_and_dashboards_that_a_runbook_names_exist(page: Path) -> None:
    text = _text(page)
    panels = {title for quoted in _NAMED.findall(text) for title in re.findall(r'"([^"]+)"', quoted)}
    assert panels <= TITLES
    assert set(re.findall(r"\*(Kneewatch / \w+)\*", text)) <= set(DASHBOARDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_panels_named_beside_a_dashboard_are_on_it(page: Path) -> None:
    for dashboard, quoted in _ON.findall(_text(page)):
        assert set(re.findall(r'"([^"]+)"', quoted)) <= DASHBOARDS[dashboard]


def test_the_runbooks_name_panels() -> None:
    """Else the test above would look for nothing."""
    assert sum(len(_NAMED.findall(_text(page))) for page in PAGES) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_runbook_is_of_an_alert_and_names_no_other_than_existing_ones(page: Path) -> None:
    assert page.stem in ALERTS
    assert set(re.findall(r"\bKneewatch[A-Z]\w+", page.read_text())) <= ALERTS

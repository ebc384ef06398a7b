"""README and the pages on deployment: every command and alert in them exists. Links: tests/unit/docs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import checks
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    *("deploy/README.md", "deploy/compose/README.md", "deploy/helm/kneewatch/README.md"),
    *("docs/operations.md", "docs/security.md", "docs/integrations.md"),
]


def commands(text: str) -> Iterator[list[str]]:
    """Return the kneewatch commands that have lines of their own, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("kneewatch "):
            yield shlex.split(line.partition(" | ")[0], comments=True)[1:]


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_one(name: str) -> None:
    for command in commands((ROOT / name).read_text()):
        assert checks.accepted(command)["command"] == command[0]


def test_there_are_commands_to_check() -> None:
    assert len([command for name in PAGES for command in commands((ROOT / name).read_text())]) >= 2


@pytest.mark.parametrize("name", PAGES)
def test_every_alert_and_file_that_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    for alert in set(re.findall(r"\bKneewatch[A-Z]\w+", text)):
        assert (ROOT / "docs/runbooks" / f"{alert}.md").exists(), alert
    for path in set(re.findall(r"deploy/(?:kustomize|helm)/[\w/.-]*\w", text)):
        assert (ROOT / path).exists(), path

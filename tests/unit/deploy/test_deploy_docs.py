"""The pages on deployment: every link leads somewhere, and every command and alert in them exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import deployed
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["deploy/README.md", "docs/operations.md", "docs/security.md", "docs/autoscaling.md"]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Those of kneewatch that stand on lines of their own, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("kneewatch "):
            yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not link.startswith("http")]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_one(name: str) -> None:
    for command in commands((ROOT / name).read_text()):
        assert deployed.accepted(command)["command"] == command[0]


def test_there_are_commands_to_check() -> None:
    assert len([command for name in PAGES for command in commands((ROOT / name).read_text())]) >= 2


@pytest.mark.parametrize("name", PAGES)
def test_every_alert_and_file_that_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    for alert in set(re.findall(r"\bKneewatch[A-Z]\w+", text)):
        assert (ROOT / "docs/runbooks" / f"{alert}.md").exists(), alert
    for path in set(re.findall(r"deploy/kustomize/[\w/.-]*\w", text)):
        assert (ROOT / path).exists(), path

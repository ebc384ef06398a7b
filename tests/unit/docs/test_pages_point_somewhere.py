"""Every path and link that a page of documentation names leads to something that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
PACKAGES = ("probe", "exporters", "alerts", "dashboards", "benchmarks", "tests")
SOURCES = [str(file.relative_to(ROOT)) for folder in PACKAGES for file in (ROOT / folder).rglob("*.py")]
# A path from the top of the repository, or from a page; `*` stands for several.
PATH = re.compile(rf"(?<![\w/.-])(?:\.\./)*((?:{'|'.join(PACKAGES)}|docs)/[\w./*-]*[\w*/])")
# A file named without its folder, or with a part of it. Those of vLLM begin with `v1/`.
FILE = re.compile(r"`(?!v1/)([\w/]+\.py)`")
# A module, or a name in one; `dashboards.enabled=true` sets a value of the chart.
MODULE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w=])")


def is_there(dotted: str) -> bool:
    """Return whether a module has this name, or a module has this name in it."""
    module, _, name = dotted.rpartition(".")
    file = ROOT / f"{module.replace('.', '/')}.py"
    return any(ROOT.glob(dotted.replace(".", "/") + "*")) or (file.exists() and name in file.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_paths(text: str) -> list[str]:
    return [path for path in PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))]


def test_each_page_begins_with_what_its_reader_can_do_after_it() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert len(pages) > 20
    assert [page.name for page in pages if not page.read_text().splitlines()[2].startswith("After this page ")] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_path_exists(name: str) -> None:
    assert missing_paths((ROOT / name).read_text()) == []


def test_a_path_that_has_moved_is_noticed() -> None:
    assert missing_paths("see `probe/app.py`, probe/core/ and ../probe/monitor/app.py") == ["probe/app.py"]


@pytest.mark.parametrize("name", PAGES)
def test_every_python_file_exists(name: str) -> None:
    ends = FILE.findall((ROOT / name).read_text())
    assert [end for end in ends if not any(f"/{file}".endswith(f"/{end}") for file in SOURCES)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_module_exists(name: str) -> None:
    named = MODULE.findall((ROOT / name).read_text())
    assert [each for each in named if not each.endswith((".md", ".py")) and not is_there(each)] == []


@pytest.mark.parametrize("name", [*PAGES, "deploy/compose/README.md", "deploy/helm/kneewatch/README.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link

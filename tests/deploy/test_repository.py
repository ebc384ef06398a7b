"""One repository: every file that names the project's address on GitHub names that of pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"(?:github\\?\.com|raw\.githubusercontent\.com|ghcr\.io)/([A-Za-z0-9_-]+/kneewatch)\b")
FOLDERS = (".github", "alerts", "benchmarks", "dashboards", "deploy", "docs", "exporters", "kneewatch", "probe")
TEXT = {".py", ".md", ".yml", ".yaml", ".toml", ".json", ".libsonnet", ".tpl", ""}


def test_every_address_of_the_project_is_that_of_its_metadata() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    owner = urls["Source"].removeprefix("https://github.com/")
    files = [*ROOT.glob("*.*"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]
    found = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        if file.is_file() and file.suffix in TEXT
        for name in ADDRESS.findall(file.read_text(errors="replace"))
    }
    assert len(found) > 10
    assert {(file, name) for file, name in found if name != owner} == set()

"""The table of values in the chart's README, from values.yaml, its comments and values.schema.json: `make generate`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "deploy/helm/kneewatch"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: (?P<value>.*?))?(?:\s+#\s+(?P<comment>.*))?$")
_TABLE = re.compile(r"^\| value \|.*\n(\|.*\n)*", re.MULTILINE)
_HEAD = "| value | type | default | meaning |\n|---|---|---|---|\n"
# What is in them is described elsewhere: in docs/configuration.md, and by Kubernetes.
_WHOLE = {"config", "podSecurityContext", "resources", "securityContext"}


def comments(text: str) -> dict[str, str]:
    """Return the comment of each value by its path: the lines above it, or the end of its line."""
    found: dict[str, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip().removeprefix("#").strip())
            continue
        if key := _KEY.match(line):
            path = [*path[: len(key["indent"]) // 2], key["key"]]
            found[".".join(path)] = " ".join(above) or key["comment"] or ""
        above = []
    return found


def rows(
    values: dict[str, Any], schema: dict[str, Any], words: dict[str, str], prefix: str = ""
) -> Iterator[list[str]]:
    """Yield a row for each value: its path, type, default and meaning."""
    for name, value in values.items():
        path, part = f"{prefix}{name}", schema["properties"][name]
        is_section = isinstance(value, dict) and bool(value) and "properties" in part and name not in _WHOLE
        default = "" if is_section or path == "config" else f"`{json.dumps(value)}`"
        yield [f"`{path}`", _type(part), default, words.get(path) or part.get("description", "")]
        if is_section:
            yield from rows(value, part, words, f"{path}.")


def _type(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    names = {
        "boolean": "`true` or `false`",
        "integer": "whole number",
        "number": "number",
        "array": "list",
        "object": "mapping",
        "string": "text",
    }
    return names[part["type"]]


def readme(text: str, chart: Path = CHART) -> str:
    """Return the README with its table written from the values of the chart in this folder."""
    values = (chart / "values.yaml").read_text()
    schema = json.loads((chart / "values.schema.json").read_text())
    cells = rows(yaml.safe_load(values), schema, comments(values))
    lines = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    return _TABLE.sub(lambda _: _HEAD + lines, text, count=1)


def main() -> None:
    """Write the table to the chart's README."""
    file = CHART / "README.md"
    file.write_text(readme(file.read_text()))


if __name__ == "__main__":
    main()

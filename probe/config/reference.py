"""The JSON Schema of the configuration, for editors, and the tables of docs/configuration.md, made from it.

`python -m probe.config.reference FILE` writes the tables.

A table has the keys below the path in its heading, unless a longer heading has them.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.config.config import Config
from probe.config.schema import arms, documented_schema, resolved_schema, type_words

_HEADING = re.compile(r"^## (?:`(?P<path>[^`]+)`|Top level)$", re.MULTILINE)
_TABLE = re.compile(r"^\| key \|.*\n(\|.*\n)+", re.MULTILINE)
# Sections with the keys of another one, and no table of their own.
_ELSEWHERE = ("metrics_discovery",)
_HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"
_ID = "https://github.com/kneewatch/kneewatch/kneewatch.schema.json"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its path, and its part of the schema."""

    path: str
    part: dict[str, Any]
    is_required: bool

    @property
    def type(self) -> str:
        """Return the type of the value, as words."""
        return type_words(self.part)

    @property
    def default(self) -> str:
        """Return the default as the file has it; `none` without one; empty for a section that is always there."""
        value = self.part.get("default")
        if self.is_required:
            return "required"
        if isinstance(value, dict) and value:
            return ""
        if value is None:
            return "none"
        if isinstance(value, str):
            return f"`{value}`" if value else '`""`'
        return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`"


def keys() -> Iterator[Key]:
    """Yield every key of the configuration, each section before its keys."""
    yield from _keys([("", resolved_schema(Config))], "")


def json_schema() -> dict[str, Any]:
    """Return the schema with its dialect and `$id`, and without links."""
    schema: dict[str, Any] = _without_links(documented_schema(Config))
    return {"$schema": schema["$schema"], "$id": _ID, **schema}


def _without_links(part: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, dict):
        return {
            key: " ".join(_LINK.sub(r"\1", value).split())
            if key == "description" and isinstance(value, str)
            else _without_links(value)
            for key, value in part.items()
        }
    return [_without_links(item) for item in part] if isinstance(part, list) else part


def page(text: str) -> str:
    """Return the page with its tables written from the schema. Raises ValueError for a heading without a table."""
    headings = list(_HEADING.finditer(text))
    paths = sorted((found["path"] or "" for found in headings), key=len, reverse=True)
    rows: dict[str, list[str]] = {path: [] for path in paths}
    for key in keys():
        path = next(path for path in paths if key.path.startswith(f"{path}." if path else ""))
        name = key.path.removeprefix(f"{path}.")
        meaning = " ".join(key.part["description"].split())
        rows[path].append(
            " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", key.type, key.default, meaning))
        )
    for found in reversed(headings):
        table = _TABLE.search(text, found.end())
        if table is None:
            raise ValueError(f"{found[0]}: no table below it")
        lines = "".join(f"| {row} |\n" for row in rows[found["path"] or ""])
        text = f"{text[: table.start()]}{_HEAD}{lines}{text[table.end() :]}"
    return text


def _keys(sections: list[tuple[str, dict[str, Any]]], prefix: str) -> Iterator[Key]:
    """Yield the keys of the sections that one place may hold. A key is required if all of them require it."""
    required = set.intersection(*(set(section.get("required", ())) for _, section in sections)) if sections else set()
    known: set[str] = set()
    for step, section in sections:
        for name, part in section["properties"].items():
            path = f"{prefix}{step}.{name}".removeprefix(".")
            if path not in known:
                known.add(path)
                yield Key(path, part, name in required)
                if name not in _ELSEWHERE:
                    yield from _keys(list(_sections(part)), path)


def _sections(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sections that a value may be or hold, each with the step to it: none, of a list, or by name."""
    for arm in arms(part):
        if "properties" in arm:
            yield "", arm
        for step, inner in (("[]", arm.get("items")), (".NAME", arm.get("additionalProperties"))):
            if isinstance(inner, dict):
                yield from ((step + deeper, section) for deeper, section in _sections(inner))


def main() -> None:
    """Write the tables of the file that is named."""
    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))


if __name__ == "__main__":
    main()

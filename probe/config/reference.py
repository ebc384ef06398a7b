"""The tables of docs/configuration.md, from the schema: `python -m probe.config.reference FILE` writes them there.

A table has the keys below the path in its heading, except those of a longer heading.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.config.schema import documented_schema

_HEADING = re.compile(r"^## (?:`(?P<path>[^`]+)`|Top level)$", re.MULTILINE)
_TABLE = re.compile(r"^\| key \|.*\n(\|.*\n)+", re.MULTILINE)
# Sections with the keys of another one, whose table has them.
_ELSEWHERE = ("metrics_discovery",)
_HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"

_PLURAL = re.compile("^[a-zA-Z ]+?(?= from | above | of |$)")
_WORDS = {"boolean": "`true` or `false`", "integer": "whole number", "string": "text", "password": "secret"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its path, and what the schema has of it."""

    path: str
    part: dict[str, Any]
    is_required: bool

    @property
    def type(self) -> str:
        """The type of the value, as words."""
        return _type(self.part)

    @property
    def default(self) -> str:
        """The default as it is written in the file; `none` without one; empty for a section that is always there."""
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
    """Yield every key of the configuration, sections before what is in them."""
    schema = documented_schema()
    yield from _keys([("", _resolved(schema, schema["$defs"]))], "")


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


def _resolved(part: Any, models: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return the part with the models that it refers to in it."""
    if isinstance(part, list):
        return [_resolved(item, models) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {name: _resolved(value, models) for name, value in part.items() if name not in {"$ref", "$defs"}}
    return {**_resolved(models[part["$ref"].rpartition("/")[2]], models), **inner} if "$ref" in part else inner


def _keys(sections: list[tuple[str, dict[str, Any]]], prefix: str) -> Iterator[Key]:
    """Yield the keys of the sections that may stand at one place. Required are those that each of them requires."""
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
    for arm in _arms(part):
        if "properties" in arm:
            yield "", arm
        for step, inner in (("[]", arm.get("items")), (".NAME", arm.get("additionalProperties"))):
            if isinstance(inner, dict):
                yield from ((step + deeper, section) for deeper, section in _sections(inner))


def _arms(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a value may be, without null."""
    if "title" not in part and ("anyOf" in part or "oneOf" in part):
        for arm in part.get("anyOf") or part["oneOf"]:
            yield from _arms(arm)
    elif part.get("type") != "null":
        yield part


def _plural(noun: re.Match[str]) -> str:
    return f"{noun[0]}{'es' if noun[0].endswith('s') else 's'}"


def _type(part: dict[str, Any]) -> str:
    return _either(dict.fromkeys(_type_of_arm(arm) for arm in _arms(part)))


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _type_of_arm(part: dict[str, Any]) -> str:
    kind = part.get("format") or part.get("type")
    if "properties" in part:
        return "section"
    if "enum" in part or "const" in part:
        return _either(f"`{value}`" for value in part.get("enum") or [part["const"]])
    if "title" in part:
        return str(part["title"])
    if kind == "array":
        return f"list of {_PLURAL.sub(_plural, _type(part['items']))}"
    if kind == "object":
        return (
            f"mapping of name to {_type(inner)}"
            if (inner := part["additionalProperties"]) not in ({}, True)
            else "mapping"
        )
    return f"{_WORDS.get(str(kind), kind)}{_limits(part)}"


def _limits(part: dict[str, Any]) -> str:
    """Return the limits of a number or a text, as words."""
    least, above, most = part.get("minimum"), part.get("exclusiveMinimum"), part.get("maximum")
    if "maxLength" in part:
        return f" of at most {part['maxLength']} characters"
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if above is not None:
        return f" above {above:g}" + ("" if most is None else f", at most {most:g}")
    return "" if least is None else f" of at least {least:g}"


def main() -> None:
    """Write the tables of the file that is named."""
    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))


if __name__ == "__main__":
    main()

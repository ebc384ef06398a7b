"""A model's JSON Schema, and the types and limits in it as words. Pure.

The tables of docs/configuration.md (reference.py) and the messages for wrong values (messages.py) use the same words.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

_PLURAL = re.compile("^[a-zA-Z ]+?(?= from | above | of |$)")
_WORDS = {
    "array": "list", "boolean": "`true` or `false`", "integer": "whole number", "object": "mapping",
    "password": "secret", "string": "text",
}  # fmt: skip


class _Generator(GenerateJsonSchema):
    """Gives a key no title of its own: `title` is the name of a value's type, such as duration."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False


def documented_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema, with its dialect. Links in its descriptions point to docs/."""
    return {"$schema": _Generator.schema_dialect, **model.model_json_schema(schema_generator=_Generator)}


@cache
def resolved_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema with every section where it is used, instead of a reference to it."""
    schema = documented_schema(model)
    whole: dict[str, Any] = _resolved(schema, schema.get("$defs", {}))
    return whole


def _resolved(part: Any, models: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_resolved(item, models) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {name: _resolved(value, models) for name, value in part.items() if name not in {"$ref", "$defs"}}
    return {**_resolved(models[part["$ref"].rpartition("/")[2]], models), **inner} if "$ref" in part else inner


def arms(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a value may be, without null."""
    if "title" not in part and ("anyOf" in part or "oneOf" in part):
        for arm in part.get("anyOf") or part["oneOf"]:
            yield from arms(arm)
    elif part.get("type") != "null":
        yield part


def arms_at(schema: dict[str, Any], path: Sequence[str | int]) -> list[dict[str, Any]]:
    """Return what the value at a path of keys and indexes may be; nothing for an unknown path."""
    places = list(arms(schema))
    for step in path:
        inner = [part for place in places for part in _inside(place, step) if isinstance(part, dict)]
        places = [arm for part in inner for arm in arms(part)]
    return places


def _inside(part: dict[str, Any], step: str | int) -> Iterator[object]:
    if isinstance(step, int):
        yield part.get("items")
    elif step in part.get("properties", {}):
        yield part["properties"][step]
    else:
        yield part.get("additionalProperties")


def type_words(part: dict[str, Any]) -> str:
    """Return the type of a value as words, such as `whole number from 1 to 64`."""
    return either(dict.fromkeys(_type_of_arm(arm) for arm in arms(part)))


def number_words(part: dict[str, Any]) -> str:
    """Return which numbers a value may be, such as `whole number from 1 to 64`."""
    return f"{_WORDS.get(part['type'], part['type'])}{limits(part)}"


def limits(part: dict[str, Any]) -> str:
    """Return the limits of a number or a text, as words."""
    least, above, most, below = (
        None if part.get(name) is None else f"{part[name]:.15g}"
        for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    )
    if "maxLength" in part:
        return f" of {part['minLength']} to {part['maxLength']} characters"
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if above is not None:
        return f" above {above}" + (f", at most {most}" if most else f" and below {below}" if below else "")
    return "" if least is None else f" of at least {least}"


def either(words: Iterable[str]) -> str:
    """Return the words as a list with `or`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _type_of_arm(part: dict[str, Any]) -> str:
    kind = str(part.get("format") or part.get("type"))
    if "properties" in part:
        return "section"
    if "enum" in part or "const" in part:
        return either(f"`{value}`" for value in part.get("enum") or [part["const"]])
    if "title" in part:
        return str(part["title"])
    if kind == "array":
        return f"list of {_PLURAL.sub(_plural, type_words(part['items']))}"
    if kind == "object" and (inner := part["additionalProperties"]) not in ({}, True):
        return f"mapping of name to {type_words(inner)}"
    return f"{_WORDS.get(kind, kind)}{limits(part)}"


def _plural(noun: re.Match[str]) -> str:
    return f"{noun[0]}{'es' if noun[0].endswith('s') else 's'}"

"""pydantic's errors as messages about the file: key path, expectation and fix. Pure."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from probe.config.schema import arms_at, limits, number_words, resolved_schema

# Where pydantic's kinds of errors need no more than a word.
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a mapping",
    "path_type": "a path",
}
_OF_NUMBERS = ("int_", "float_", "greater_than", "less_than")
_OF_LENGTHS = ("string_too_short", "string_too_long")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a value: its path, and words that say what was expected or how to fix it."""

    path: tuple[str | int, ...]
    words: str
    written: str | None
    """The value as it may be shown; None where it says nothing."""

    def __str__(self) -> str:
        got = "" if self.written is None else f", got {self.written}"
        return f"{dotted(self.path) or 'the file'}: {self.words}{got}"


def value_problems(error: ValidationError, raw: object, model: type[BaseModel]) -> list[Problem]:
    """Return each problem once. Values are as they are written in `raw`."""
    schema = resolved_schema(model)
    found = []
    for item in error.errors(include_url=False):
        path = _real_path(item["loc"], raw)
        # pydantic repeats an error of a list's entry for the list, and one of a key for a default made from it.
        if (item["type"] == "too_short" and value_at(path, raw)) or item["type"] == "default_factory_not_called":
            continue
        found.append(_problem(dict(item), path, raw, schema))
    return list(dict.fromkeys(found))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return ` (did you mean 'x'?)`, or "" if no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(path: Sequence[str | int], raw: object) -> str:
    """Return the value as written in the file, before environment variables, and without possible secrets."""
    if any(("key" in str(part) and "file" not in str(part)) or part in ("proxy", "headers") for part in path):
        return "(hidden)"
    value = value_at(path, raw)
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    if "@" in text or (path[-1] == "proxy_auth_file" and ":" in text):  # credentials, which belong in the file
        return "(hidden)"
    for end in ("?", "#") if "://" in text else ("?",):  # what follows may contain a token
        text = f"{text.partition(end)[0]}{end}...'" if end in text else text
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line stays readable


def _problem(item: dict[str, Any], path: Sequence[str | int], raw: object, schema: dict[str, Any]) -> Problem:
    kind, context, written = item["type"], item.get("ctx") or {}, None
    if kind == "extra_forbidden":
        known = sorted({key for arm in arms_at(schema, path[:-1]) for key in arm.get("properties", ())})
        words = f"unknown key{did_you_mean(str(path[-1]), known)}; expected one of {', '.join(known)}"
    elif kind == "missing":
        words = "is missing; add it"
    elif kind == "too_short":
        words = "expected at least one entry"
    else:
        # Validators say what they expect; the value is added here, as written.
        words = str(context["error"]).partition(", got ")[0] if kind == "value_error" else ""
        words = words or _expectation(kind, context, item["msg"], arms_at(schema, path))
        written = repr(path[-1]) if item["loc"][-1] == "[key]" else shown(path, raw)
    return Problem(tuple(path), words, written)


def _expectation(kind: str, context: dict[str, Any], otherwise: str, arms: Sequence[dict[str, Any]]) -> str:
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}"
    if kind == "too_long":
        return f"expected at most {context['max_length']} entries"
    if kind.startswith(_OF_NUMBERS):
        for arm in arms:
            if arm.get("type") in ("integer", "number"):
                return f"expected a {number_words(arm)}"
    if kind in _OF_LENGTHS:
        return f"expected text{limits(arms[0])}"
    return f"expected {_EXPECTED[kind]}" if kind in _EXPECTED else otherwise


def value_at(path: Sequence[str | int], raw: object) -> object:
    """Return the value at a path of keys and indexes, or None."""
    for part in path:
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _real_path(loc: Sequence[str | int], raw: object) -> list[str | int]:
    """Return the location without the names that pydantic adds for arms of a union and for keys."""
    path: list[str | int] = []
    for part in loc:
        if (isinstance(raw, dict) and part in raw) or (isinstance(raw, list | tuple) and isinstance(part, int)):
            raw = raw[part]  # type: ignore[index]
        elif part == loc[-1] and isinstance(raw, dict) and part != "[key]":
            return [*path, part]  # a missing key
        else:
            continue
        path.append(part)
    return path


def dotted(path: Sequence[str | int]) -> str:
    """Return a path of keys and indexes as it is written in messages, such as targets[0].name."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text

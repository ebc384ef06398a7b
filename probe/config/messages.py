"""pydantic's errors as messages about the file: key path, expectation and fix. Pure."""

import difflib
import typing
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

_EXPECTED = {
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "string_too_short": "expected text of at least one character",
    "dict_type": "expected a mapping",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "model_type": "expected a mapping",
    "path_type": "expected a path",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def describe(error: ValidationError, raw: object, model: type[BaseModel]) -> list[str]:
    """Return one line per problem: `key.path: what is wrong; the fix`. Values are shown as written in `raw`."""
    lines = []
    for item in error.errors(include_url=False):
        path = _real_path(item["loc"], raw)
        if item["type"] == "too_short" and _at(path, raw):
            continue  # pydantic repeats an error of a list entry as one of the list
        line = f"{dotted(path) or 'the file'}: {_sentence(dict(item), path, raw, model)}"
        if line not in lines:
            lines.append(line)
    return lines


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return ` (did you mean 'x'?)`, or "" if no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(path: Sequence[str | int], raw: object) -> str:
    """Return the value as written in the file, before environment variables, and without possible secrets."""
    if any(("key" in str(part) and "file" not in str(part)) or part in ("proxy", "headers") for part in path):
        return "(hidden)"
    value = _at(path, raw)
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    if "@" in text or (path[-1] == "proxy_auth_file" and ":" in text):  # credentials, which belong in the file
        return "(hidden)"
    text = text.partition("?")[0] + "?...'" if "?" in text else text  # a query may contain a token
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line stays readable


def _sentence(item: dict[str, typing.Any], path: Sequence[str | int], raw: object, model: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx") or {}
    if kind == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        return f"unknown key{did_you_mean(str(path[-1]), known)}; expected one of {', '.join(known)}"
    if kind == "missing":
        return "is missing; add it"
    if kind == "too_short":
        return "expected at least one entry"
    # Validators say what they expect; the value is added here, as written.
    words = str(context["error"]).partition(", got ")[0] if kind == "value_error" else None
    words = words or _expectation(kind, context, item["msg"])
    of_a_key = item["loc"][-1] == "[key]"
    return f"{words}, got {repr(path[-1]) if of_a_key else shown(path, raw)}"


def _expectation(kind: str, context: dict[str, typing.Any], otherwise: str) -> str:
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        return f"expected a number {word} {context[key]:.15g}"
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}"
    return _EXPECTED.get(kind, otherwise)


def _at(path: Sequence[str | int], raw: object) -> object:
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
        if (isinstance(raw, dict) and part in raw) or (isinstance(raw, list) and isinstance(part, int)):
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


def _keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys that the schema allows at `path`, in any arm of a union."""
    places: list[object] = [model]
    for part in path:
        places = [inner for place in places for inner in _inside(place, part)]
    return sorted({name for place in places for m in _models(place) for name in m.model_fields})


def _inside(annotation: object, part: str | int) -> list[object]:
    """Return the types that a key or an index of this type may have."""
    found: list[object] = []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return [field.annotation] if field else []
    if typing.get_origin(annotation) in (dict, tuple, list):
        return [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    for argument in typing.get_args(annotation):
        found += _inside(argument, part)
    return found


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _models(argument)]

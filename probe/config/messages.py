"""pydantic's errors in the words of the person who wrote the file: key path, expectation, mend. Pure."""

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
    """One line a problem: `key.path: what is wrong; the mend`. Values show as written in `raw`."""
    lines = []
    for item in error.errors(include_url=False):
        path = _real_path(item["loc"], raw)
        if item["type"] == "too_short" and _at(path, raw):
            continue  # pydantic's echo of an error in one of the list's entries
        line = f"{_dotted(path) or 'the file'}: {_sentence(dict(item), path, raw, model)}"
        if line not in lines:
            lines.append(line)
    return lines


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(path: Sequence[str | int], raw: object) -> str:
    """The value as the file has it, never as the environment filled it in; without what may be a secret."""
    if any(("key" in str(part) and "file" not in str(part)) or part == "proxy" for part in path):
        return "(hidden)"
    value = _at(path, raw)
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    if "@" in text or (path[-1] == "proxy_auth_file" and ":" in text):  # what belongs into the file
        return "(hidden)"
    text = text.partition("?")[0] + "?...'" if "?" in text else text  # a token, perhaps
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
    # A validator of ours says what it expects; what it got is said here, as written.
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
    """The location without the names pydantic adds for the arms of a union and for keys."""
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


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys the schema allows at `path`, the arms of a union together."""
    places: list[object] = [model]
    for part in path:
        places = [inner for place in places for inner in _inside(place, part)]
    return sorted({name for place in places for m in _models(place) for name in m.model_fields})


def _inside(annotation: object, part: str | int) -> list[object]:
    """What a key or an index of something of this type may hold."""
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

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


def _sentence(item: dict[str, typing.Any], path: Sequence[str | int], raw: object, model: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx") or {}
    if kind == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        return f"unknown key{did_you_mean(str(path[-1]), known)}; expected one of {', '.join(known)}"
    if kind == "missing":
        return "is missing; add it"
    if kind == "too_short":
        return "expected at least one entry"
    if kind == "value_error":
        # A validator of ours says it all, but quotes the value after ${NAME} was replaced.
        words = str(context["error"])
        return words if "${" not in _shown(path, raw) else f"{words.partition(', got ')[0]}, got {_shown(path, raw)}"
    return f"{_expectation(kind, context, item['msg'])}, got {_shown(path, raw)}"


def _expectation(kind: str, context: dict[str, typing.Any], otherwise: str) -> str:
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        return f"expected a number {word} {context[key]:g}"
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}"
    if kind == "string_pattern_mismatch":
        return "expected HOST:PORT such as 127.0.0.1:9876"
    return _EXPECTED.get(kind, otherwise)


def _shown(path: Sequence[str | int], raw: object) -> str:
    """The value as the file has it, secrets hidden, long ones cut."""
    if any("key" in str(part) and "file" not in str(part) for part in path):
        return "(hidden)"
    text = repr(_at(path, raw))
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line stays readable


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
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys the schema allows at `path`, unions flattened."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        found: list[type[BaseModel]] = []
        for m in models:
            field = m.model_fields.get(str(part))
            # A list index or a free name (objectives.chat) stays on the models already found.
            found += (
                _models_in(field.annotation) if field else [m] * (isinstance(part, int) or part not in m.model_fields)
            )
        models = found
    return sorted({name for m in models for name in m.model_fields})


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _models_in(argument)]

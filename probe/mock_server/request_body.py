"""Check the JSON of a request's body, or refuse it with vLLM 0.32's messages.

Input: the body's bytes and a pydantic model of its shape. Output: that model, or a Refusal with the status and the JSON
that the real server answers.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

_B = TypeVar("_B", bound=BaseModel)


class Refusal(Exception):  # noqa: N818  # an answer, not an error of this program
    """An error response: `status`, and `body` in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def parse_body(shape: type[_B], body: bytes, content_type: str) -> _B:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, message, "Bad Request")
    if not body:
        raise _invalid([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        asked = json.loads(body)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error", "input": {}}
        raise _invalid([problem | {"ctx": {"error": error.msg}}]) from None
    except (UnicodeDecodeError, RecursionError):
        raise Refusal(400, "There was an error parsing the body", "Bad Request") from None
    if not isinstance(asked, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([{"type": "model_attributes_type", "loc": (), "msg": message, "input": asked}])
    try:
        return shape.model_validate(asked)
    except ValidationError as error:
        raise _invalid([dict(problem) for problem in error.errors(include_url=False)]) from None


def _invalid(problems: list[dict[str, Any]]) -> Refusal:
    """Return vLLM's refusal of a body of the wrong shape: a line for each of pydantic's errors."""
    lines = []
    for problem in problems:
        shown = {"type": problem["type"], "loc": _place(problem["loc"]), "msg": problem["msg"]}
        shown["input"] = _shown(problem["input"])
        if "ctx" in problem:
            shown["ctx"] = problem["ctx"]
        lines.append(f"\n  {shown}")
    count = f"{len(lines)} validation error{'s' if len(lines) > 1 else ''}:"
    return Refusal(400, count + "".join(lines), "Bad Request", _place(problems[0]["loc"]))


def _place(loc: tuple[int | str, ...]) -> str:
    # Pydantic puts the names of a union's branches into the path, as in prompt.list[int].0.
    steps = [str(step) for step in loc if isinstance(step, int) or (step.isidentifier() and step != "str")]
    return ".".join(["body", *steps])


def _shown(given: object) -> str:
    if isinstance(given, list | dict):
        return f"<{type(given).__name__} of {len(given)} items>"
    return str(given)

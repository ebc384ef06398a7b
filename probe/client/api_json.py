"""Reads JSON that does not follow the API's schema: errors, and fields of another type. Pure; never raises."""

from collections.abc import Callable, Mapping
from typing import Any

from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line

ANSWER, REASONING = "answer", "reasoning"  # what an event of a stream brings
# An error's body, or an event of a stream. Neither has more than some dozen values.
MESSAGE = JsonLimits(max_bytes=2**20, max_values=10_000)


def error_message(body: bytes, hide: Callable[[bytes], bytes] = lambda data: data) -> str:
    """Return the server's message from an error body on one line, or the start of the body if there is none.

    `hide` removes secrets from it before it is shortened.
    """
    chunk = parse_object(body)
    message = error_in(chunk, hide) if chunk is not None else None
    return message or one_line(hide(body))


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object, or None if it is not one, or is larger than any message."""
    try:
        value = read_json(data, MESSAGE)
    except ForeignJsonError:
        return None
    return value if isinstance(value, dict) else None


def error_in(chunk: Mapping[str, Any], hide: Callable[[bytes], bytes] = lambda data: data) -> str | None:
    """Return the error message, or None.

    vLLM nests `{"error": {"message"}}`, its API-key check sends `{"error": "..."}`, FastAPI sends `detail`.
    """
    error = chunk.get("error") or chunk.get("detail") or (chunk.get("object") == "error" and chunk.get("message"))
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(hide(str(message or error).encode("utf-8", "replace")))


def first_choice(chunk: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first choice of a chunk, or None."""
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def usage_in(usage: Mapping[str, object]) -> tuple[int, int] | None:
    """Return prompt and output tokens, or None if they are not integers."""
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    return (prompt, output) if type(prompt) is int and type(output) is int else None


def content_of(choice: Mapping[str, Any], *, chat: bool) -> str:
    """Return ANSWER if a choice carries text or a tool call, REASONING if only reasoning, "" if neither."""
    if not chat:
        return ANSWER if choice.get("text") else ""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return ""
    if delta.get("content") or delta.get("tool_calls"):
        return ANSWER
    return REASONING if delta.get("reasoning") or delta.get("reasoning_content") else ""


def text_in(choice: Mapping[str, Any], *, chat: bool) -> tuple[str, str]:
    """Return the text and the reasoning of a choice."""
    part = choice.get("delta") if chat else choice
    fields = part if isinstance(part, dict) else {}
    answer = fields.get("content" if chat else "text")
    reasoning = fields.get("reasoning") or fields.get("reasoning_content")
    return answer if isinstance(answer, str) else "", reasoning if isinstance(reasoning, str) else ""

"""Reads JSON that does not follow the API's schema: errors, and fields of another type. Pure; never raises."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line

ANSWER, REASONING = "answer", "reasoning"  # what an event of a stream brings
_CHAT_ANSWERS = ("content", "tool_calls", "refusal", "function_call")
_THINKING = "thinking"
_REASONING = ("reasoning", "reasoning_content", _THINKING)
# An error's body, or an event of a stream. Neither has more than some dozen values.
MESSAGE = JsonLimits(max_bytes=2**20, max_values=10_000)
MAX_TOKENS = 10_000_000  # no context is longer; a larger count is an error of the server
_MAX_DIGITS = 8

# Where servers and gateways put an error, and its words: FastAPI has `detail`, Apigee `fault`, AWS `Message`, OAuth
# `error_description`, Baidu `error_msg`.
_ERRORS = ("error", "errors", "detail", "fault")
_BESIDE_ANSWERS = ("error", "errors")  # an error also where an answer is; `detail` may be anything there
_KEEP_ALIVES = ("ping", "keepalive", "keep-alive", "heartbeat")
_BARE = ("message", "Message", "msg", "error_description", "error_msg", "errorMessage", "faultstring")
_NAMES = (*_BARE, *_ERRORS, "reason", "title", "type", "code")
_ANSWERS = ("choices", "usage", "data", "results", "output")
_STATUSES = ("code", "status", "status_code", "statusCode", "error_code", "type", "__type")
_NAMED = (
    (re.compile(r"rate.?limit|throttl|too.?many.?requests|resource.?exhausted", re.IGNORECASE), 429),
    (re.compile(r"overloaded", re.IGNORECASE), 529),
)
_FIRST_ERROR, _LAST_ERROR = 400, 599
_MOST_ERRORS = 5
_HEAD_BYTES = 16 * 1024  # of a page; its title is at the begin


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error in the server's words, on one line. `status`: the HTTP status that it states, if any."""

    words: str
    status: int | None = None


def error_message(body: bytes, hide: Callable[[bytes], bytes] = lambda data: data) -> str:
    """Return the server's message from an error body on one line, or the start of the body if there is none.

    `hide` removes secrets from it before it is shortened.
    """
    error = error_of(body, hide)
    return error.words if error is not None else one_line(hide(_title(body) or body))


def said_instead(body: bytes, hide: Callable[[bytes], bytes]) -> str:
    """Return the words of an error, or the title of a page, that came in place of an answer; "" for anything else."""
    error = error_of(body, hide)
    return error.words if error is not None else one_line(hide(_title(body)))


def error_of(body: bytes, hide: Callable[[bytes], bytes] = lambda data: data) -> ServerError | None:
    """Return the error of a body, or None. Google sends a list of one object."""
    said = _json(body)
    if isinstance(said, list) and said:
        said = said[0]
    return error_in(said, hide) if isinstance(said, dict) else None


def not_streamed(body: bytes, hide: Callable[[bytes], bytes]) -> str:
    """Return what a body without events holds, on one line; nothing if it is empty."""
    said = parse_object(body)
    if said is not None and any(name in said for name in (*_ANSWERS, "content")):
        return "a whole answer, not streamed"
    return one_line(hide(_title(body) or body), 120)


def _title(body: bytes) -> bytes:
    """Return the title of an HTML page; nothing if it has none."""
    head = body[:_HEAD_BYTES]
    low = head.lower()
    begin = low.find(b">", low.find(b"<title")) + 1
    end = low.find(b"</title", begin)
    if b"<title" not in low[:begin] or end < 0:
        return b""
    return unescape(head[begin:end].decode("utf-8", "replace")).strip().encode("utf-8", "replace")


def _json(data: bytes) -> object:
    try:
        return read_json(data, MESSAGE)
    except ForeignJsonError:
        return None


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object, or None if it is not one, or is larger than any message."""
    value = _json(data)
    return value if isinstance(value, dict) else None


def error_in(chunk: Mapping[str, Any], hide: Callable[[bytes], bytes] = lambda data: data) -> ServerError | None:
    """Return the error of an object, or None.

    vLLM nests `{"error": {"message"}}`, its API-key check sends `{"error": "..."}`, FastAPI `detail`. A bare message,
    as of gateways, is an error only without an answer beside it.
    """
    names = _BESIDE_ANSWERS if any(chunk.get(name) for name in _ANSWERS) else _ERRORS
    error = next((part for name in names if _is_said(part := chunk.get(name))), None)
    bare = _bare(chunk)
    if error is None and not bare:
        return None
    words = _words(error) or (str(error) if error is not None else "")
    if not isinstance(error, dict | list) and bare and bare != words:
        # OAuth and Spring: a name, and beside it the words. Others say only that there is an error.
        words = bare if error is None or error is True else f"{words}: {bare}"
    if words.startswith("{") and (inner := error_of(words.encode("utf-8", "replace"), hide)) is not None:
        return ServerError(inner.words, _status(error) or _status(chunk) or inner.status)  # another server's, as text
    return ServerError(one_line(hide(words.encode("utf-8", "replace"))), _status(error) or _status(chunk))


def _bare(chunk: Mapping[str, Any]) -> str:
    """Return the message of an object that is no answer, and does not say that all is well."""
    if chunk.get("object") != "error":
        is_fine = chunk.get("success") is True or chunk.get("code") in (0, 200, "0", "200")
        is_fine |= chunk.get("type") in _KEEP_ALIVES
        if is_fine or any(name in chunk for name in _ANSWERS):
            return ""
    return next((words for name in _BARE if isinstance(words := chunk.get(name), str) and words), "")


def _is_said(part: object) -> bool:
    """Return whether a part holds an error: some servers send an empty one with each event."""
    return any(part.values()) if isinstance(part, dict) else bool(part)


def _words(error: object) -> str:
    """Return the words of an error, at any of the places where servers put them."""
    if isinstance(error, list):
        return "; ".join(filter(None, map(_words, error[:_MOST_ERRORS])))
    if not isinstance(error, dict):
        return str(error) if error else ""
    words = next(filter(None, (_words(error.get(name)) for name in _NAMES)), "")
    place = error.get("loc")  # FastAPI: the path of the field that is wrong
    return f"{'.'.join(map(str, place))}: {words}" if words and isinstance(place, list) else words


def _status(error: object) -> int | None:
    """Return the HTTP status that an error states, as a number, as digits or by name."""
    if not isinstance(error, dict):
        return None
    for value in (error.get(name) for name in _STATUSES):
        if isinstance(value, str) and (named := next((code for name, code in _NAMED if name.search(value)), None)):
            return named
        status = count_in(value)
        if status is not None and _FIRST_ERROR <= status <= _LAST_ERROR:
            return status
    return None


def first_choice(chunk: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first choice of a chunk, or None."""
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def usage_in(usage: object) -> tuple[int | None, int | None]:
    """Return prompt and output tokens; None for what is missing, or no number of tokens."""
    if not isinstance(usage, dict):
        return None, None
    return count_in(usage.get("prompt_tokens")), count_in(usage.get("completion_tokens"))


def count_in(value: object) -> int | None:
    """Return a count that was sent as an integer, as 3.0 or as "3"; None for anything else."""
    if isinstance(value, str):
        value = int(value) if len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit() else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    is_count = type(value) is int and 0 <= value <= MAX_TOKENS
    return value if is_count and type(value) is int else None


def content_of(choice: Mapping[str, Any], *, chat: bool) -> str:
    """Return ANSWER if a choice carries text, a tool call or a refusal, REASONING if only reasoning, "" if neither."""
    part = choice.get("delta") if chat else choice
    if not isinstance(part, dict):
        return ""
    if not chat:
        found = ANSWER if part.get("text") else ""
    elif isinstance(content := part.get("content"), list):
        found = _shown(content)
    else:
        found = ANSWER if any(map(part.get, _CHAT_ANSWERS)) else ""
    return found or (REASONING if any(map(part.get, _REASONING)) else "")


def _shown(parts: list[Any]) -> str:
    """Return what a content shows that is a list of parts: Mistral's have text or thinking."""
    named = [part if isinstance(part, dict) else {"text": part} for part in parts]
    shown = [name for part in named for name, value in part.items() if value]
    if any(name not in ("type", _THINKING) for name in shown):
        return ANSWER
    return REASONING if _THINKING in shown else ""


def is_empty_text(choice: Mapping[str, Any], *, chat: bool, may_have_role: bool = False) -> bool:
    """Return whether a choice carries a text of no characters, and in chat no role, which comes before all tokens."""
    part = choice.get("delta") if chat else choice
    if not isinstance(part, dict):
        return False
    content = part.get("content" if chat else "text")
    is_empty = content == "" or (isinstance(content, list) and bool(content) and not content_of(choice, chat=chat))
    return is_empty and (not chat or may_have_role or part.get("role") is None)


def text_in(choice: Mapping[str, Any], *, chat: bool) -> tuple[str, str]:
    """Return the text and the reasoning of a choice."""
    part = choice.get("delta") if chat else choice
    fields = part if isinstance(part, dict) else {}
    answer = fields.get("content" if chat else "text")
    reasoning = fields.get("reasoning") or fields.get("reasoning_content")
    return answer if isinstance(answer, str) else "", reasoning if isinstance(reasoning, str) else ""

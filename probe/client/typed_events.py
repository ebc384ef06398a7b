"""Parses the events of the Responses and the Messages API; each event names its type. Pure.

Neither API counts tokens on the way: the usage comes at the end.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from probe.client.api_json import ANSWER, MESSAGE, REASONING, ServerError, count_in, error_in, parse_object
from probe.client.sse import DONE
from probe.client.stream_parser import StreamReader, server_times
from probe.client.token_count import EMPTY, LAST, NO_TOKEN
from probe.core.foreign_json import check_json

# Up to this size, an event's length bounds its unfolded size.
_SHORT = 8192
_decode = msgspec.json.Decoder().decode
_FAILURES = ("error", "response.failed")
_FAILED = "failed"
_ENDS = ("response.completed", "response.incomplete", "message_stop")
_COUNTING = (*_ENDS, "message_delta")  # with the usage: the end of the text is a token without text before it
# Why an answer ended, in the words of completions.
_REASONS = {"max_output_tokens": "length", "max_tokens": "length", "completed": "stop", "end_turn": "stop"}
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Messages: not in input_tokens


class TypedEventReader(StreamReader):
    """A parser of a stream of either API: their types differ, and so do their names for the same thing."""

    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        if self._ended:
            return
        if event.startswith(DONE):
            self._ended = True
            return
        said = _object(event)
        if said is None:
            self._give_up(event)
            return
        kind, response, message = said.get("type"), _part(said, "response"), _part(said, "message")
        if not isinstance(kind, str) or kind in _FAILURES or response.get("status") == _FAILED:
            self._fail(event, said, response)
            return
        model = response.get("model") or message.get("model")
        self._model = self._model or (model if isinstance(model, str) else None)
        given = (response.get("usage"), message.get("usage"), said.get("usage"))
        usage = next((each for each in given if isinstance(each, dict) and each), None)
        self._learn_end(said, response)
        content, text, may_be = _content(kind, said)
        self._keep(*((text, "") if content == ANSWER else ("", text)))
        counts = _counts(usage) if usage is not None else (None, None)
        self._count(counts, at_ns, late_ns, content=content, kind=may_be)
        if kind in _ENDS and not self._ended:
            self._done = self._ended = True

    def _learn_end(self, said: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        """Keep why the answer ended, and the server's own times."""
        reason = _part(said, "delta").get("stop_reason") or _part(response, "incomplete_details").get("reason")
        if reason is None and response.get("status") == "completed":
            reason = "completed"
        if isinstance(reason, str):
            self._end_reason(_REASONS.get(reason, reason))
        if metrics := _part(response, "metrics"):
            self._server_times = server_times(msgspec.Raw(msgspec.json.encode(metrics))) or self._server_times

    def _fail(self, event: bytes, said: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        error = error_in(said, self._hide) or error_in(response, self._hide)
        if error is None and said.get("type") in _FAILURES:
            error = ServerError(str(said["type"]))
        if error is None and response.get("status") == _FAILED:
            error = ServerError(f"the response's status is {_FAILED!r}")
        if error is None:
            self._give_up(event)
        else:
            self._error, self._ended = error, True


def _object(event: bytes) -> dict[str, Any] | None:
    """Return the event's object, or None if it is none, or is larger than any event."""
    try:
        if len(event) > _SHORT:
            check_json(event, MESSAGE)
        said = _decode(event)
    except (ValueError, RecursionError):
        return parse_object(event)  # slower, and accepts more
    return said if isinstance(said, dict) else None


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within another one; an empty one if it is missing."""
    part = of.get(name)
    return part if isinstance(part, dict) else {}


def _counts(usage: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Return prompt and output tokens; None for what is missing, or no number of tokens.

    `input_tokens` include the cached part of a prompt in Responses, but not in Messages.
    """
    given = count_in(usage.get("input_tokens"))
    cached = sum(count_in(usage.get(name)) or 0 for name in _CACHED)
    return None if given is None else given + cached, count_in(usage.get("output_tokens"))


def _content(kind: str, said: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return what an event brings, ANSWER, REASONING or "", its text, and what it may be without any."""
    delta = said.get("delta")
    if isinstance(delta, str):  # Responses: text, reasoning, a refusal, the arguments of a tool
        return (REASONING if "reasoning" in kind else ANSWER) if delta else "", delta, EMPTY
    if not isinstance(delta, dict) or kind != "content_block_delta":
        return "", "", LAST if kind in _COUNTING else NO_TOKEN
    for field, content in (("text", ANSWER), ("thinking", REASONING), ("partial_json", ANSWER)):
        if isinstance(text := delta.get(field), str):
            return content if text else "", text, EMPTY
    return "", "", NO_TOKEN

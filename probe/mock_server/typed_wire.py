"""The bytes of an answer of the Responses and the Messages API, as vLLM 0.32 writes them. Pure.

Input: a MockResponse. Output: events with a name and a type, and whole answers, as in the recorded transcripts
(tests/golden/vllm-0.32).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from probe.mock_server.wire import MockResponse, dumps

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


class MessageEvents:
    """The events of one streamed answer of the Messages API."""

    def __init__(self, answer: MockResponse) -> None:
        self._answer = answer

    def at_once(self) -> Sequence[bytes]:
        return ()

    def opening(self) -> Sequence[bytes]:
        message: dict[str, Any] = {
            "id": f"chatcmpl-{self._answer.id}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._answer.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _anthropic_usage(self._answer, 0),
        }
        block = {"content_block": {"type": "text", "text": ""}, "index": 0}
        return _event("message_start", {"message": message}), _event("content_block_start", block)

    def token(self, number: int) -> bytes:
        delta = {"type": "text_delta", "text": self._answer.word(number)}
        return _event("content_block_delta", {"delta": delta, "index": 0})

    def closing(self) -> Sequence[bytes]:
        reason = _STOP_REASONS[self._answer.finish_reason]
        usage = _anthropic_usage(self._answer, self._answer.request.output_tokens)
        last = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
        return (
            _event("content_block_stop", {"index": 0}),
            _event("message_delta", last),
            _event("message_stop", {}),
        )

    def broken(self, body: Mapping[str, Any]) -> Sequence[bytes]:
        error = {"type": "internal_error", "message": body["error"]["message"]}
        return (_event("error", {"error": error}),)


def message_body(answer: MockResponse) -> str:
    """Return the whole answer of /v1/messages."""
    return dumps(
        {
            "id": f"chatcmpl-{answer.id}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": answer.text()}],
            "model": answer.model,
            "stop_reason": _STOP_REASONS[answer.finish_reason],
            "usage": _anthropic_usage(answer, answer.request.output_tokens),
        }
    )


class ResponseEvents:
    """The events of one streamed answer of the Responses API."""

    def __init__(self, answer: MockResponse) -> None:
        self._answer = answer
        self._item = f"msg_{answer.id}"
        self._number = 0
        self._place = {"content_index": 0, "item_id": self._item, "output_index": 0}

    def at_once(self) -> Sequence[bytes]:
        begun = _response(self._answer, is_done=False)
        return tuple(self._event(kind, {"response": begun}) for kind in ("response.created", "response.in_progress"))

    def opening(self) -> Sequence[bytes]:
        added = {"item": _item(self._item, [], "in_progress"), "output_index": 0}
        part = {**self._place, "part": {"annotations": [], "text": "", "type": "output_text", "logprobs": []}}
        return self._event("response.output_item.added", added), self._event("response.content_part.added", part)

    def token(self, number: int) -> bytes:
        word = self._answer.word(number)
        delta = {"content_index": 0, "delta": word, "item_id": self._item, "logprobs": [], "output_index": 0}
        return self._event("response.output_text.delta", delta)

    def closing(self) -> Sequence[bytes]:
        text, part = self._answer.text(), _output_text(self._answer)
        done = {"content_index": 0, "item_id": self._item, "logprobs": [], "output_index": 0}
        item = {"item": _item(self._item, [part], "completed"), "output_index": 0}
        return (
            self._event("response.output_text.done", done, text=text),
            self._event("response.content_part.done", {**self._place, "part": part}),
            self._event("response.output_item.done", item),
            self._event("response.completed", {"response": _response(self._answer, is_done=True)}),
        )

    def broken(self, body: Mapping[str, Any]) -> Sequence[bytes]:
        failed = {**_response(self._answer, is_done=False), "status": "failed", "error": body["error"]}
        return (self._event("response.failed", {"response": failed}),)

    def _event(self, kind: str, fields: Mapping[str, Any], **after: object) -> bytes:
        """Return the next event: its number comes after its fields, and its type last."""
        event = {**fields, "sequence_number": self._number, **after, "type": kind}
        self._number += 1
        return _named(kind, event)


def response_body(answer: MockResponse) -> str:
    """Return the whole answer of /v1/responses."""
    return dumps(_response(answer, is_done=True))


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return _named(kind, {"type": kind, **fields})


def _named(kind: str, event: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _anthropic_usage(answer: MockResponse, output_tokens: int) -> dict[str, int]:
    return {"input_tokens": answer.request.prompt_tokens, "output_tokens": output_tokens}


def _output_text(answer: MockResponse) -> dict[str, Any]:
    return {"annotations": [], "text": answer.text(), "type": "output_text", "logprobs": None}


def _item(name: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": name, "content": content, "role": "assistant", "status": status, "type": "message", "phase": None}


def _response(answer: MockResponse, *, is_done: bool) -> dict[str, Any]:
    """Return the response as it is at the beginning or the end of a stream."""
    is_cut = is_done and answer.finish_reason == "length"
    output = [_item(f"msg_{answer.id}", [_output_text(answer)], "completed")] if is_done else []
    return {
        "id": f"resp_{answer.id}",
        "created_at": answer.created,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": None,
        "model": answer.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 0.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": answer.request.output_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": ("incomplete" if is_cut else "completed") if is_done else "in_progress",
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": _response_usage(answer) if is_done else None,
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _response_usage(answer: MockResponse) -> dict[str, Any]:
    prompt, output = answer.request.prompt_tokens, answer.request.output_tokens
    cached = {"cached_tokens": 0, "cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    details = {"reasoning_tokens": 0, "tool_output_tokens": 0}
    turns: dict[str, list[int]] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
    return {
        "input_tokens": prompt,
        "input_tokens_details": cached,
        "output_tokens": output,
        "output_tokens_details": {**details, **turns},
        "total_tokens": prompt + output,
    }

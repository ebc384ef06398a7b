"""The answers of the truth server, rendered once: what vLLM 0.32 sends, event for event. Pure.

Input: what a request asked for. Output: its bytes, one item a token, so that serving a token is one write.
The id and the time of creation are the same in every answer; no client looks at them.
"""

import json
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

_WORD = " word"
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_CREATED = 1795261831
_COUNT = "\u0000count"  # stands where a count will be; no model is called so
_FINGERPRINT = {"system_fingerprint": "vllm-0.32.0-truth000"}
HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Usage(IntEnum):
    """Which events carry the token counts: none, one at the end, or every one."""

    NONE = 0
    END = 1
    RUNNING = 2


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants; equal ones get equal bytes."""

    chat: bool
    model: str
    usage: Usage
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`before` is sent just before the first token, in a write of its own (chat's role); it is no token."""

    before: bytes
    tokens: tuple[bytes, ...]


def read_ask(path: str, body: bytes) -> Ask:
    """Parse a request's body. Raises ValueError if it does not ask for a stream."""
    asked = json.loads(body)
    if not isinstance(asked, dict) or not asked.get("stream"):
        raise ValueError("this server only streams: set stream to true")
    chat = "chat" in path
    options = asked.get("stream_options") or {}
    usage = Usage.NONE
    if options.get("include_usage"):
        usage = Usage.RUNNING if options.get("continuous_usage_stats") else Usage.END
    prompt = [m.get("content", "") for m in asked.get("messages", ())] if chat else asked.get("prompt", "")
    return Ask(
        chat=chat,
        model=str(asked.get("model", "")),
        usage=usage,
        prompt_tokens=_prompt_tokens(prompt),
        output_tokens=max(1, int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)),
    )


def _prompt_tokens(prompt: object) -> int:
    """Count token ids, or the words of a text, since there is no tokenizer here."""
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return len(prompt)
    texts = prompt if isinstance(prompt, list) else [prompt]
    return sum(len(str(text).split()) for text in texts)


@lru_cache(maxsize=4096)
def answer(ask: Ask) -> Answer:
    """Return the answer's bytes, with the framing of chunked transfer."""
    last = ask.output_tokens
    tokens = _tokens_but_last(ask)
    # vLLM puts its fingerprint on the very last event that is not [DONE].
    tokens.append(_chunk(_token_event(ask, _usage(ask, last), "length") | ({} if ask.usage else _FINGERPRINT)))
    if ask.usage:
        tokens[-1] += _chunk({**_start(ask), "choices": [], "usage": _usage(ask, last), **_FINGERPRINT})
    tokens[-1] += _DONE
    return Answer(_chunk(_role_event(ask)) if ask.chat else b"", tuple(tokens))


def _tokens_but_last(ask: Ask) -> list[bytes]:
    """Return all token events but the last. They differ only in their counts: rendering each alone would take a
    millisecond.
    """
    count, before = ask.output_tokens - 1, ask.prompt_tokens
    if ask.usage is not Usage.RUNNING:
        return [_chunk(_token_event(ask, {}))] * count
    counts = {"prompt_tokens": _COUNT, "total_tokens": _COUNT, "completion_tokens": _COUNT}
    text = _data(_token_event(ask, counts)).replace("%", "%%").replace(json.dumps(_COUNT), "%d")
    return [_framed(text % (before, before + n, n)) for n in range(1, count + 1)]


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


def _framed(data: str) -> bytes:
    content = data.encode()
    return b"%x\r\n%s\r\n" % (len(content), content)


def _chunk(event: dict[str, Any]) -> bytes:
    return _framed(_data(event))


def _start(ask: Ask) -> dict[str, Any]:
    kind, name = ("chatcmpl", "chat.completion.chunk") if ask.chat else ("cmpl", "text_completion")
    return {"id": f"{kind}-0123456789abcdef", "object": name, "created": _CREATED, "model": ask.model}


def _usage(ask: Ask, count: int) -> dict[str, Any]:
    total = ask.prompt_tokens + count
    return {"prompt_tokens": ask.prompt_tokens, "total_tokens": total, "completion_tokens": count}


def _running_usage(ask: Ask, usage: dict[str, Any]) -> dict[str, Any]:
    if ask.usage is not Usage.RUNNING:
        return {}
    return {"usage": {**usage, "completion_tokens_details": None} if ask.chat else usage}


def _role_event(ask: Ask) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    unused = {"prompt_token_ids": None, "prompt_text": None}
    return {**_start(ask), "choices": [choice], **_running_usage(ask, _usage(ask, 0)), **unused}


def _token_event(ask: Ask, usage: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    ended = {"logprobs": None, "finish_reason": reason}
    if ask.chat:
        stop = {"stop_reason": None} if reason else {}
        choice = {"index": 0, "delta": {"content": _WORD}, **ended, **stop, "token_ids": None}
    else:
        choice = {"index": 0, "text": _WORD, **ended, "stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    return {**_start(ask), "choices": [choice], **_running_usage(ask, usage)}

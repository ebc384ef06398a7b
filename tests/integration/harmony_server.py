"""A scripted gpt-oss: vLLM's answers of chat to a model whose format is harmony, as reported in vllm #50690 and in
guidellm #979. With `ignore_eos` vLLM's parser fails beyond the end of the answer.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hostile_server import DONE, event
from threaded_server import Request, threaded_server

WORDS = "Unexpected token 200002 while expecting start token 200006"
_LENGTH = 11  # tokens, then the model ends its answer


def _chunk(count: int, delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    usage = {"prompt_tokens": 70, "completion_tokens": count, "total_tokens": 70 + count}
    own = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "gpt-oss"}
    return event({**own, "choices": [choice], "usage": usage})


def answer(asked: dict[str, Any]) -> list[bytes]:
    """Return the events for a request of chat: the channel's head without text, reasoning, and an answer."""
    length = min(_LENGTH, asked["max_tokens"])
    texts = [{"reasoning": "x"} if i < length // 2 else {"content": "x"} for i in range(3, length)]
    chunks = [_chunk(0, {"role": "assistant", "content": ""}), *(_chunk(i, each) for i, each in enumerate(texts, 4))]
    if asked.get("ignore_eos"):
        return [*chunks, event({"error": {"message": WORDS, "type": "BadRequestError", "code": 400}}), DONE]
    return [*chunks, _chunk(length, {}, "stop"), DONE]


@contextmanager
def harmony_server() -> Iterator[str]:
    """Run it until the block ends. Yield its address."""

    def reply(request: Request, body: bytes) -> None:
        if request.command == "GET":
            request.answer(200, b'{"data":[{"id":"gpt-oss"}]}', "application/json")
        else:
            request.answer(200, b"".join(answer(json.loads(body))), "text/event-stream")

    with threaded_server(reply) as url:
        yield url

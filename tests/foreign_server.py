"""A server in a thread that answers each path as a test says, also with more than anyone wants."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from hostile_server import DONE, event
from threaded_server import Request, threaded_server

# Status, content type, and the pieces of the body, which ends with the connection.
Answer = tuple[int, str, Iterable[bytes]]
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
NO_METRICS: Answer = (404, "text/plain", [b"none"])


@contextmanager
def foreign_server(answer: Callable[[str, bytes], Answer]) -> Iterator[str]:
    """Serve what `answer(path, body)` returns. Yields the base URL."""

    def reply(request: Request, body: bytes) -> None:
        status, kind, pieces = answer(request.path, body)
        with contextlib.suppress(OSError):  # the client has had enough
            request.send_response(status)
            request.send_header("content-type", kind)
            request.end_headers()
            for piece in pieces:
                request.wfile.write(piece)

    with threaded_server(reply) as url:
        yield url


def stream(asked: bytes, model: str | None = None) -> Answer:
    """Return the whole stream that a completion request asks for, answered as `model`, by default the one asked for."""
    request = json.loads(asked)
    prompt, tokens = len(request["prompt"]), request["max_tokens"]
    events = []
    for number in range(1, tokens + 1):
        choice = {"index": 0, "text": "x", "finish_reason": "length" if number == tokens else None}
        usage = {"prompt_tokens": prompt, "completion_tokens": number}
        events.append(event({"model": model or request["model"], "choices": [choice], "usage": usage}))
    return 200, "text/event-stream", [*events, DONE]

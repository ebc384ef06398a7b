"""A server in a thread that answers each path as a test says, also with more than anyone wants."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hostile_server import DONE, event

# Status, content type, and the pieces of the body, which ends with the connection.
Answer = tuple[int, str, Iterable[bytes]]
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
NO_METRICS: Answer = (404, "text/plain", [b"none"])


@contextmanager
def foreign_server(answer: Callable[[str, bytes], Answer]) -> Iterator[str]:
    """Serve what `answer(path, body)` returns. Yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, kind, pieces = answer(self.path, body)
            with contextlib.suppress(OSError):  # the client has had enough
                self.send_response(status)
                self.send_header("content-type", kind)
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


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

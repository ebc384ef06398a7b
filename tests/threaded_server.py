"""An HTTP server in a thread of its own, for servers of tests that need no event loop."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request(BaseHTTPRequestHandler):
    """A request of any method, to be answered."""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.reply(self, self.rfile.read(int(self.headers.get("content-length", 0))))

    do_POST = do_CONNECT = do_GET  # noqa: N815 - http.server's names

    def answer(self, status: int, content: bytes, kind: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


Reply = Callable[[Request, bytes], None]


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, reply: Reply) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.reply = reply


@contextmanager
def threaded_server(reply: Reply, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Call `reply` with each request and its body, in a thread for each, until the block ends. Yields the base URL."""
    with _Server(reply) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()

"""A server that gives one answer to every question, as Prometheus would, or unlike it."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@contextmanager
def prometheus(body: object, status: int = 200, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve a fake Prometheus. Yields its address and the queries it receives."""
    queries: list[str] = []
    payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            queries.append(f"{asked.path} {parse_qs(asked.query)['query'][0]}")
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}", queries
        finally:
            server.shutdown()
            thread.join()

"""A server that gives one answer to every question, as Prometheus would, or unlike it."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from threaded_server import Request, threaded_server


@contextmanager
def prometheus(body: object, status: int = 200, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve a fake Prometheus. Yields its address and the queries it receives."""
    queries: list[str] = []
    payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()

    def reply(request: Request, _: bytes) -> None:
        asked = urlsplit(request.path)
        queries.append(f"{asked.path} {parse_qs(asked.query)['query'][0]}")
        request.answer(status, payload, "application/json")

    with threaded_server(reply, tls) as url:
        yield url, queries

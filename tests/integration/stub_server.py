"""Small servers that are not what Kneewatch needs: each answers every request in one wrong way."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from threaded_server import threaded_server


@contextmanager
def stub_server(status: int, body: object) -> Iterator[str]:
    """Serve `body` (JSON, or text as HTML) with `status` at every path. Yields the base URL."""
    payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) else "application/json"

    with threaded_server(lambda request, _: request.answer(status, payload, kind)) as url:
        yield url

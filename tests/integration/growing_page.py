"""A metrics page of a server that works: the counters of a recorded page are higher at every reading."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

_COUNTED = re.compile(r"^(\S+_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def _grown(series: str, value: float, factor: float) -> str:
    """Return the value times the factor; what is counted stays a whole number."""
    grown = value * factor
    return f"{grown:.10g}" if series.partition("{")[0].endswith("_sum") else str(int(grown))


@contextmanager
def growing_page(page: str) -> Iterator[str]:
    """Serve `page` at every path, with counters a hundredth higher each time. Yields the base URL."""
    readings = count()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            factor = 1 + next(readings) / 100
            text = _COUNTED.sub(lambda found: f"{found[1]} {_grown(found[1], float(found[2]), factor)}", page).encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()

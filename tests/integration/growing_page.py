"""A metrics page of a server that works: the counters of a recorded page are higher at every reading."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from threaded_server import Request, threaded_server

_COUNTED = re.compile(r"^(\S+_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def _grown(series: str, value: float, factor: float) -> str:
    """Return the value times the factor; what is counted stays a whole number."""
    grown = value * factor
    return f"{grown:.10g}" if series.partition("{")[0].endswith("_sum") else str(int(grown))


@contextmanager
def growing_page(page: str) -> Iterator[str]:
    """Serve `page` at every path, with counters a hundredth higher each time. Yields the base URL."""
    readings = count()

    def reply(request: Request, _: bytes) -> None:
        factor = 1 + next(readings) / 100
        text = _COUNTED.sub(lambda found: f"{found[1]} {_grown(found[1], float(found[2]), factor)}", page).encode()
        request.answer(200, text, "text/plain; version=0.0.4")

    with threaded_server(reply) as url:
        yield url

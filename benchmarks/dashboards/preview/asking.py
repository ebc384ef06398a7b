"""Queries to a Prometheus, many at a time.

In: its address, PromQL and times. Out: series with their samples. An answer that is none raises QueryError, one line.
"""

import asyncio
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from benchmarks.dashboards.preview.intervals import DEFAULT_SCRAPE_S, Grid
from exporters import names
from probe.core.text import one_line

_TIMEOUT_S = 30.0
# By default Prometheus runs twenty queries at once; leave some for others.
_AT_ONCE = 6
_RECENT = "5m"


class QueryError(Exception):
    """A failed query; the message is one line without the address."""


class UnreachableError(QueryError):
    """No Prometheus answers at the address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A series: its labels, and (time in s, value) pairs."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


class Asker:
    """One Prometheus. An asynchronous context manager."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, transport=transport)
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def instant(self, expr: str, at_s: float) -> list[Answer]:
        """Return the values of an expression at one moment. Raises QueryError."""
        return _series(await self._post("query", {"query": expr, "time": f"{at_s:.3f}"}))

    async def range(self, expr: str, grid: Grid) -> list[Answer]:
        """Return the values of an expression at each moment of the grid. Raises QueryError."""
        times = {"start": f"{grid.start_s:.3f}", "end": f"{grid.end_s:.3f}", "step": f"{grid.step_s:g}"}
        return _series(await self._post("query_range", {"query": expr, **times}))

    async def label_values(self, label: str, matcher: str, start_s: float, end_s: float) -> list[str]:
        """Return the values of a label in the series that match, sorted. Raises QueryError."""
        asked = {"match[]": matcher, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        answer = await self._ask("GET", f"label/{label}/values", asked)
        return sorted(str(value) for value in answer) if isinstance(answer, list) else []

    async def scrape_interval(self, at_s: float) -> float:
        """Return how often Kneewatch's page is scraped: the time between its last samples. Raises QueryError."""
        found = await self.instant(f"{names.BUILD_INFO.name}[{_RECENT}]", at_s)
        gaps = [
            statistics.median(after[0] - before[0] for before, after in zip(one.samples, one.samples[1:], strict=False))
            for one in found
            if len(one.samples) > 1
        ]
        # Scrapes are a few milliseconds off, and no one scrapes more often than every second.
        return max(float(round(max(gaps))), 1.0) if gaps else DEFAULT_SCRAPE_S

    async def _post(self, path: str, asked: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
        # By POST, as Grafana does: a query may be longer than an address.
        return await self._ask("POST", path, asked)

    async def _ask(self, method: str, path: str, asked: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
        url = f"{self._url}/api/v1/{path}"
        given: dict[str, Any] = {"data" if method == "POST" else "params": dict(asked)}
        try:
            async with self._turn:
                reply = await self._http.request(method, url, **given)
        except httpx.TimeoutException:
            raise UnreachableError(f"no answer within {_TIMEOUT_S:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"no connection: {_cause(error)}") from None
        try:
            answer = reply.json()
            if answer["status"] == "success":
                return answer["data"]
            said = str(answer["error"])
        except (ValueError, LookupError, TypeError):
            raise UnreachableError(f"HTTP {reply.status_code} and no answer of Prometheus's to a query") from None
        raise QueryError(one_line(said))


def _cause(error: BaseException) -> str:
    """Return the operating system's message, without what the libraries add to it."""
    first = error
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return one_line(getattr(error, "strerror", None) or str(first) or type(first).__name__)


def _series(data: Any) -> list[Answer]:  # noqa: ANN401 - JSON
    try:
        if data["resultType"] in ("scalar", "string"):
            return [Answer({}, (_sample(data["result"]),))]
        return [
            Answer(
                {str(k): str(v) for k, v in one["metric"].items()},
                tuple(map(_sample, one["values"] if "values" in one else [one["value"]])),
            )
            for one in data["result"]
        ]
    except (LookupError, TypeError, ValueError, AttributeError):
        raise QueryError("not Prometheus's answer to a query") from None


def _sample(pair: Any) -> tuple[float, float]:  # noqa: ANN401 - JSON
    at_s, value = pair
    return float(at_s), float(value)


def on_grid(answer: Answer, grid: Grid) -> list[float | None]:
    """Return a value for each moment of the grid; None where none can be drawn."""
    values: list[float | None] = [None] * grid.count
    for at_s, value in answer.samples:
        place = round((at_s - grid.start_s) / grid.step_s)
        if 0 <= place < grid.count and math.isfinite(value):
            values[place] = value
    return values

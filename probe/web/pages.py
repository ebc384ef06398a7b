"""The pages and the API: a thin view on what the monitor knows. It changes nothing and sends nothing."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exporters.page import Page
from probe import __version__
from probe.records import CapacityResult, TargetStatus
from probe.report.result_json import dumps
from probe.web.view import filters, target_json

_HERE = Path(__file__).parent
# Nothing but our own style sheet may load, and no script at all: model and target names come from outside.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Monitor(Protocol):
    """What the pages need to know of the monitor."""

    @property
    def page(self) -> Page: ...
    @property
    def ready(self) -> bool: ...
    def statuses(self) -> Sequence[TargetStatus]: ...
    def results(self, target: str | None = None) -> Sequence[CapacityResult]: ...
    def result_of(self, result_id: str) -> CapacityResult | None: ...
    def config_text(self) -> str: ...


def build_pages(monitor: Monitor) -> ASGIApp:
    """The ASGI app of a monitor."""
    pages = _Pages(monitor)
    app = Starlette(
        routes=[
            Route("/", pages.status),
            Route("/kneewatch.css", pages.style),
            Route("/metrics", pages.metrics),
            Route("/config", pages.config),
            Route("/api/v1/targets", pages.targets),
            Route("/api/v1/runs", pages.runs),
            Route("/api/v1/runs/{id}", pages.run),
            Route("/-/healthy", pages.healthy),
            Route("/-/ready", pages.is_ready),
        ]
    )

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await app(scope, receive, send_with_headers)

    return with_headers


class _Pages:
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        loader = jinja2.FileSystemLoader(_HERE / "templates")
        environment = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= filters()
        self._status = environment.get_template("status.html")
        self._css = (_HERE / "templates" / "kneewatch.css").read_text()

    async def status(self, _: Request) -> Response:
        page = self._status.render(
            targets=self._monitor.statuses(), runs=self._monitor.results()[:10], version=__version__
        )
        return Response(page.encode("utf-8", "replace"), media_type="text/html")

    async def style(self, _: Request) -> Response:
        return Response(self._css, media_type="text/css")

    async def metrics(self, request: Request) -> Response:
        # In a thread: what canaries receive meanwhile is stamped in time.
        page, content_type = await asyncio.to_thread(self._monitor.page.render, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def config(self, _: Request) -> Response:
        return PlainTextResponse(self._monitor.config_text())

    async def targets(self, _: Request) -> Response:
        return _json([target_json(status) for status in self._monitor.statuses()])

    async def runs(self, request: Request) -> Response:
        results = self._monitor.results(request.query_params.get("target"))
        return _json([_summary(result) for result in results])

    async def run(self, request: Request) -> Response:
        result = self._monitor.result_of(request.path_params["id"])
        if result is None:
            return _json({"error": "no run has this id; /api/v1/runs lists them"}, status=404)
        return Response(dumps(result), media_type="application/json")

    async def healthy(self, _: Request) -> Response:
        return PlainTextResponse("Kneewatch is healthy.\n")

    async def is_ready(self, _: Request) -> Response:
        ready = self._monitor.ready
        return PlainTextResponse("Kneewatch is ready.\n" if ready else "starting\n", status_code=200 if ready else 503)


def _summary(result: CapacityResult) -> dict[str, Any]:
    """A run in a list: everything but its steps."""
    whole = json.loads(dumps(result))
    return {key: value for key, value in whole.items() if key != "steps"} | {"steps": len(result.steps)}


def _json(content: object, status: int = 200) -> Response:
    # In ASCII: half of a character pair, which a server may have sent, cannot be encoded.
    return Response(json.dumps(content), status_code=status, media_type="application/json")

"""Routes for Prometheus, kubelets and scripts: metrics, health, configuration, reload."""

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporters.exposition_format import wants_openmetrics
from probe.web.coalesced import Coalesced
from probe.web.monitor_protocol import Monitor
from probe.web.on_demand import is_cross_site

_FORMATS = {False: "text/plain", True: "application/openmetrics-text"}
_RELOAD_PAUSE_S = 1.0


class Operations:
    """The handlers of these routes."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._reload = Coalesced(monitor.reload, _RELOAD_PAUSE_S)
        self._config = Coalesced(partial(asyncio.to_thread, monitor.config_text))
        # A page of 200 targets takes 6 MB, and its text as much again while it is made.
        self._metrics = {is_open: Coalesced(partial(self._render, accept)) for is_open, accept in _FORMATS.items()}

    async def metrics(self, request: Request) -> Response:
        page, content_type = await self._metrics[wants_openmetrics(request.headers.get("accept", ""))]()
        return Response(page, headers={"content-type": content_type})

    async def config(self, _: Request) -> Response:
        return PlainTextResponse(await self._config())

    async def healthy(self, _: Request) -> Response:
        return PlainTextResponse("Kneewatch is healthy.\n")

    async def ready(self, _: Request) -> Response:
        is_ready = self._monitor.is_ready
        return PlainTextResponse(
            "Kneewatch is ready.\n" if is_ready else "starting\n", status_code=200 if is_ready else 503
        )

    async def reload(self, request: Request) -> Response:
        if is_cross_site(request):
            return PlainTextResponse("cross-site request refused\n", status_code=403)
        problem = await self._reload()
        if problem is not None:
            return PlainTextResponse(f"{problem}\n", status_code=500)
        return PlainTextResponse("Configuration reloaded.\n")

    async def _render(self, accept: str) -> tuple[bytes, str]:
        return await asyncio.to_thread(self._monitor.page.render, accept)

"""Routes for Prometheus, kubelets and scripts: metrics, health, configuration, reload."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporters.rendered_samples import wants_openmetrics
from probe.web.headers import takes_gzip
from probe.web.monitor_protocol import Monitor
from probe.web.on_demand import is_cross_site

T = TypeVar("T")
# With a pause, the function runs at most this share of the time.
_MAX_SHARE = 0.2
_FORMATS = {False: "text/plain", True: "application/openmetrics-text"}
_RELOAD_PAUSE_S = 1.0
_RENDERERS = 2
# The quickest: a page of series repeats itself, so even this makes it a fraction.
_GZIP_LEVEL = 1


class Coalesced(Generic[T]):
    """A function that runs once at a time; callers that wait share its next run.

    Each caller gets the result of a run that began after its call. So there are at most two: one running, one pending.
    """

    def __init__(self, function: Callable[[], Awaitable[T]], pause_s: float = 0.0) -> None:
        """Take `pause_s`: the shortest pause between two runs."""
        self._function = function
        self._pause_s = pause_s
        self._last: asyncio.Task[T] | None = None
        self._pending: asyncio.Task[T] | None = None
        self._not_before_s = 0.0

    async def __call__(self) -> T:
        """Return the function's result, or raise its exception."""
        if self._pending is None:
            self._pending = asyncio.create_task(self._run(self._last))
        # A caller that goes away does not end the run of the others.
        return await asyncio.shield(self._pending)

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        loop = asyncio.get_running_loop()
        if before is not None:
            await asyncio.wait((before,))
            await asyncio.sleep(max(self._not_before_s - loop.time(), 0.0))
        self._last, self._pending = self._pending, None
        began_s = loop.time()
        try:
            return await self._function()
        finally:
            if self._pause_s:
                took_s = loop.time() - began_s
                self._not_before_s = loop.time() + max(self._pause_s, took_s * (1 / _MAX_SHARE - 1))


class Operations:
    """The handlers of these routes."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._reload = Coalesced(monitor.reload, _RELOAD_PAUSE_S)
        self._config = Coalesced(partial(asyncio.to_thread, monitor.config_text))
        # Not the loop's own threads: name servers that do not answer may hold all of them, and the page for seconds.
        self._renderers = ThreadPoolExecutor(_RENDERERS, "metrics")
        # A page of 200 targets takes 6 MB, and its text as much again while it is made.
        self._metrics = {
            (is_open, is_packed): Coalesced(partial(self._render, accept, is_packed=is_packed))
            for is_open, accept in _FORMATS.items()
            for is_packed in (False, True)
        }

    async def metrics(self, request: Request) -> Response:
        is_packed = takes_gzip(request.headers.get("accept-encoding", ""))
        page, content_type = await self._metrics[wants_openmetrics(request.headers.get("accept", "")), is_packed]()
        headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
        return Response(page, headers=headers | ({"content-encoding": "gzip"} if is_packed else {}))

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

    async def _render(self, accept: str, *, is_packed: bool) -> tuple[bytes, str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._renderers, self._page, accept, is_packed)

    def _page(self, accept: str, is_packed: bool) -> tuple[bytes, str]:  # noqa: FBT001 - passed on by to_thread
        page, content_type = self._monitor.page.render(accept)
        return gzip.compress(page, _GZIP_LEVEL, mtime=0) if is_packed else page, content_type

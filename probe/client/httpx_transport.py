"""httpx's own transport, for proxies and HTTP/2, which transport.py does not support.

It times streams less exactly (transport.py explains why). httpx has one time limit for all reads; here the first
read has a limit of its own, as in transport.py.
"""

from collections.abc import Callable

import httpx
import structlog

from probe.core.text import one_line

_log = structlog.get_logger()


class HttpxTransport(httpx.AsyncBaseTransport):
    """A transport created by `make` at the first request, so that a missing file fails that request only.

    `version` returns another value when files that `make` reads have changed; a new transport is then made. If it
    cannot be, the previous one stays in use.
    """

    def __init__(self, make: Callable[[], httpx.AsyncHTTPTransport], version: Callable[[], object]) -> None:
        self._make = make
        self._version = version
        self._made: httpx.AsyncHTTPTransport | None = None
        self._made_of: object = None
        self._before: httpx.AsyncHTTPTransport | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Return the response once its head has arrived. Raises httpx's errors and `make`'s."""
        if self._closed:
            raise httpx.ConnectError("the client is closed", request=request)
        made = await self._current()
        limits = dict(request.extensions.get("timeout", {}))
        between_s = limits.get("read")
        limits["read"] = limits.pop("first_byte", between_s)
        request.extensions["timeout"] = limits  # httpx looks it up before every read
        response = await made.handle_async_request(request)
        limits["read"] = between_s
        return response

    async def aclose(self) -> None:
        self._closed = True
        for made in (self._made, self._before):
            if made is not None:
                await made.aclose()

    async def _current(self) -> httpx.AsyncHTTPTransport:
        version = self._version()
        if self._made is None:
            self._made, self._made_of = self._make(), version
        elif version != self._made_of:
            self._made_of = version
            try:
                made = self._make()
            except (OSError, ValueError) as error:
                words = "changed credentials cannot be used, the previous ones stay in use"
                _log.error(words, detail=one_line(str(error)))
                return self._made
            # Streams of the previous transport may go on; older ones have ended.
            older, self._before, self._made = self._before, self._made, made
            if older is not None:
                await older.aclose()
        return self._made

"""httpx's own transport, for proxies and HTTP/2, which transport.py does not support.

It times streams less exactly (transport.py explains why). httpx has one time limit for all reads; here the first
read has a limit of its own, as in transport.py.
"""

from collections.abc import Callable

import httpx


class HttpxTransport(httpx.AsyncBaseTransport):
    """A transport created by `make` at the first request, so that a missing file fails that request only."""

    def __init__(self, make: Callable[[], httpx.AsyncHTTPTransport]) -> None:
        self._make = make
        self._made: httpx.AsyncHTTPTransport | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Return the response once its head has arrived. Raises httpx's errors and those of `make`."""
        if self._closed:
            raise httpx.ConnectError("the client is closed", request=request)
        self._made = self._made or self._make()
        limits = dict(request.extensions.get("timeout", {}))
        between_s = limits.get("read")
        limits["read"] = limits.pop("first_byte", between_s)
        request.extensions["timeout"] = limits  # httpx looks it up before every read
        response = await self._made.handle_async_request(request)
        limits["read"] = between_s
        return response

    async def aclose(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.aclose()

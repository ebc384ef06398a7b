"""httpx's own transport, for what ours does not speak: proxies and HTTP/2.

It times streams less exactly than ours (transport.py says why), and knows one limit for all reads; here the first
one has its own, as in ours.
"""

from collections.abc import Callable

import httpx


class HttpxTransport(httpx.AsyncBaseTransport):
    """What `make` makes, at the first request: its files may be missing until then, which is that request's failure."""

    def __init__(self, make: Callable[[], httpx.AsyncHTTPTransport]) -> None:
        self._make = make
        self._made: httpx.AsyncHTTPTransport | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends, and gives the response once its head is there. Raises httpx's errors, and those of `make`."""
        if self._closed:
            raise httpx.ConnectError("the client is closed", request=request)
        self._made = self._made or self._make()
        limits = dict(request.extensions.get("timeout", {}))
        between_s = limits.get("read")
        limits["read"] = limits.pop("first_byte", between_s)
        request.extensions["timeout"] = limits  # looked into before every read
        response = await self._made.handle_async_request(request)
        limits["read"] = between_s
        return response

    async def aclose(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.aclose()

"""Reads a server's metrics page: URL in, ServerSnapshot out."""

import asyncio
import json

import httpx

from probe.client.endpoint import Endpoint
from probe.client.send import NETWORK_ERRORS
from probe.clock import Clock
from probe.errors import TargetError
from probe.records import Outcome, ServerSnapshot
from probe.server import engines
from probe.words import one_line

_MAX_PAGE_BYTES = 8 * 1024 * 1024
_MAX_VERSION = 64
_OK = 200


class Scraper:
    """One server's metrics. The version is asked once, and again after every failure: servers are redeployed."""

    def __init__(self, endpoint: Endpoint, clock: Clock, timeout_s: float = 3.0) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._timeout_s = timeout_s
        self._version: str | None = None
        timeout = httpx.Timeout(timeout_s, connect=min(endpoint.connect_s, timeout_s))
        self._server = httpx.AsyncClient(timeout=timeout, transport=endpoint.transport(), trust_env=False)
        self._metrics = httpx.AsyncClient(timeout=timeout, transport=endpoint.metrics_transport(), trust_env=False)

    async def close(self) -> None:
        await self._server.aclose()
        await self._metrics.aclose()

    async def read(self) -> ServerSnapshot:
        """The server's state now. Raises TargetError where its page cannot be read or is not vLLM's."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._version is None:
                    self._version = await self._ask_version()
                page = await self._get(self._metrics, self._endpoint.metrics_address)
            return engines.parse(page, self._clock.monotonic_ns(), self._clock.wall_s(), self._version)
        except NETWORK_ERRORS as error:
            self._version = None
            words = one_line(str(error)) or type(error).__name__
            raise TargetError(
                f"{self._endpoint.metrics_address}: no metrics of a server ({words})", Outcome.UNREACHABLE
            ) from None

    async def _ask_version(self) -> str:
        """vLLM says it at /version; a server that does not, or not within half the time, is "unknown", not broken."""
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                version = json.loads(await self._get(self._server, f"{self._endpoint.base_url}/version"))["version"]
        except (*NETWORK_ERRORS, KeyError, TypeError):
            return "unknown"
        is_label = isinstance(version, str) and 0 < len(version) <= _MAX_VERSION and version.isprintable()
        return version if is_label else "unknown"

    async def _get(self, http: httpx.AsyncClient, url: str) -> str:
        async with http.stream("GET", url, headers=self._endpoint.headers(url)) as response:
            if response.status_code != _OK:
                raise ValueError(f"HTTP {response.status_code}")
            page = bytearray()
            async for data in response.aiter_bytes():
                page += data
                if len(page) > _MAX_PAGE_BYTES:
                    raise ValueError(f"more than {_MAX_PAGE_BYTES} bytes")
        return page.decode("utf-8", "replace")

"""Sends canaries to an OpenTelemetry collector, in the background: no failed export delays a canary.

What cannot be sent is kept up to a limit, and tried again. Its answers are not read.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
import structlog

from exporters.otlp import Attributes, Histograms, metrics_request, server_of, span, traces_request
from probe import __version__
from probe.client.tls_files import client_context
from probe.config.config import OtlpConfig
from probe.core.clock import Clock
from probe.core.request import RequestRecord, Traffic
from probe.core.text import one_line

_log = structlog.get_logger()
_EVERY_S = 10.0
_TIMEOUT_S = 5.0
_LAST_S = 2.0  # for what is left at the end
_AT_ONCE = 512
_MOST_WAITING = 2048  # spans; the oldest are given up


class OtlpExport:
    """The spans that wait to be sent, and the histograms of all canaries."""

    def __init__(self, config: OtlpConfig, clock: Clock, on_failure: Callable[[], None]) -> None:
        """Take `on_failure`: called for each request that the receiver did not take."""
        self._config, self._clock, self._on_failure = config, clock, on_failure
        self._resource: Attributes = {
            "service.name": "kneewatch",
            "service.version": __version__,
            "service.instance.id": socket.gethostname(),
        }
        self._servers: dict[str, Attributes] = {}
        self._waiting: list[dict[str, Any]] = []
        self._histograms = Histograms(clock.wall_s())
        self._client: httpx.AsyncClient | None = None
        self._tls: ssl.SSLContext | None = None
        self._problem: str | None = None

    def add(self, target: str, base_url: str) -> None:
        """Announce a target."""
        self._servers[target] = server_of(base_url)

    def forget(self, target: str) -> None:
        """Remove a target's histograms."""
        self._servers.pop(target, None)
        self._histograms.forget(target)

    def record(self, record: RequestRecord) -> None:
        """Take a request that has ended; only canaries are sent."""
        if record.traffic is Traffic.CANARY:
            server = self._servers.get(record.target, {})
            self._waiting.append(span(record, server))
            del self._waiting[:-_MOST_WAITING]
            self._histograms.observe(record, server)

    async def follow(self) -> None:
        """Send what there is, again and again, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self._send_all(_TIMEOUT_S)
        finally:
            await self._send_all(_LAST_S)
            await self._close()

    async def _send_all(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while self._waiting:
                    await self._send_spans()
                if metrics := self._histograms.metrics(self._clock.wall_s()):
                    await self._post("/v1/metrics", metrics_request(metrics, self._resource))
        except TimeoutError:
            self._failed(f"it has not answered within {limit_s:g} s")
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        else:
            if self._problem is not None:
                self._problem = None
                _log.info("canaries are sent to the collector again", endpoint=self._config.endpoint)

    async def _send_spans(self) -> None:
        sent, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        try:
            await self._post("/v1/traces", traces_request(sent, self._resource))
        except BaseException:
            self._waiting = [*sent, *self._waiting][-_MOST_WAITING:]
            raise

    def _failed(self, words: str) -> None:
        self._on_failure()
        words = one_line(words)
        if words != self._problem:
            self._problem = words
            _log.warning("canaries cannot be sent to the collector", endpoint=self._config.endpoint, detail=words)

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        """Send one request. Raises httpx.HTTPError, OSError or ValueError with a message."""
        own, secrets = self._config.plain_headers(), self._config.secret_headers()
        headers = {**own, **secrets, "content-type": "application/json", "user-agent": f"kneewatch/{__version__}"}
        client = await self._connected()
        async with client.stream(
            "POST", f"{self._config.endpoint}{path}", content=msgspec.json.encode(body), headers=headers
        ) as answer:
            if not answer.is_success:
                raise ValueError(f"HTTP {answer.status_code} from {path}")

    async def _connected(self) -> httpx.AsyncClient:
        tls = client_context(str(self._config.ca_file) if self._config.ca_file else None)
        if self._client is None or tls is not self._tls:
            await self._close()
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=tls, trust_env=False, follow_redirects=False)
            self._tls = tls
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

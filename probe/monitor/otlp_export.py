"""Sends canaries to an OpenTelemetry collector, in the background: no failed export delays a canary.

What cannot be sent is kept up to a limit and tried again, where OTLP's specification allows it; what the collector
refuses for good is given up (https://opentelemetry.io/docs/specs/otlp/#otlphttp-response). OpenTelemetry's SDK does the
same in a thread of its own, for 13 MiB and 0.3 s of CPU at the start.
"""

import asyncio
import gzip
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
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
_SLICE_S, _MOST_LATE = 0.1, 10
_AT_ONCE = 512
_MOST_WAITING = 2048  # spans; the oldest are given up
_RETRIED = frozenset({429, 502, 503, 504})  # by OTLP's specification; all other errors are for good
_LONGEST_PAUSE_S = 600.0  # whatever a Retry-After says
_ANSWER_BYTES = 65_536


class RefusedError(ValueError):
    """The collector refuses data for good: sending them again is forbidden."""


async def answered(request: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Wait for a request. Raise TimeoutError with words after `limit_s`, in which Kneewatch's own lateness counts not.

    Bytes that came while the event loop stood are read after it; a deadline on the clock would have passed before.
    """
    task, late_s = asyncio.ensure_future(request), 0.0
    began_s = now_s = time.monotonic()
    try:
        while (left_s := min(began_s + limit_s + late_s, began_s + _MOST_LATE * limit_s) - now_s) > 0:
            slice_s, before_s = min(left_s, _SLICE_S), now_s
            await asyncio.wait({task}, timeout=slice_s)
            if task.done():
                return task.result()
            now_s = time.monotonic()
            late_s += max(now_s - before_s - slice_s, 0.0)
    finally:
        task.cancel()
        await asyncio.wait({task})  # it closes its connection
    is_late = late_s > limit_s / 4
    own = f"; Kneewatch itself was late by {late_s:.1f} s, which is not counted: it needs more CPU" if is_late else ""
    raise TimeoutError(f"it has not answered within {limit_s:g} s{own}")


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
        self._not_before_s = 0.0

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
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._send_all(_LAST_S)
            await self._close()

    async def _send_all(self, limit_s: float) -> None:
        """Send all that waits, unless the collector asked for a pause. `limit_s`: of each request."""
        if time.monotonic() < self._not_before_s:
            return
        try:
            while self._waiting:
                await self._send_spans(limit_s)
            if metrics := self._histograms.metrics(self._clock.wall_s()):
                await answered(self._post("/v1/metrics", metrics_request(metrics, self._resource)), limit_s)
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        else:
            if self._problem is not None:
                self._problem = None
                _log.info("canaries are sent to the collector again", endpoint=self._config.endpoint)

    async def _send_spans(self, limit_s: float) -> None:
        sent, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        try:
            await answered(self._post("/v1/traces", traces_request(sent, self._resource)), limit_s)
        except RefusedError:
            raise
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
        """Send one request. Raises RefusedError, httpx.HTTPError, OSError or ValueError with a message."""
        own, secrets = self._config.plain_headers(), self._config.secret_headers()
        headers = {**own, **secrets, "content-type": "application/json", "user-agent": f"kneewatch/{__version__}"}
        content = gzip.compress(msgspec.json.encode(body), compresslevel=1)
        client = await self._connected()
        async with client.stream(
            "POST", f"{self._config.endpoint}{path}", content=content, headers={**headers, "content-encoding": "gzip"}
        ) as answer:
            if answer.is_success:
                check_taken(path, await _beginning(answer))
            elif answer.status_code in _RETRIED:
                self._pause(answer.headers.get("retry-after", ""))
                raise ValueError(f"HTTP {answer.status_code} from {path}")
            else:
                raise RefusedError(f"HTTP {answer.status_code} from {path}; these canaries are not sent again")

    def _pause(self, retry_after: str) -> None:
        """Send nothing for as long as the collector asks; a date in Retry-After is left to the next attempt."""
        if retry_after.isascii() and retry_after.isdigit():
            self._not_before_s = time.monotonic() + min(float(retry_after[:9]), _LONGEST_PAUSE_S)

    async def _connected(self) -> httpx.AsyncClient:
        tls = client_context(str(self._config.ca_file) if self._config.ca_file else None)
        if self._client is None or tls is not self._tls:
            await self._close()
            # `answered` limits the time. No connection is kept: the next request is due when most would have ended.
            once = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(timeout=None, limits=once, verify=tls, trust_env=False)  # noqa: S113
            self._tls = tls
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _beginning(answer: httpx.Response) -> bytes:
    """Return an answer, or its first part where a collector says more than OTLP does."""
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _ANSWER_BYTES:
            break
    return body


def check_taken(path: str, body: bytes) -> None:
    """Raise RefusedError where an answer says that a part of the data was not taken; sending it again is forbidden."""
    try:
        told = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # the status says that the data were taken
    partial = told.get("partialSuccess") if isinstance(told, dict) else None
    if not isinstance(partial, dict):
        return
    for name in ("rejectedSpans", "rejectedDataPoints"):
        rejected = str(partial.get(name, 0))  # int64 is text in protobuf's JSON
        if rejected.isdigit() and int(rejected[:18]) > 0:
            raise RefusedError(f"{path}: {rejected} refused: {one_line(str(partial.get('errorMessage', '')))}")

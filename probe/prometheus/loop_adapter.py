"""The adapter under prometheus-api-client's session: its requests are sent by the event loop, within limits.

The package sends with requests, which limits neither the time nor the size of a whole answer, follows redirects, takes
proxies and credentials from the environment, and blocks a thread that cannot be cancelled. Here the thread only waits
for a coroutine, which ends at its deadline, and at once when the question is cancelled.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
from prometheus_api_client import PrometheusConnect
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from probe.client.tls_files import client_context
from probe.client.transport import Transport
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json, size_text
from probe.core.text import one_line

_OK = 200
_MAX_ERROR_BYTES = 4096
# Not compressed, so that the limit of bytes holds.
_HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What a question may take: seconds from name lookup to last byte, and the size of its answer."""

    seconds: float
    json: JsonLimits


class AnswerError(ValueError):
    """An answer that is not followed or not read. The message says why."""


def connect(url: str, limits: AnswerLimits, ca_file: Path | None) -> PrometheusConnect:
    """Return the package's client for a thread to use. Call it in the event loop, which will send the requests.

    Close it there, too: that cancels the request under way.
    """
    session = Session()
    session.trust_env = False
    connection = PrometheusConnect(url=url, session=session)
    session.adapters.clear()
    adapter = LoopAdapter(asyncio.get_running_loop(), limits, ca_file)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return connection


class LoopAdapter(BaseAdapter):
    """Sends requests of other threads through an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: AnswerLimits, ca_file: Path | None) -> None:
        super().__init__()
        self._loop, self._limits = loop, limits
        self._tls = partial(client_context, str(ca_file) if ca_file is not None else None)
        self._fetching: asyncio.Task[Any] | None = None
        self._is_closed = False

    def send(  # noqa: PLR0917 - the signature of requests
        self,
        request: PreparedRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002
        timeout: object = None,  # noqa: ARG002
        verify: object = True,  # noqa: ARG002, FBT002
        cert: object = None,  # noqa: ARG002
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Response:
        """Send a request and wait for the answer. Raises httpx's errors, TimeoutError and AnswerError."""
        url = request.url or ""
        if url.startswith("https:"):
            self._tls()  # reads files, and so does not belong into the event loop
        response = _BoundedResponse(self._limits.json)
        response.status_code, body = asyncio.run_coroutine_threadsafe(self._fetch(url), self._loop).result()
        response.raw = BytesIO(body)
        response.request, response.url = request, url
        return response

    def close(self) -> None:
        """Cancel the request under way and refuse later ones. Call it in the event loop."""
        self._is_closed = True
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self, url: str) -> tuple[int, bytes]:
        if self._is_closed:
            raise AnswerError("the question was cancelled")
        self._fetching = asyncio.current_task()
        limit_s = self._limits.seconds
        try:
            async with (
                asyncio.timeout(limit_s),
                httpx.AsyncClient(transport=Transport(tls=self._tls), timeout=limit_s, trust_env=False) as client,
                client.stream("GET", url, headers=_HEADERS) as response,
            ):
                if response.next_request is not None:
                    raise AnswerError(f"HTTP {response.status_code}{_redirect(response.next_request.url)}")
                return response.status_code, await self._body(response)
        except (TimeoutError, httpx.TimeoutException):
            raise TimeoutError(f"no complete answer within {limit_s:g} s") from None

    async def _body(self, response: httpx.Response) -> bytes:
        is_error = response.status_code != _OK
        most = _MAX_ERROR_BYTES if is_error else self._limits.json.max_bytes
        body = bytearray()
        async for data in response.aiter_raw():
            body += data
            if len(body) > most:
                if is_error:
                    break
                raise ForeignJsonError(f"is larger than {size_text(most)}")
        return bytes(body)


class _BoundedResponse(Response):
    """A response with JSON that is read within limits."""

    def __init__(self, limits: JsonLimits) -> None:
        super().__init__()
        self._limits = limits

    def json(self, **_: Any) -> Any:  # noqa: ANN401 - as in requests
        """Return the document. Raises ForeignJsonError, and AnswerError if it says that a part is missing."""
        document = read_json(self.content, self._limits)
        # Thanos and others answer like this while a store does not: an alert that fires may be missing.
        if isinstance(document, dict) and (warnings := document.get("warnings")):
            raise AnswerError(f"the answer is partial: {one_line(str(warnings))}")
        return document


def _redirect(to: httpx.URL) -> str:
    """Describe the destination without what may be secret in it."""
    origin = one_line(str(to.copy_with(userinfo=b"", path="/", query=None, fragment=None)), 100)
    return f", a redirect to {origin}, which is not followed: fix prometheus.url"

"""The adapter under prometheus-api-client's session: its requests are sent by the event loop, within limits.

The package sends with requests, which limits neither the time nor the size of a whole answer, follows redirects, takes
proxies and credentials from the environment, and blocks a thread that cannot be cancelled. Here the thread only waits
for a coroutine, which ends at its deadline, and at once when the question is cancelled.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import httpx
from prometheus_api_client import PrometheusConnect
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from probe.client.secrets import is_sendable
from probe.client.tls_files import client_context
from probe.client.transport import Transport
from probe.config.prometheus import PrometheusConfig
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json, size_text
from probe.core.text import one_line
from probe.prometheus.refusals import SET, is_page, of_error, of_status

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


class RefusalError(AnswerError):
    """A question that is refused, by the answer or before it is sent. The message has the fix."""


def connect(config: PrometheusConfig, limits: AnswerLimits) -> PrometheusConnect:
    """Return the package's client for a thread to use. Call it in the event loop, which will send the requests.

    Close it there, too: that cancels the request under way. Raises RefusalError for credentials that cannot be sent.
    """
    headers, auth = _credentials(config)
    session = Session()
    session.trust_env = False
    session.headers.clear()
    session.verify = (str(config.ca_file) if config.ca_file else True) if config.verify else False
    if config.cert_file is not None:
        session.cert = (str(config.cert_file), str(config.key_file)) if config.key_file else str(config.cert_file)
    connection = PrometheusConnect(url=config.url, headers=headers, auth=auth, session=session)
    session.adapters.clear()
    adapter = LoopAdapter(asyncio.get_running_loop(), limits, has_credentials=config.has_credentials())
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return connection


def _credentials(config: PrometheusConfig) -> tuple[dict[str, str], tuple[bytes, bytes] | None]:
    """Return the headers and the login of a question. Raises RefusalError."""
    try:
        headers = config.sent_headers()
        auth = config.basic_auth.login() if config.basic_auth is not None else None
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not text"
        file = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise RefusalError(f"a secret of prometheus cannot be read ({file}{reason}); create the file again") from None
    for name, value in headers.items():
        if not is_sendable(value) or value in {"", "Bearer "}:
            what = "the bearer token" if name == "Authorization" else f"the value of the header {name}"
            raise RefusalError(f"{what} is empty, or has characters that a header cannot carry; correct it")
    return headers, auth


class LoopAdapter(BaseAdapter):
    """Sends requests of other threads through an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: AnswerLimits, *, has_credentials: bool = False) -> None:
        super().__init__()
        self._loop, self._limits, self._has_credentials = loop, limits, has_credentials
        self._fetching: asyncio.Task[Any] | None = None
        self._is_closed = False

    def send(  # noqa: PLR0917 - the signature of requests
        self,
        request: PreparedRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002
        timeout: object = None,  # noqa: ARG002
        verify: bool | str = True,  # noqa: FBT001, FBT002
        cert: str | tuple[str, str] | None = None,
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Response:
        """Send a request and wait for the answer. Raises httpx's errors, TimeoutError and AnswerError."""
        url = request.url or ""
        cert_file, key_file = cert if isinstance(cert, tuple) else (cert, None)
        ca_file = verify if isinstance(verify, str) else None
        tls = partial(client_context, ca_file, cert_file, key_file, verify=verify is not False)
        if url.startswith("https:"):
            tls()  # reads files, and so does not belong into the event loop
        response = _BoundedResponse(self._limits.json)
        headers = {**{name: str(value) for name, value in request.headers.items()}, **_HEADERS}
        fetching = self._fetch(url, headers, tls, has_certificate=cert is not None)
        response.status_code, body = asyncio.run_coroutine_threadsafe(fetching, self._loop).result()
        response.raw = BytesIO(body)
        response.request, response.url = request, url
        return response

    def close(self) -> None:
        """Cancel the request under way and refuse later ones. Call it in the event loop."""
        self._is_closed = True
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(
        self, url: str, headers: Mapping[str, str], tls: Callable[[], ssl.SSLContext], *, has_certificate: bool
    ) -> tuple[int, bytes]:
        if self._is_closed:
            raise AnswerError("the question was cancelled")
        self._fetching = asyncio.current_task()
        limit_s = self._limits.seconds
        try:
            async with (
                asyncio.timeout(limit_s),
                httpx.AsyncClient(transport=Transport(tls=tls), timeout=limit_s, trust_env=False) as client,
                client.stream("GET", url, headers=dict(headers)) as response,
            ):
                if response.next_request is not None:
                    raise AnswerError(f"HTTP {response.status_code}{_redirect(response.next_request.url)}")
                body = await self._body(response)
        except (TimeoutError, httpx.TimeoutException):
            raise TimeoutError(f"no complete answer within {limit_s:g} s") from None
        except (httpx.TransportError, OSError) as error:
            found = of_error(str(error), is_plain=url.startswith("http:"), has_certificate=has_certificate)
            if found is None:
                raise
            raise RefusalError(found) from None
        status, is_known = response.status_code, self._has_credentials
        if status != _OK and (
            why := of_status(status, body, has_credentials=is_known, has_certificate=has_certificate)
        ):
            raise RefusalError(why)
        return response.status_code, body

    async def _body(self, response: httpx.Response) -> bytes:
        is_error = response.status_code != _OK
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            if is_error:
                return b""  # the status says enough
            raise RefusalError(f"the answer is compressed ({one_line(encoding, 20)}), unasked; fix the proxy before it")
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
        if is_page(self.content):
            raise RefusalError(
                f"the answer is not JSON but a web page, such as of a login; {SET}, or fix prometheus.url"
            )
        document = read_json(self.content, self._limits)
        if isinstance(document, dict):
            _check_complete(document)
        return document


def _check_complete(document: dict[str, Any]) -> None:
    """Raise AnswerError for an answer that lacks a part: an alert that fires may be missing.

    `infos` are remarks on the query itself, and say nothing of the data.
    """
    if (status := document.get("status", "success")) != "success":
        raise AnswerError(f"the answer has status {one_line(str(status), 20)}: {one_line(str(document.get('error')))}")
    if warnings := document.get("warnings"):  # Thanos, Mimir and Promxy, while a store does not answer
        raise AnswerError(f"the answer is partial: {one_line(str(warnings))}")
    if document.get("isPartial") or document.get("partial"):  # VictoriaMetrics, while a storage node does not
        raise AnswerError("the answer is partial: a store behind Prometheus does not answer")


def _redirect(to: httpx.URL) -> str:
    """Describe the destination without what may be secret in it."""
    origin = one_line(str(to.copy_with(userinfo=b"", path="/", query=None, fragment=None)), 100)
    return f", a redirect to {origin}, which is not followed: fix prometheus.url, or {SET} if that is a login"

"""A transport for proxies and HTTP/2, which transport.py does not support: httpcore's, as httpx's own is.

Each request in flight has a connection of its own, over HTTP/2 too. httpcore gives a request over HTTP/2 up on its own
side alone, without RST_STREAM, so the server would go on to answer requests that a guard has stopped. Here a request
that is cancelled or late is reset and its connection closed, and the server, or the proxy, stops at once. An idle
connection serves the next request.

It times streams less exactly than transport.py, which explains why. httpcore has one time limit for all reads; here
the first read has a limit of its own, as there.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from struct import Struct
from time import perf_counter_ns
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - anyio would import it during the first request
import httpcore
import httpx
import structlog

from probe.client.connection import IDLE_RACE_NS, discard_unsent
from probe.client.goaway_filter import GoawayFilter
from probe.core.text import one_line

_log = structlog.get_logger()

_MAX_IDLE = 1024  # as many as the largest step has in flight
# A frame of HTTP/2 (RFC 9113, sections 4.1 and 6.4): length 4 in three bytes, type 3, no flags, stream, error code.
_RST_STREAM = Struct(">BHBBII")
_CANCEL = 8
_RESET_S = 0.05  # where the server reads nothing, closing says the same


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a server. `make` makes a connection's pool.

    `url` is where the connection itself goes, to the server or to the proxy, with the context `tls` if it is https.
    """

    make: Callable[..., httpcore.AsyncConnectionPool]
    url: httpx.URL
    tls: ssl.SSLContext | None = None
    unix_socket: str | None = None


class HttpxTransport(httpx.AsyncBaseTransport):
    """Connections that are kept for `keepalive_s` after their last use.

    `read` reads certificates and credentials, and returns the route with them. `version` returns another value when
    these files have changed; new connections then use the new ones, or the previous ones where they cannot be used.
    """

    def __init__(self, read: Callable[[], Route], version: Callable[[], object], keepalive_s: float) -> None:
        self._read = read
        self._version = version
        self._keepalive_s = keepalive_s
        self._route: Route | None = None
        self._made_of: object = None
        self._all: set[_Line] = set()
        self._idle: deque[_Line] = deque()  # in the order of their last use
        self._stale: list[_Line] = []  # to be closed
        self._closed = False
        self.prepare()

    def prepare(self, _: str = "") -> None:
        """Read new files now and not during a request, which will report what is wrong with them."""
        with suppress(OSError, ValueError):
            self._current()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Return the response once its head has arrived. Raises httpx's errors and those of `read`.

        A request on an idle connection that closes promptly and without a byte is sent once more: see IDLE_RACE_NS.
        """
        if self._closed:
            raise httpx.ConnectError("the client is closed", request=request)
        idle = self._take_idle()
        if idle is not None:
            began_ns = perf_counter_ns()
            try:
                return await self._exchange(idle, request)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                is_race = not idle.heard and perf_counter_ns() - began_ns <= IDLE_RACE_NS
                if not (is_race and isinstance(request.stream, httpx.ByteStream)):
                    raise
        return await self._exchange(self._made(), request)

    async def connect_ahead(self, _: httpx.URL, count: int, connect_s: float = 5.0) -> None:
        """Open connections until `count` are idle. Errors are ignored here: the requests will report them."""

        async def open_one() -> None:
            line = self._made()
            try:
                await line.open(self._current(), connect_s)
            except BaseException:
                await self._drop(line)
                raise
            self._keep(line)

        lacking = count - sum(line.is_usable for line in self._idle)
        await asyncio.gather(*(open_one() for _ in range(lacking)), return_exceptions=True)

    async def aclose(self) -> None:
        self._closed = True
        await asyncio.gather(*(self._drop(line) for line in tuple(self._all)))

    async def _exchange(self, line: "_Line", request: httpx.Request) -> httpx.Response:
        given = request.extensions.get("timeout", {})
        limits = {**given, "read": given.get("first_byte", given.get("read"))}
        asked = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions={**request.extensions, "timeout": limits, "trace": line.note},
        )
        line.heard = False
        try:
            with _errors_of_httpx(request):
                response = await line.pool.handle_async_request(asked)
        except BaseException:
            await self._drop(line)
            raise
        limits["read"] = given.get("read")  # httpcore looks it up before every read
        body = _Body(response, request, lambda is_whole: self._release(line, is_whole=is_whole))
        return httpx.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)

    async def _release(self, line: "_Line", *, is_whole: bool) -> None:
        """Keep a connection whose response has ended, and close what is kept in vain: not while a request is timed."""
        if is_whole and line.is_usable and not self._closed and len(self._idle) < _MAX_IDLE:
            self._keep(line)
        else:
            await self._drop(line)
        oldest_s = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._stale.append(self._idle.popleft())
        while self._stale:
            await self._drop(self._stale.pop())

    def _keep(self, line: "_Line") -> None:
        line.idle_since_s, line.http2_stream = asyncio.get_running_loop().time(), None
        self._idle.append(line)

    def _made(self) -> "_Line":
        line = _Line(self._current().make, self._made_of)
        self._all.add(line)
        return line

    def _take_idle(self) -> "_Line | None":
        """Return the connection used last that is neither too old, nor closed, nor made with previous files."""
        version = self._version()
        oldest_s = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle:
            line = self._idle.pop()
            if line.idle_since_s > oldest_s and line.made_of == version and line.is_usable:
                return line
            self._stale.append(line)
        return None

    async def _drop(self, line: "_Line") -> None:
        self._all.discard(line)
        await line.close()

    def _current(self) -> Route:
        version = self._version()
        if self._route is None:
            self._route, self._made_of = self._read(), version
        elif version != self._made_of:
            self._made_of = version
            try:
                self._route = self._read()
            except (OSError, ValueError) as error:
                words = "changed credentials cannot be used, the previous ones stay in use"
                _log.error(words, detail=one_line(str(error)))
        return self._route


class _Line:
    """A connection, and the pool of httpcore that it is alone in."""

    def __init__(self, make: Callable[..., httpcore.AsyncConnectionPool], made_of: object) -> None:
        self.made_of = made_of
        self.heard = False  # a byte since the current request began
        self.idle_since_s = 0.0
        self.is_closed = False
        self.http2_stream: int | None = None  # of the current request
        self._next_stream: int | None = None
        self.streams: list[_Stream] = []  # as connected
        self.top: httpcore.AsyncNetworkStream | None = None  # the same, or TLS over it
        self.goaways: GoawayFilter | None = None  # over HTTP/2
        self.ahead: _Stream | None = None  # connected before httpcore asks for it
        self._backend = _Backend(self)
        self.pool = make(network_backend=self._backend)

    async def open(self, route: Route, connect_s: float) -> None:
        """Connect now, as httpcore will ask for it. Raises httpcore's errors."""
        if route.unix_socket is not None:
            stream = await self._backend.connect_unix_socket(route.unix_socket, connect_s)
        else:
            port = route.url.port or (443 if route.tls is not None else 80)
            stream = await self._backend.connect_tcp(route.url.raw_host.decode("ascii"), port, connect_s)
        if route.tls is not None:
            stream.secured = await stream.start_tls(route.tls, route.url.raw_host.decode("ascii"), connect_s)
        self.ahead = stream

    @property
    def is_usable(self) -> bool:
        if self.goaways is not None and self.goaways.is_leaving:
            return False
        return self.ahead is not None or any(
            made.is_available() and not made.has_expired() for made in self.pool.connections
        )

    async def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the current request's stream once the server is told of it, as httpcore's extension `trace`."""
        if event == "http2.send_request_headers.started":
            self._next_stream = info["stream_id"]
        elif event == "http2.send_request_headers.complete":
            self.http2_stream = self._next_stream

    async def close(self) -> None:
        """Reset the current request, and close at once, in any state."""
        self.is_closed = True
        for stream in self.streams:
            stream.discard()
        with suppress(Exception):
            if self.http2_stream is not None and self.top is not None:
                await self.top.write(_RST_STREAM.pack(0, 4, 3, 0, self.http2_stream, _CANCEL), _RESET_S)
        for stream in self.streams:
            with suppress(Exception):
                await stream.network.aclose()
        with suppress(Exception):  # what httpcore makes of its connection's end
            await self.pool.aclose()


class _Backend(httpcore.AsyncNetworkBackend):
    """httpcore's network for one line: it knows the line's streams, and whether the other side has said anything."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> "_Stream":
        if (ahead := self._connected_ahead()) is not None:
            return ahead
        return await self._taken(await self._network.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> "_Stream":
        if (ahead := self._connected_ahead()) is not None:
            return ahead
        return await self._taken(await self._network.connect_unix_socket(path, timeout, socket_options))

    def _connected_ahead(self) -> "_Stream | None":
        ahead, self._line.ahead = self._line.ahead, None
        return ahead

    async def _taken(self, made: httpcore.AsyncNetworkStream) -> "_Stream":
        if self._line.is_closed:  # meanwhile
            await made.aclose()
            raise httpcore.ConnectError("the client is closed")
        stream = _Stream(made, self._line)
        self._line.streams.append(stream)
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """A stream, plain or TLS. It notes on its line that bytes have come; closing it takes back what was not sent."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, line: _Line) -> None:
        self._line = line
        self.network = stream
        self.secured: _Stream | None = None  # TLS over it, made ahead
        line.top = stream
        tls = stream.get_extra_info("ssl_object")
        is_http2 = tls is not None and tls.selected_alpn_protocol() == "h2"
        self._goaways = line.goaways = GoawayFilter() if is_http2 else None
        self.write = stream.write  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        while True:
            data = await self.network.read(max_bytes, timeout)
            self._line.heard = self._line.heard or bool(data)
            passed = self._goaways.passed(data, self._line.http2_stream) if self._goaways is not None else data
            if passed or not data:
                return passed

    async def aclose(self) -> None:
        self.discard()
        await self.network.aclose()

    def discard(self) -> None:
        with suppress(Exception):  # its socket may be gone
            discard_unsent(self.get_extra_info("socket"))

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
    ) -> "_Stream":
        if self.secured is not None:
            return self.secured
        return _Stream(await self.network.start_tls(ssl_context, server_hostname, timeout), self._line)


class _Body(httpx.AsyncByteStream):
    """A response's body. Closing it before its end closes the connection; `release` is called when it is closed."""

    def __init__(self, response: httpcore.Response, request: httpx.Request, release: Callable[[bool], Any]) -> None:
        self._stream: Any = response.stream
        self._request = request
        self._release = release
        self._is_whole = False
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx(self._request):
            async for part in self._stream:
                yield part
        self._is_whole = True

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._is_whole:
            with _errors_of_httpx(self._request):
                await self._stream.aclose()
        await self._release(self._is_whole)


@contextmanager
def _errors_of_httpx(request: httpx.Request) -> Iterator[None]:
    """Raise httpx's error of the same name for httpcore's; what h2 finds wrong is the other side's error."""
    try:
        yield
    except (OSError, ValueError, httpx.HTTPError):
        raise
    except Exception as error:
        kind = getattr(httpx, type(error).__name__, httpx.RemoteProtocolError)
        raise kind(_http2_words(error) or str(error) or type(error).__name__, request=request) from error


def _http2_words(error: Exception) -> str:
    """Return what a server said by which it ended a stream or connection of HTTP/2; "" of any other error."""
    event = error.args[0] if error.args else None
    code = getattr(event, "error_code", None)
    if code is None:
        return ""
    what = "reset the HTTP/2 stream" if hasattr(event, "stream_id") else "ended the HTTP/2 connection"
    said = (getattr(event, "additional_data", None) or b"").decode("utf-8", "replace")
    return f"the server {what}: {getattr(code, 'name', code)}" + (f", {said!r}" if said else "")

"""A transport for httpx: HTTP/1.1 over asyncio's protocols, which stamps the bytes of streams as they arrive.

httpx's own transport searches its pool at every open and close, and runs several awaits for each read; with 64
streams it is late by hundreds of milliseconds. This one keeps its idle connections in a list, stamps in
`data_received` (connection.py), and for a request with a ResponseBuffer in its extensions returns only when
the response is complete. Without one it behaves as any httpx transport. It supports neither proxies nor HTTP/2.

    request.extensions["received"]  ResponseBuffer: filled as bytes arrive; the response then has no body of its own
    request.extensions["wire"]      the result of `wire`, if it was computed beforehand
    request.extensions["timeout"]   httpx's connect, read (the longest time between two reads) and write (until the
                                    next part of a streamed body is taken), and first_byte
"""

import asyncio
import encodings.idna  # noqa: F401 - Python would import it during the first lookup or handshake
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import httpx

from probe.client.connection import Connection, StaleConnectionError, StreamedBody, send_body
from probe.client.happy_eyeballs import connect
from probe.client.loop_lateness import LoopLateness
from probe.client.response_buffer import UNLIMITED, ResponseBuffer

_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
Origin = tuple[str, str, int]
Wire = tuple[Origin, bytes]


def wire(request: httpx.Request) -> Wire:
    """Return a request's origin and its bytes: the head, and the body unless it is streamed.

    To save time when sending, put the result into the request's extensions as "wire" beforehand. Raises
    httpx.LocalProtocolError for a header that would end its line, httpx.UnsupportedProtocol and httpx.InvalidURL.
    """
    origin = origin_of(request.url)
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    head = b"\r\n".join((*lines, b"", b""))
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header holds a line break", request=request)
    return origin, head + request.read() if isinstance(request.stream, httpx.ByteStream) else head


def origin_of(url: httpx.URL) -> Origin:
    """Return the origin. Raises httpx.UnsupportedProtocol for other schemes, httpx.InvalidURL for a bad port."""
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme or 'no scheme'}: expected http or https")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port <= _MAX_PORT:  # uvloop would take it modulo 65536
        raise httpx.InvalidURL(f"no such port: {port}")
    return url.scheme, url.raw_host.decode("ascii"), port  # raw: Python's own IDNA is an older one


_MAX_IDLE = 1024  # as many as the largest step has in flight
_NEVER = float("inf")


class LookupTimeoutError(httpx.ConnectTimeout):
    """The time for the connection ended while its name was looked up: the DNS is slow, not the server."""


class Transport(httpx.AsyncBaseTransport):
    """Connections to any number of origins, kept for `keepalive_s` after their last use.

    `tls` returns the context of a new connection. `unix_socket`: the socket to connect to instead of the URL's host.
    Used from one event loop only.
    """

    def __init__(
        self, *, tls: Callable[[], ssl.SSLContext], keepalive_s: float = 4.0, unix_socket: str | None = None
    ) -> None:
        self._tls = tls
        self._keepalive_s = keepalive_s
        self._unix_socket = unix_socket
        self.lateness = LoopLateness()
        self._all: set[Connection] = set()
        self._idle: dict[Origin, deque[Connection]] = {}  # in the order of their last use
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. Requests in flight fail, and so do later ones."""
        self._closed = True
        connections = tuple(self._all)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.closed

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the response. Raises httpx's errors. Cancellation closes the connection at once."""
        origin, data = request.extensions.get("wire") or wire(request)
        timeouts: dict[str, Any] = request.extensions.get("timeout", {})
        reused = self._take_idle(origin)
        if reused is not None:
            try:
                return await self._exchange(reused, request, data, timeouts)
            except StaleConnectionError:
                if not isinstance(request.stream, httpx.ByteStream):
                    raise  # its body has been read, and cannot be sent again
        made = await self._connect(origin, request, _limit(timeouts.get("connect")))
        return await self._exchange(made, request, data, timeouts)

    def prepare(self, url: str) -> None:
        """Read new TLS files for `url` now and not during a request, which will report what is wrong with them."""
        if url.startswith("https:"):
            with suppress(OSError, ValueError):
                self._tls()

    async def connect_ahead(self, url: httpx.URL, count: int, connect_s: float = 5.0) -> None:
        """Open connections until `count` are idle. Errors are ignored here: the requests will report them."""
        origin = origin_of(url)
        request = httpx.Request("GET", url)
        idle = sum(connection.is_usable for connection in self._fresh(origin))

        async def open_one() -> None:
            connection = await self._connect(origin, request, connect_s)
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._keep(origin, connection)

        await asyncio.gather(*(open_one() for _ in range(count - idle)), return_exceptions=True)

    def _fresh(self, origin: Origin) -> deque[Connection]:
        """Return the idle connections, after removing those that are too old or closed."""
        idle = self._idle.setdefault(origin, deque())
        oldest_s = asyncio.get_running_loop().time() - self._keepalive_s
        while idle and not (idle[0].is_usable and idle[0].idle_since_s > oldest_s):
            idle.popleft().abort()
        return idle

    def _take_idle(self, origin: Origin) -> Connection | None:
        """Return the connection used last, the one most likely to be alive; None if none is idle."""
        idle = self._fresh(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    def _keep(self, origin: Origin, connection: Connection) -> None:
        idle = self._fresh(origin)
        if len(idle) < _MAX_IDLE and not self._closed:
            idle.append(connection)
        else:
            connection.abort()

    async def _connect(self, origin: Origin, request: httpx.Request, connect_s: float) -> Connection:
        if self._closed:
            raise httpx.ConnectError("the client is closed")
        loop = asyncio.get_running_loop()
        scheme, host, port = origin
        name = request.extensions.get("sni_hostname") or host
        tls: dict[str, Any] = {"ssl": self._tls(), "server_hostname": name} if scheme == "https" else {}

        def made() -> Connection:
            return Connection(self.lateness, lambda free: self._keep(origin, free))

        is_resolved = False
        try:
            async with asyncio.timeout(connect_s if connect_s < _NEVER else None):
                if self._unix_socket is not None:
                    _, connection = await loop.create_unix_connection(made, self._unix_socket, **tls)
                else:
                    addresses = await _lookup(host, port)
                    is_resolved = True
                    connection = await _open(made, addresses, port, tls)
        except TimeoutError:
            if self._unix_socket is None and not is_resolved:
                words = f"the name {host} was not resolved within {connect_s:g} s"
                raise LookupTimeoutError(words, request=request) from None
            raise httpx.ConnectTimeout(f"no connection within {connect_s:g} s", request=request) from None
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, a host that is no name a ValueError
            message = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise httpx.ConnectError(message, request=request) from error
        self._all.add(connection)
        connection.closed.add_done_callback(lambda _: self._all.discard(connection))
        if self._is_closed():  # meanwhile
            connection.abort()
            raise httpx.ConnectError("the client is closed", request=request)
        return connection

    def _is_closed(self) -> bool:
        return self._closed

    async def _exchange(
        self, connection: Connection, request: httpx.Request, data: bytes, timeouts: dict[str, Any]
    ) -> httpx.Response:
        received = request.extensions.get("received")
        answer: ResponseBuffer = received if received is not None else ResponseBuffer(UNLIMITED)
        streamed = not isinstance(request.stream, httpx.ByteStream)
        read_s = _limit(timeouts.get("read"))
        first_s = _limit(timeouts["first_byte"]) if "first_byte" in timeouts else read_s
        try:
            connection.start(
                data,
                answer,
                whole=received is not None,
                bodiless=request.method == "HEAD",
                last=not streamed,
                limits_s=(first_s, read_s),
            )
            if streamed:
                await send_body(connection, request, _limit(timeouts.get("write")))
            await connection.wait()
        except BaseException:  # cancelled too: half an exchange is on the connection
            connection.drop(answer)
            raise
        if received is not None:
            return httpx.Response(answer.status or 0, stream=_NOTHING)
        return httpx.Response(answer.status or 0, headers=answer.headers, stream=StreamedBody(connection, answer))


async def _lookup(host: str, port: int) -> list[str]:
    """Return the addresses of a host, by the loop's `getaddrinfo`, which uvloop's create_connection would not use."""
    try:
        ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]
    return [host]


async def _open(made: Callable[[], Connection], addresses: list[str], port: int, tls: dict[str, Any]) -> Connection:
    """Connect to the first address that accepts; to another one if it breaks the TLS handshake off. Raises OSError."""
    loop = asyncio.get_running_loop()
    left = list(addresses)
    while True:
        own, address = await connect(left, port)
        try:
            _, connection = await loop.create_connection(made, sock=own, **tls)
        except ssl.SSLError:
            raise
        except OSError:
            left.remove(address)
            if not left:
                raise
        else:
            return connection


_NOTHING = httpx.ByteStream(b"")


def _limit(seconds: float | None) -> float:
    return _NEVER if seconds is None else seconds

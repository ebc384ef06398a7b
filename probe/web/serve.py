"""Serve an ASGI app on a socket, with the TLS and passwords of a web configuration file and limits for connections.

uvicorn limits neither the size and duration of a request's head, nor how long a response waits for its reader, nor what
one client may hold; its limit_concurrency refuses newcomers instead of what is idle. Without descriptors or memory the
monitor would report failing servers.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from probe.core.errors import ConfigError
from probe.web.gate import LOOK_S, AccessGate
from probe.web.headers import with_headers
from probe.web.places import Places, client_of

HEAD_S = 10.0  # from connecting, or from a request's first byte, to the end of its head
# A reader takes a part of the response (in_parts) within this time, which is 5 kB/s, ...
PART_S = 10.0
# ... and the whole response within this one. /probe answers before.
RESPONSE_S = 60.0
MAX_CONNECTIONS = 256
# Responses that wait for their readers. Each may hold a whole page: 6 MB with 200 targets.
MAX_WAITING = 24
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BUFFERED_BYTES = 64 * 1024
_log = structlog.get_logger()
_CLOSE_S = 2
_HANDSHAKE_S = 10.0
_ACCEPT_AGAIN_S = 1.0
_BACKLOG = 1024
_PART_BYTES = 64 * 1024


@dataclass(frozen=True)
class Limits:
    """The limits that all connections share."""

    connections: "Places[Connection]"
    waiting: "Places[Connection]" = field(default_factory=lambda: Places(MAX_WAITING))


class Connection(HttpToolsProtocol):
    """A connection from its accept on. It is aborted at each limit, and unless the gate admits its certificate."""

    def __init__(
        self, server: uvicorn.Server, gate: AccessGate, limits: Limits, accepted: socket.socket, address: str
    ) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self.tls: ssl.SSLContext | None = gate.tls
        self._gate = gate
        self._limits = limits
        self._socket = accepted
        self._client = client_of(address)
        self._is_open = self._is_barred = False
        self._head_bytes: int | None = 0  # None: not in a head
        self._ends: asyncio.TimerHandle | None = None
        self._part_ends: asyncio.TimerHandle | None = None
        self._take(limits.connections)

    def end(self) -> None:
        """Close the connection at once, also before the end of its TLS handshake."""
        self._is_barred = True
        if self._is_open:
            self.transport.abort()
            return
        with suppress(OSError):  # in the TLS handshake
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Free what a closed connection holds."""
        for timer in (self._ends, self._part_ends):
            if timer is not None:
                timer.cancel()
        self._limits.connections.leave(self)
        self._limits.waiting.leave(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_open = True
        transport.set_write_buffer_limits(high=_MAX_BUFFERED_BYTES)
        tls = transport.get_extra_info("ssl_object")
        # A handshake may start before a change of the configuration and end after it.
        if (
            self._is_barred
            or self.tls is not self._gate.tls
            or not self._gate.admits(tls.getpeercert() if tls is not None else None)
        ):
            self.end()
        else:
            self._within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.end()
        if not self._is_barred:
            super().data_received(data)

    def on_message_begin(self) -> None:
        if self._head_bytes is None:  # another request on the same connection
            self._head_bytes = 0
            self._within(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._within(RESPONSE_S)
        self._take(self._limits.connections)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._head_bytes is None:
            # uvicorn closes an idle connection, and one after its last response. Closing waits for the reader.
            self._within(self.timeout_keep_alive + PART_S if is_last else RESPONSE_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._part_ends = self.loop.call_later(PART_S, self.end)
        self._take(self._limits.waiting)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._part_ends is not None:
            self._part_ends.cancel()
        self._limits.waiting.leave(self)

    def _within(self, seconds: float) -> None:
        if self._ends is not None:
            self._ends.cancel()
        self._ends = self.loop.call_later(seconds, self.end)

    def _take(self, places: "Places[Connection]") -> None:
        displaced = places.take(self, self._client)
        if displaced is not None:
            displaced.end()


@asynccontextmanager
async def serve(
    app: ASGIApp, host: str, port: int, web_config_file: Path | None = None, *, look_s: float = LOOK_S
) -> AsyncIterator[str]:
    """Serve the app while the block runs; the value is its address. Port 0 takes a free port.

    `web_config_file`: TLS and passwords (config/web_file.py), checked every `look_s` seconds. Raises ConfigError if the
    address is in use or not available, or if the file is invalid.
    """
    gate = AccessGate(app, web_config_file)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.settimeout(0)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # now, before uvicorn starts, because the address is returned at once
    except (OSError, OverflowError, ValueError) as error:  # address in use or not local; invalid port; invalid host
        listener.close()
        words = getattr(error, "strerror", None) or error
        raise ConfigError(f"listen: {host}:{port} cannot listen on this address ({words}); choose another") from None
    server = _Server(gate, listener)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(gate.watch(server.renew, look_s))]
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    try:
        yield f"{'http' if gate.tls is None else 'https'}://{shown}:{listener.getsockname()[1]}"
    finally:
        tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[1]
        server.should_exit = True
        await tasks[0]
        gate.close()
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because a signal must stop load before it stops the pages, and with its own
    accept: a connection counts from there, while uvicorn, asyncio's servers too, first see one after its TLS handshake.
    """

    def __init__(self, gate: AccessGate, listener: socket.socket) -> None:
        self._gate = gate
        self._listener = listener
        self._opening: set[asyncio.Task[None]] = set()
        self._can_accept = True
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Three quarters of the descriptors remain for canaries, scrapes and load.
        most = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(soft // 4, 1))
        self._limits = Limits(Places(most))
        config = uvicorn.Config(
            with_headers(in_parts(gate)),
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
            server_header=False,
            proxy_headers=False,  # X-Forwarded-For would let strangers choose the address that limits count by
        )
        super().__init__(config)
        self.servers: list[asyncio.Server] = []  # uvicorn closes these

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - there is one
        await self.lifespan.startup()
        self._listen()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        for task in tuple(self._opening):
            task.cancel()
        await super().shutdown(sockets)

    def renew(self) -> None:
        """Close open connections after their current request. New ones get the gate's current TLS."""
        for one in list(self.server_state.connections):
            one.shutdown()

    def _listen(self) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept one connection; the event loop calls again if there are more, after its other work."""
        loop = asyncio.get_running_loop()
        try:
            accepted, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors or memory; the kernel queues the connections meanwhile
            if self._can_accept:
                _log.warning("connections to the pages cannot be accepted, it is tried again", detail=str(error))
            self._can_accept = False
            loop.remove_reader(self._listener)
            loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            return
        self._can_accept = True
        accepted.settimeout(0)
        connection = Connection(self, self._gate, self._limits, accepted, address[0])
        task = loop.create_task(_open(connection, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


async def _open(connection: Connection, accepted: socket.socket) -> None:
    """Hand an accepted socket to its connection, after the TLS handshake if there is one."""
    tls: dict[str, Any] = {}
    if connection.tls is not None:
        tls = {"ssl": connection.tls, "ssl_handshake_timeout": _HANDSHAKE_S}
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **tls)
    except (OSError, asyncio.CancelledError):  # no TLS, too late, or displaced
        connection.forget()


def in_parts(app: ASGIApp) -> ASGIApp:
    """Return the app with large bodies sent in parts, because uvicorn waits for the reader only between parts.

    As a whole, TLS would encrypt a page for each reader, and a plain connection would hold it without limit.
    """

    async def parted(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body = message.get("body", b"")
            *earlier, last = range(0, len(body), _PART_BYTES) or (0,)
            for start in earlier:
                part = body[start : start + _PART_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({**message, "body": body[last:]} if earlier else message)

        await app(scope, receive, send_parts)

    return parted

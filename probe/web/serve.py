"""Serve an ASGI app on a socket, with the TLS and passwords of a web configuration file."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from probe.core.errors import ConfigError
from probe.web.gate import LOOK_S, AccessGate
from probe.web.headers import with_headers

_CLOSE_S = 2
_HANDSHAKE_S = _HEAD_S = 10.0
_MOST_CONNECTIONS = 256
_MOST_HEAD_BYTES = 64 * 1024


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
    try:
        listener.bind((host, port))
        listener.listen()  # now, before uvicorn starts, because the address is returned at once
    except (OSError, OverflowError, ValueError) as error:  # address in use or not local; invalid port; invalid host
        listener.close()
        words = getattr(error, "strerror", None) or error
        raise ConfigError(f"listen: {host}:{port} cannot listen on this address ({words}); choose another") from None
    server = _Server(gate, listener)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(gate.watch(server.listen, look_s))]
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
    """uvicorn without its signal handlers: a signal must stop load before it stops the pages."""

    def __init__(self, gate: AccessGate, listener: socket.socket) -> None:
        self._gate = gate
        self._listener = listener
        config = uvicorn.Config(
            with_headers(gate),
            http=_protocol(gate),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
            server_header=False,
        )
        super().__init__(config)
        self.servers: list[asyncio.Server] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - there is one
        await self.lifespan.startup()
        await self.listen()
        self.started = True

    async def listen(self) -> None:
        """Accept connections with the gate's current TLS. Open connections are closed after their current request."""
        if self.should_exit or not hasattr(self, "lifespan"):
            return

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        before, tls = self.servers, self._gate.tls
        # Each server gets a copy of the socket, whose queue holds connections in between.
        for server in before:
            server.close()
        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=self._listener.dup(),
                ssl=tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=_HANDSHAKE_S if tls is not None else None,
            )
        ]
        if before:
            for one in list(self.server_state.connections):
                one.shutdown()


class _Connection(HttpToolsProtocol):
    """A connection that is aborted at once unless the gate admits its certificate.

    Before a password is checked, the number of connections and the size and duration of a request's head are limited.
    uvicorn limits none of them, and without file descriptors or memory the monitor would see failing servers.
    """

    gate: AccessGate
    _head_bytes = 0
    _head_ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        # A handshake may start before a change of the configuration and end after it.
        self._is_barred = (
            (tls.context if tls is not None else None) is not self.gate.tls
            or not self.gate.admits(tls.getpeercert() if tls is not None else None)
            or len(self.connections) > _MOST_CONNECTIONS
        )
        if self._is_barred:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_ends is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._end()
        if not self._is_barred:
            super().data_received(data)

    def on_message_begin(self) -> None:
        if self._head_ends is None:  # another request on the same connection
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_ends = asyncio.get_running_loop().call_later(_HEAD_S, self._end)

    def _head_is_over(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None

    def _end(self) -> None:
        self._is_barred = True
        self._head_is_over()
        self.transport.abort()


def _protocol(gate: AccessGate) -> type[HttpToolsProtocol]:
    """Return the connection class of a gate, which uvicorn instantiates."""
    return type("Connection", (_Connection,), {"gate": gate})

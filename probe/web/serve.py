"""An ASGI app on a socket, for as long as a block runs: behind TLS and passwords where a file asks for them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from probe.errors import ConfigError
from probe.web.gate import LOOK_S, Gate
from probe.web.headers import with_headers

_CLOSE_S = 2
_HANDSHAKE_S = 10.0


@asynccontextmanager
async def serve(
    app: ASGIApp, host: str, port: int, web_config_file: Path | None = None, *, look_s: float = LOOK_S
) -> AsyncIterator[str]:
    """Serves the app while the block runs, and gives its address. Port 0 takes any free one.

    `web_config_file`: TLS and passwords (config.py), looked at every `look_s` seconds. Raises ConfigError where the
    address is taken or not ours, or where the file cannot be used.
    """
    gate = Gate(app, web_config_file)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # now and not when uvicorn gets to it: the address is given at once
    except (OSError, OverflowError, ValueError) as error:  # taken or not ours; no port; no host
        listener.close()
        words = getattr(error, "strerror", None) or error
        raise ConfigError(f"listen: {host}:{port} cannot be listened on ({words}); choose another") from None
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
    """uvicorn, but signals are the composition root's: they must end load before they end pages."""

    def __init__(self, gate: Gate, listener: socket.socket) -> None:
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
        """Accepts connections as the gate wants them now. Those that there are end after the request they are at."""
        if self.should_exit or not hasattr(self, "lifespan"):
            return

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        before, tls = self.servers, self._gate.tls
        # A copy of the socket each: whoever knocks in between waits in its queue.
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


def _protocol(gate: Gate) -> type[HttpToolsProtocol]:
    """HTTP to those whom the gate admits by their certificate; the others' connections end before a word."""

    class Admitted(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            tls = transport.get_extra_info("ssl_object")
            self._barred = not gate.admits(tls.getpeercert() if tls is not None else None)
            if self._barred:
                transport.abort()

        def data_received(self, data: bytes) -> None:
            if not self._barred:
                super().data_received(data)

    return Admitted

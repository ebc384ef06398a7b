"""Serve an ASGI app on a socket, with the TLS and passwords of a web configuration file."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe.core.errors import ConfigError
from probe.web.connection import MAX_CONNECTIONS, Connection, Limits
from probe.web.gate import LOOK_S, AccessGate
from probe.web.headers import with_headers
from probe.web.places import Places

_log = structlog.get_logger()
_CLOSE_S = 2
_HANDSHAKE_S = 10.0
_ACCEPT_AGAIN_S = 1.0
_BACKLOG = 1024
_PART_BYTES = 64 * 1024


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

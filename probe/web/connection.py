"""One connection to the pages: uvicorn's HTTP protocol, with limits.

uvicorn limits neither the size and duration of a request's head, nor how long a response waits for its reader, nor what
one client may hold; its limit_concurrency refuses newcomers instead of what is idle. Without descriptors or memory the
monitor would report failing servers.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from probe.web.gate import AccessGate
from probe.web.places import Places, client_of

HEAD_S = 10.0  # from connecting, or from a request's first byte, to the end of its head
# A reader takes a part of the response (serve.py) within this time, which is 5 kB/s, ...
PART_S = 10.0
# ... and all of it within this one. /probe answers within 30 s.
RESPONSE_S = 60.0
MAX_CONNECTIONS = 256
# Responses that wait for their readers. Each may hold a whole page: 6 MB with 200 targets.
MAX_WAITING = 24
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BUFFERED_BYTES = 64 * 1024


@dataclass(frozen=True)
class Limits:
    """What all connections share."""

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

"""A connection of the client without a network: what the server sends goes in as pieces, what became of it comes out.

Runs the real `Connection` inside an event loop, over a transport that keeps what is written to it and remembers
whether it was closed. Thousands of exchanges a second, and every split of a stream exactly as asked for.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from probe.client.connection import Connection, StreamedBody
from probe.client.loop_lateness import LoopLateness
from probe.client.response_buffer import BodyLimits, ResponseBuffer

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32"
NEVER = (float("inf"), float("inf"))
OPEN, EOF, RESET = "open", "eof", "reset"  # what the server does after its last byte


class MemoryTransport(asyncio.Transport):
    """The loop's side of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closing = False
        self.paused = False
        self.resumed: Callable[[], None] = lambda: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.resumed()


@dataclass
class Wire:
    """One connection, and its ends."""

    connection: Connection
    transport: MemoryTransport
    idle: list[Connection] = field(default_factory=list)
    lost: bool = False

    @property
    def kept(self) -> bool:
        """Whether the client would use it again."""
        return bool(self.idle) and self.connection.is_usable

    def start(self, answer: ResponseBuffer, *, whole: bool = True, bodiless: bool = False, last: bool = True) -> None:
        self.idle.clear()
        self.connection.start(
            b"GET / HTTP/1.1\r\n\r\n", answer, whole=whole, bodiless=bodiless, last=last, limits_s=NEVER
        )

    def feed(self, piece: bytes) -> None:
        """Feed bytes from the server; nothing arrives at a closed end."""
        if piece and not self.transport.closing:
            self.connection.data_received(piece)

    def end(self, how: str) -> None:
        """Return the server's end of the connection, or the client's if the client closed it."""
        if self.lost or (how == OPEN and not self.transport.closing):
            return
        self.lost = True
        error = None
        if not self.transport.closing:
            if how == EOF:
                self.connection.eof_received()
            else:
                error = ConnectionResetError(104, "Connection reset by peer")
            self.transport.closing = True
        self.connection.connection_lost(error)


def wire() -> Wire:
    """Return a new open connection."""
    idle: list[Connection] = []
    transport = MemoryTransport()
    connection = Connection(LoopLateness(), idle.append)
    connection.connection_made(transport)
    return Wire(connection, transport, idle)


@dataclass(frozen=True)
class Exchanged:
    """The response of one exchange, and the state of its connection after it."""

    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_complete: bool
    is_cut: bool
    is_kept: bool
    error: str  # the class and words of what was raised, or nothing

    def __str__(self) -> str:
        return f"{self.status} {len(self.body)} bytes, {self.error or 'no error'}"


async def exchange(
    pieces: Iterable[bytes],
    end: str = EOF,
    *,
    bodiless: bool = False,
    max_bytes: int = 2**20,
    max_error_bytes: int = 2**20,
    received: ResponseBuffer | None = None,
) -> Exchanged:
    """One exchange in "received" mode. Raises AssertionError where it is not over although the connection is, and
    whatever is not an error of httpx.
    """
    on = wire()
    answer = received or ResponseBuffer(BodyLimits(max_bytes, max_error_bytes))
    on.start(answer, bodiless=bodiless)
    for piece in pieces:
        on.feed(piece)
    on.end(end)
    return await outcome(on, answer)


async def outcome(on: Wire, answer: ResponseBuffer) -> Exchanged:
    waiter, error = on.connection._waiter, ""
    assert waiter is not None
    if not waiter.done():
        assert not on.lost, "the connection is gone, and whoever waits for the answer waits for ever"
        error = "waits"
    else:
        try:
            await on.connection.wait()
        except httpx.HTTPError as failed:
            error = f"{type(failed).__name__}: {failed}"
    assert on.connection._timer is None
    headers = tuple(answer.headers) if answer.status is not None else ()  # those of a head that broke off mean nothing
    return Exchanged(answer.status, headers, answer.body, answer.is_complete, answer.cut is not None, on.kept, error)


async def streamed(pieces: Iterable[bytes], end: str = EOF) -> tuple[int | None, bytes, str]:
    """Read one exchange as a stream, piece by piece. Return the status, the bytes, and the error."""
    on, left = wire(), list(pieces)[::-1]
    answer = ResponseBuffer()
    on.start(answer, whole=False)
    taken = bytearray()

    async def serve() -> None:
        while left and not on.transport.closing:
            if not on.transport.paused:
                on.feed(left.pop())
            await asyncio.sleep(0)
        on.end(end)

    server = asyncio.ensure_future(serve())
    try:
        await on.connection.wait()
        async for data in StreamedBody(on.connection, answer):
            taken += data
    except httpx.HTTPError as failed:
        return answer.status, bytes(taken), type(failed).__name__
    finally:
        on.connection.drop(answer)
        await server
    return answer.status, bytes(taken), ""


def recorded(name: str) -> bytes:
    """Return the bytes of an answer as vLLM 0.32 sent them."""
    text = (GOLDEN / f"{name}.txt").read_text().split("-" * 40 + "\n")[1]
    head, _, body = text.partition("\n\n")
    start = head.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    if "transfer-encoding: chunked" not in head:
        return start + body.encode()
    chunks = re.findall(r"(?m)^[0-9a-f]+\n((?:event: .*\n)?data: .*\n\n)\n", body)
    return start + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk.encode()) for chunk in chunks) + b"0\r\n\r\n"


def cut_at(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Return the pieces of `data`, cut there."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]

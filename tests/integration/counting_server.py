"""Servers on loopback that count what they generate, and stop when nobody waits for it any more, as vLLM does.

One speaks HTTP/1.1, the other HTTP/2. They generate a token every few milliseconds, far more than a test waits for.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
from hostile_server import STREAM_HEAD, token

_EVERY_S = 0.005
_TOKENS = 10_000
_HEAD = [(":status", "200"), ("content-type", "text/event-stream")]


@dataclass(slots=True)
class Generated:
    """What the server did. `says_nothing`: it computes, and has not sent the head yet, as during a long prefill."""

    base_url: str = ""
    says_nothing: bool = False
    running: int = 0
    started: int = 0
    tokens: int = 0
    finished: int = 0
    resets: int = 0  # of streams of HTTP/2
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, what: Callable[["Generated"], bool]) -> None:
        async with self.news:
            await self.news.wait_for(lambda: what(self))

    async def generate(self, begin: Callable[[], Awaitable[None]], send: Callable[[bytes], Awaitable[None]]) -> None:
        """Compute an answer, until its end or until this is cancelled."""
        self.running, self.started = self.running + 1, self.started + 1
        try:
            if not self.says_nothing:
                await begin()
            for number in range(1, _TOKENS + 1):
                self.tokens += 1
                if not self.says_nothing:
                    await send(token(number))
                await self._changed()
                await asyncio.sleep(_EVERY_S)
            self.finished += 1
        finally:
            self.running -= 1
            await asyncio.shield(self._changed())

    async def _changed(self) -> None:
        async with self.news:
            self.news.notify_all()


@asynccontextmanager
async def counting_server(tls: ssl.SSLContext | None = None, *, http2: bool = False) -> AsyncIterator[Generated]:
    """Serve until the block ends."""
    state = Generated()
    tasks: set[asyncio.Task[None]] = set()
    if tls is not None:
        tls.set_alpn_protocols(["h2"] if http2 else ["http/1.1"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await (_Http2(state, reader, writer).serve() if http2 else _serve_http1(state, reader, writer))
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    state.base_url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve_http1(state: Generated, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0]) if lengths else 0)

    async def begin() -> None:
        writer.write(STREAM_HEAD)

    async def send(event: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()

    await _until_gone(asyncio.create_task(state.generate(begin, send)), reader)


async def _until_gone(generating: asyncio.Task[None], reader: asyncio.StreamReader) -> None:
    """Cancel the answer when the client closes."""
    try:
        await reader.read(1)
    finally:
        generating.cancel()
        await asyncio.gather(generating, return_exceptions=True)


class _Http2:
    """One connection."""

    def __init__(self, state: Generated, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._state, self._reader, self._writer = state, reader, writer
        self._wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._streams: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        self._wire.initiate_connection()
        try:
            await self._write()
            while data := await self._reader.read(65536):
                for event in self._wire.receive_data(data):
                    self._take(event)
                await self._write()
        finally:
            for stream in self._streams.values():
                stream.cancel()
            await asyncio.gather(*self._streams.values(), return_exceptions=True)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.StreamEnded):
            number = event.stream_id
            self._streams[number] = asyncio.create_task(self._answer(number))
        elif isinstance(event, h2.events.StreamReset):
            self._state.resets += 1
            self._streams[event.stream_id].cancel()

    async def _answer(self, number: int) -> None:
        async def begin() -> None:
            self._wire.send_headers(number, _HEAD)
            await self._write()

        async def send(event: bytes) -> None:
            self._wire.send_data(number, event)
            await self._write()

        await self._state.generate(begin, send)

    async def _write(self) -> None:
        self._writer.write(self._wire.data_to_send())
        await self._writer.drain()

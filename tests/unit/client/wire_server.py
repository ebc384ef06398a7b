"""A server on loopback whose connections a test plays itself, and that knows which of them are open.

`hostile_server` answers requests by a script; here a coroutine has the whole connection.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Converse = Callable[["Peer"], Awaitable[None]]
# uvloop says RuntimeError of a connection that is closed.
_GONE = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, RuntimeError)


@dataclass
class Peer:
    """The server's end of one connection. `number`: 1 for the first one."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "Server"

    async def ask(self) -> bytes:
        """Return the next request, head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        self.server.asked.append(head)
        self.server.news.set()
        if b"chunked" in head:
            return head + await self._chunks()
        return head + await self.reader.readexactly(length)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_gone(self) -> None:
        """Wait until the client has closed."""
        while await self.reader.read(2**16):
            pass

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body


@dataclass
class Server:
    """The server as the test sees it."""

    url: str
    made: int = 0
    open: int = 0
    asked: list[bytes] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)  # something was asked, or a connection came or went

    async def until(self, what: Callable[["Server"], bool]) -> None:
        while not what(self):
            self.news.clear()
            await self.news.wait()

    async def until_open(self, count: int) -> None:
        await self.until(lambda server: server.open == count)

    async def until_asked(self, count: int = 1) -> None:
        await self.until(lambda server: len(server.asked) >= count)


@asynccontextmanager
async def serving(
    converse: Converse, *, host: str = "127.0.0.1", unix_socket: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Run `converse` for every connection until the block ends."""
    tasks: set[asyncio.Task[None]] = set()
    state = Server("")

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        state.made, state.open = state.made + 1, state.open + 1
        state.news.set()
        try:
            await converse(Peer(state.made, reader, writer, state))
        except (*_GONE, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            state.open -= 1
            state.news.set()
            tasks.discard(task)

    if unix_socket is not None:
        server = await asyncio.start_unix_server(accepted, unix_socket, ssl=tls)
        state.url = "http://unix.invalid"
    else:
        server = await asyncio.start_server(accepted, host, 0, ssl=tls, limit=2**20)
        port = server.sockets[0].getsockname()[1]
        state.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def always(peer: Peer, answer: bytes) -> None:
    """Give the same answer to every request."""
    while True:
        await peer.ask()
        await peer.say(answer)

"""A forward proxy on loopback: absolute-form requests for http, CONNECT for https.

In: whether it speaks TLS itself, and which credentials it wants. Out: the head of every request it was sent.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Proxy:
    """The proxy as the test sees it."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    certificates: list[object] = field(default_factory=list)  # those that clients showed to the proxy itself

    @property
    def asked_for(self) -> list[str]:
        """Method and address of each request."""
        return [head.partition(" HTTP/")[0] for head in self.heads]


@asynccontextmanager
async def forward_proxy(*, wants: str | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """Run the proxy until the block ends. `wants` is a user:password, without which it answers 407."""
    state = Proxy()
    tasks: set[asyncio.Task[None]] = set()
    required = f"proxy-authorization: basic {base64.b64encode((wants or '').encode()).decode()}".lower()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            state.heads.append(head)
            if tls is not None:
                state.certificates.append(writer.get_extra_info("peercert"))
            if wants is not None and required not in head.lower():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
            else:
                await _forward(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    state.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one request or one tunnel; what follows on the connection goes to the same server."""
    first, _, rest = head.partition("\r\n")
    method, target, version = first.split(" ")
    url = urlsplit(f"//{target}" if method == "CONNECT" else target)
    upstream, to_server = await asyncio.open_connection(url.hostname, url.port)
    try:
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            kept = [line for line in rest.split("\r\n") if not line.lower().startswith(("proxy-", "connection:"))]
            lines = [f"{method} {url.path} {version}", "connection: close", *kept]
            to_server.write("\r\n".join(lines).encode("latin-1"))
        ways = [asyncio.create_task(_copy(reader, to_server)), asyncio.create_task(_copy(upstream, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # where one side closes, so does the other
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    finally:
        to_server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()

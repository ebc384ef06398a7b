"""A load balancer: connections to one address go to one server after the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from urllib.parse import urlsplit


@asynccontextmanager
async def round_robin(*urls: str, by_request: bool = True) -> AsyncIterator[str]:
    """Balance by request, as a router does, or by connection, as a Service of Kubernetes does. Yield the address."""
    servers = cycle([urlsplit(url) for url in urls])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = None
        try:
            head = await reader.readuntil(b"\r\n") if by_request else b""
            server = next(servers)
            from_server, to_server = await asyncio.open_connection(server.hostname, server.port)
            to_server.write(head + b"connection: close\r\n" * by_request)
            await asyncio.gather(copy(reader, to_server), copy(from_server, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, to_server):
                if each is not None:
                    each.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

"""A server on loopback that speaks nothing but HTTP/2, agreed on in TLS, and answers by path."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

Answer = tuple[str, bytes]  # content type and body


@dataclass(slots=True)
class Http2Server:
    """The server as the test sees it."""

    base_url: str = ""
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def http2_server(
    answers: Mapping[str, Answer], tls: ssl.SSLContext, unix_socket: str | None = None
) -> AsyncIterator[Http2Server]:
    """Serve until the block ends; paths that are not in `answers` get 404."""
    tls.set_alpn_protocols(["h2"])
    state = Http2Server()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        try:
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        path = dict(event.headers or ())[b":path"].decode()
                        state.asked.append(path)
                        _answer(connection, event.stream_id or 0, answers.get(path))
                writer.write(connection.data_to_send())
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            tasks.discard(task)

    if unix_socket is None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        state.base_url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(serve, unix_socket, ssl=tls)
        state.base_url = "https://localhost"
    try:
        yield state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _answer(connection: h2.connection.H2Connection, stream: int, answer: Answer | None) -> None:
    kind, body = answer or ("text/plain", b"")
    connection.send_headers(stream, [(":status", "200" if answer else "404"), ("content-type", kind)])
    size = connection.max_outbound_frame_size
    for start in range(0, len(body), size):
        connection.send_data(stream, body[start : start + size])
    connection.end_stream(stream)

"""Bodies that pass through a connection piece by piece, not as a whole: of a response and of a request."""

import asyncio
from collections.abc import AsyncIterator

import httpx

from probe.client.connection import Connection
from probe.client.response_buffer import ResponseBuffer


class StreamedBody(httpx.AsyncByteStream):
    """A response body that is read while it arrives. Closing it before its end closes the connection."""

    def __init__(self, connection: Connection, answer: ResponseBuffer) -> None:
        self._connection = connection
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        answer = self._answer
        while True:
            reads, answer.reads, answer.size = answer.reads, [], 0
            for _, _, data in reads:
                yield data
            if answer.is_complete and not answer.reads:
                return
            if not answer.reads:
                self._connection.more()
                await self._connection.wait()

    async def aclose(self) -> None:
        if not self._answer.is_complete:
            self._connection.abort()


async def send_body(connection: Connection, request: httpx.Request, write_s: float) -> None:
    """Send a streamed request body, chunked unless its length is declared. Stop when the exchange is over."""
    chunked = "transfer-encoding" in request.headers
    stream = request.stream
    if not isinstance(stream, httpx.AsyncByteStream):
        raise httpx.LocalProtocolError("the request's body cannot be read here", request=request)

    async def write(data: bytes, *, last: bool = False) -> bool:
        try:
            async with asyncio.timeout(write_s if write_s < float("inf") else None):
                return await connection.write(data, last=last)
        except TimeoutError:
            raise httpx.WriteTimeout(f"nothing taken within {write_s:g} s", request=request) from None

    async for part in stream:
        if part and not await write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part):
            return
    await write(b"0\r\n\r\n" if chunked else b"", last=True)

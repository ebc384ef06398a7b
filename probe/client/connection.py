"""One HTTP/1.1 connection: requests out as bytes, responses in as stamped reads.

The hot path is `data_received`: it takes the time before anything else; response_buffer.py keeps the bytes of the
body, which are parsed afterwards (stream_parser.py).

    start(...) --> data_received* --> the future is done --> idle again, or closed

It raises httpx's errors, as every httpx transport does.
"""

import asyncio
import socket
import struct
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from time import perf_counter_ns
from typing import cast

import httpx

from probe.client.loop_lateness import LoopLateness
from probe.client.patience import STOOD_S
from probe.client.response_buffer import ResponseBuffer, ResponseParser

_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: close with a reset, and send nothing more


def discard_unsent(own: socket.socket | None) -> None:
    """Have the close of an open connection discard what the kernel could not send yet.

    Otherwise a server that reads slowly gets the request, and goes on with it, long after it was given up.
    """
    if own is None:
        return
    unsent = array("i", [0])
    with suppress(OSError):  # not every kind of socket has it
        ioctl(own.fileno(), TIOCOUTQ, unsent)
        if unsent[0]:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


# Beyond this, reading from the socket pauses until the consumer has taken the buffered reads.
_HIGH_WATER = 1024 * 1024


# A server that closes an idle connection just before the request arrives says so within a round trip. One that closes
# later had begun to work: that is a failure of the server, and a second request would be load that nobody counts.
IDLE_RACE_NS = 1_000_000_000


class StaleConnectionError(httpx.RemoteProtocolError):
    """The connection closed promptly, without a byte of the response: safe to retry once on another connection."""


class Connection(asyncio.Protocol):
    """A connection and its current exchange, if any. `on_free` is called when it may be used again."""

    def __init__(self, lateness: LoopLateness, on_free: Callable[["Connection"], None]) -> None:
        self._lateness = lateness
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response = ResponseParser(lateness)
        self._writable: asyncio.Future[None] | None = None
        self.closed = self._loop.create_future()
        self.idle_since_s = self._loop.time()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[Exception | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._response.reset()
        self._paused = False
        self._ended = False  # by the other side
        self._error = None

    # Called by the transport (transport.py).

    def start(
        self,
        data: bytes,
        answer: ResponseBuffer,
        *,
        whole: bool,
        bodiless: bool,
        last: bool,
        limits_s: tuple[float, float],
    ) -> None:
        """Send a request and begin to receive into `answer`.

        `whole`: `wait` returns when the response is complete, else when its head is. `bodiless`: no body follows
        the head. `last`: `data` is the whole request; else `write` sends the rest. `limits_s`: the time limits for
        the first byte, and between two reads; inf: no limit.
        """
        self._reset()
        self._response.start(answer, None if whole else self._wake_reader, is_bodiless=bodiless)
        self._limits_s = limits_s
        self._sending = not last
        self._waiter = self._loop.create_future()
        self._sent_ns = answer.written_ns = perf_counter_ns()
        if self._transport is None or self._transport.is_closing():
            raise StaleConnectionError("the connection was closed")
        self._transport.write(data)
        answer.write_lag_ns = perf_counter_ns() - self._sent_ns
        self._stood_s = 0.0
        if min(limits_s) < float("inf"):
            self._check_in(min(limits_s))

    async def write(self, data: bytes, *, last: bool) -> bool:
        """Send more of a request's body once the server accepts it. Return False if the exchange is already over."""
        if self._writable is not None:
            await self._writable
        if self._response.buffer is None or self._transport is None or self._transport.is_closing():
            return False
        self._sending = not last
        self._sent_ns = perf_counter_ns()
        self._transport.write(data)
        return True

    async def wait(self) -> None:
        """Wait for the head, the next read or the end. Raises httpx's errors."""
        error = await self._waiter if self._waiter is not None else None
        if error is not None:
            raise error

    def more(self) -> None:
        """Continue to receive, after the consumer has taken the buffered reads."""
        self._waiter = self._loop.create_future()
        if self._response.buffer is None:
            self._wake()
        elif self._paused:
            self._response.now_ns = perf_counter_ns()  # restart the server's time limit: the consumer caused the wait
            self._resume()

    @property
    def is_usable(self) -> bool:
        """Return whether the connection seems to be open."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close at once, even during an exchange."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self, answer: ResponseBuffer) -> None:
        """Abort the exchange by closing. Do nothing if it is over: the connection may already serve another one."""
        if self._response.buffer is answer:
            self._stop_timer()
            self._response.buffer = None
            self._give_up()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_ns = perf_counter_ns()
        lateness = self._lateness
        if not lateness.is_open:
            lateness.begin(now_ns)
        response = self._response
        response.now_ns = now_ns
        if response.buffer is None:
            self.abort()  # bytes outside any exchange
            return
        problem = response.feed(data)
        if problem is not None:
            self._fail(httpx.RemoteProtocolError(problem))
        elif response.is_complete:
            self._finish()

    def eof_received(self) -> None:
        self._ended = True
        self.abort()  # the server reads no more

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self.resume_writing()
        if self._response.buffer is None:
            return
        if self._ended and self._response.end():
            self._finish()
        elif self._response.now_ns == 0:
            waited_ns = perf_counter_ns() - self._sent_ns
            kind = StaleConnectionError if waited_ns <= IDLE_RACE_NS else httpx.RemoteProtocolError
            self._fail(kind(f"the server closed the connection without an answer{_because(exc)}"))
        else:
            self._fail(
                httpx.RemoteProtocolError(f"the connection closed before the answer was complete{_because(exc)}")
            )

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _wake_reader(self) -> None:
        """Wake the consumer of a response that is read while it arrives. Pause where it is too slow."""
        self._wake()
        buffer = self._response.buffer
        if buffer is not None and buffer.held > _HIGH_WATER:
            self._pause()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # The end of an exchange.

    def _finish(self) -> None:
        answer, self._response.buffer = self._response.buffer, None
        if answer is None:
            return
        answer.is_complete = answer.cut is None
        self._stop_timer()
        self._resume()
        if self._response.can_reuse and not self._sending and self.is_usable:
            self.idle_since_s = self._loop.time()
            self._on_free(self)
        else:
            self.abort()
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._stop_timer()
        self._error, self._response.buffer = error, None
        self._give_up()
        self._wake()

    def _give_up(self) -> None:
        """Close, and take back what the server has not read of the request."""
        if self._transport is not None and not self._transport.is_closing():
            discard_unsent(self._transport.get_extra_info("socket"))
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._error)

    def _check_in(self, seconds: float) -> None:
        self._due_ns = perf_counter_ns() + round(seconds * 1e9)
        self._timer = self._loop.call_later(seconds, self._check_time)

    def _check_time(self) -> None:
        """Fail the exchange if the first byte, or the next one, is later than its limit.

        After a time in which this process did not run it waits as much longer, as Patience does.
        """
        limit_s = self._limits_s[1] if self._response.now_ns else self._limits_s[0]
        now_ns = perf_counter_ns()
        left_s = limit_s - (now_ns - max(self._response.now_ns, self._sent_ns)) * 1e-9
        late_s = (now_ns - self._due_ns) * 1e-9
        if left_s <= 0 and late_s > STOOD_S:
            left_s = min(late_s, limit_s - self._stood_s)
            self._stood_s += left_s
        if self._paused or self._sending:
            left_s = limit_s  # the wait is on this side
        if left_s > 0:
            self._check_in(min(left_s, *self._limits_s))
        else:
            what = "nothing more" if self._response.now_ns else "no answer"
            self._fail(httpx.ReadTimeout(f"{what} within {limit_s:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _because(error: Exception | None) -> str:
    return f" ({error})" if error else ""


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

"""One HTTP/1.1 connection: requests out as bytes, responses in as stamped reads.

The hot path is `data_received`: it takes the time before anything else and keeps the bytes, which are parsed
afterwards (stream_parser.py). httptools parses HTTP; nothing here depends on the content.

    start(...) --> data_received* --> the future is done --> idle again, or closed

Errors are those of httpx, as from every httpx transport.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import cast

import httptools
import httpx

from probe.client.loop_lateness import LoopLateness
from probe.client.response_buffer import ResponseBuffer

# The most consecutive bytes without content: a head (with preceding 1xx responses), chunk framing, trailers. Servers
# and gateways allow heads of 8 to 64 KiB.
_MAX_OVERHEAD = 64 * 1024
# Beyond this, reading from the socket pauses until the consumer has taken the buffered reads. Each read takes some
# memory of its own, however short it is.
_HIGH_WATER = 1024 * 1024
_PER_READ = 256
_NO_CONTENT = (204, 304)
_FIRST, _OK = 100, 200


class StaleConnectionError(httpx.RemoteProtocolError):
    """The connection closed before the first byte of the response: safe to retry once on another connection."""


class Connection(asyncio.Protocol):
    """A connection and its current exchange, if any. `on_free` is called when it may be used again."""

    def __init__(self, turns: LoopLateness, on_free: Callable[["Connection"], None]) -> None:
        self._turns = turns
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._writable: asyncio.Future[None] | None = None
        self.closed = self._loop.create_future()
        self.idle_since_s = self._loop.time()
        self._answer: ResponseBuffer | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[Exception | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._now_ns = 0  # of the last read; 0: nothing has come yet
        self._overhead = 0
        self._in_body = self._until_close = self._complete = self._extra = self._keep = self._paused = False
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
        self._answer, self._whole, self._bodiless, self._limits_s = answer, whole, bodiless, limits_s
        self._sending = not last
        self._waiter = self._loop.create_future()
        self._sent_ns = perf_counter_ns()
        if self._transport is None or self._transport.is_closing():
            raise StaleConnectionError("the connection was closed")
        self._transport.write(data)
        answer.write_lag_ns = perf_counter_ns() - self._sent_ns
        if min(limits_s) < float("inf"):
            self._timer = self._loop.call_later(min(limits_s), self._check_time)

    async def write(self, data: bytes, *, last: bool) -> bool:
        """Send more of a request's body once the server accepts it. Return False if the exchange is already over."""
        if self._writable is not None:
            await self._writable
        if self._answer is None or self._transport is None or self._transport.is_closing():
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
        if self._answer is None:
            self._wake()
        elif self._paused:
            self._now_ns = perf_counter_ns()  # restart the server's time limit: the consumer caused the wait
            self._resume()

    @property
    def usable(self) -> bool:
        """Return whether the connection is open, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close at once, even during an exchange."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self, answer: ResponseBuffer) -> None:
        """Abort the exchange by closing. Do nothing if it is over: the connection may already serve another one."""
        if self._answer is answer:
            self._stop_timer()
            self._answer = None
            self.abort()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_ns = perf_counter_ns()
        turns = self._turns
        if not turns.open:
            turns.begin(now_ns)
        self._now_ns = now_ns
        if self._answer is None:
            self.abort()  # bytes outside any exchange
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._extra = True
            if not self._complete:
                self._fail(httpx.RemoteProtocolError(_words(error)))
                return
        if self._complete:
            self._finish()
        elif self._overhead > _MAX_OVERHEAD:
            self._fail(httpx.RemoteProtocolError(f"more than {_MAX_OVERHEAD} bytes without content"))

    def eof_received(self) -> None:
        self._ended = True
        self.abort()  # the server reads no more

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self.resume_writing()
        answer = self._answer
        if answer is None:
            return
        if self._ended and self._in_body and self._until_close:
            self._complete = True
            self._finish()
        elif self._now_ns == 0:
            self._fail(StaleConnectionError(f"the server closed the connection without an answer{_because(exc)}"))
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

    # httptools.

    def on_message_begin(self) -> None:
        self._extra = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and not self._in_body:
            self._answer.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None or self._complete:
            return
        if status < _FIRST:
            raise ValueError(f"status {status}")
        if status < _OK:
            answer.headers.clear()  # 1xx: the final response is still to come
            return
        answer.status = status
        names = {name for name, _ in answer.headers}
        self._in_body = True
        self._until_close = status not in _NO_CONTENT and names.isdisjoint((b"content-length", b"transfer-encoding"))
        self._complete = self._bodiless
        if not self._whole:
            self._wake()

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        answer = self._answer
        if answer is None or self._complete:
            return
        if not answer.add(self._now_ns, self._turns.since_ns, data):
            self._complete, self._keep = True, False
        elif not self._whole:
            self._wake()
            if answer.size + _PER_READ * len(answer.reads) > _HIGH_WATER:
                self._pause()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def on_message_complete(self) -> None:
        if self._in_body and not self._complete:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    # The end of an exchange.

    def _finish(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        answer.complete = not answer.cut
        self._stop_timer()
        self._resume()
        if self._keep and not self._extra and not self._sending and self.usable:
            self.idle_since_s = self._loop.time()
            self._on_free(self)
        else:
            self.abort()
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._stop_timer()
        self._error, self._answer = error, None
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._error)

    def _check_time(self) -> None:
        """Fail the exchange if the first byte, or the next one, is later than its limit."""
        limit_s = self._limits_s[1] if self._now_ns else self._limits_s[0]
        left_s = limit_s - (perf_counter_ns() - max(self._now_ns, self._sent_ns)) * 1e-9
        if self._paused or self._sending:
            left_s = limit_s  # the wait is on this side
        if left_s > 0:
            self._timer = self._loop.call_later(min(left_s, *self._limits_s), self._check_time)
        else:
            what = "nothing more" if self._now_ns else "no answer"
            self._fail(httpx.ReadTimeout(f"{what} within {limit_s:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _words(error: Exception) -> str:
    cause = str(error.__context__ or error) if isinstance(error, httptools.HttpParserCallbackError) else str(error)
    if isinstance(error, httptools.HttpParserUpgrade):
        cause = "the server wants to speak another protocol"
    return f"not HTTP: {cause}"


def _because(error: Exception | None) -> str:
    return f" ({error})" if error else ""

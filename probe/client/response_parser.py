"""Parses HTTP/1.1 responses into ResponseBuffers: httptools parses the syntax; nothing here depends on the content.

In: the bytes of one connection, with the time of each read. Out: status, headers and stamped reads of the body.
"""

from collections.abc import Callable

import httptools

from probe.client.loop_lateness import LoopLateness
from probe.client.response_buffer import ResponseBuffer

# The most consecutive bytes without content: a head (with preceding 1xx responses), chunk framing, trailers. Servers
# and gateways allow heads of 8 to 64 KiB.
_MAX_OVERHEAD = 64 * 1024
_NO_CONTENT = (204, 304)
_FIRST, _OK = 100, 200


class ResponseParser:
    """The responses of one connection, one after the other.

    `buffer`: the response being received, or None. `is_complete`: it has ended. `now_ns`: the time of the last read,
    which the caller sets; 0: nothing has come yet.
    """

    __slots__ = (
        "_has_extra", "_in_body", "_is_bodiless", "_keep", "_lateness", "_on_progress", "_overhead",
        "_parser", "_until_close", "buffer", "is_complete", "now_ns",
    )  # fmt: skip

    def __init__(self, lateness: LoopLateness) -> None:
        self._lateness = lateness
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Forget the last response."""
        self.buffer: ResponseBuffer | None = None
        self._on_progress: Callable[[], None] | None = None
        self.now_ns = self._overhead = 0
        self._is_bodiless = self._in_body = self._until_close = self._has_extra = self._keep = False
        self.is_complete = False

    @property
    def can_reuse(self) -> bool:
        """Return whether the connection may serve another request after this response."""
        return self._keep and not self._has_extra

    def start(self, buffer: ResponseBuffer, on_progress: Callable[[], None] | None, *, is_bodiless: bool) -> None:
        """Begin the next response. `on_progress` is called after the head and each read of the body.

        `is_bodiless`: no body follows the head.
        """
        self.buffer, self._on_progress, self._is_bodiless = buffer, on_progress, is_bodiless

    def feed(self, data: bytes) -> str | None:
        """Parse the bytes that were read at `now_ns`. Return how the response breaks the protocol, or None."""
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._has_extra = True
            if not self.is_complete:
                return _describe(error)
        if self._overhead > _MAX_OVERHEAD and not self.is_complete:
            return f"more than {_MAX_OVERHEAD} bytes without content"
        return None

    def end(self) -> bool:
        """Note that the server closed the connection. Return whether that completes the response."""
        self.is_complete = self._in_body and self._until_close
        return self.is_complete

    # httptools.

    def on_message_begin(self) -> None:
        self._has_extra = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.buffer is not None and not self._in_body:
            self.buffer.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        buffer, status = self.buffer, self._parser.get_status_code()
        if buffer is None or self.is_complete:
            return
        if status < _FIRST:
            raise ValueError(f"status {status}")
        if status < _OK:
            buffer.headers.clear()  # 1xx: the final response is still to come
            return
        buffer.status = status
        names = {name for name, _ in buffer.headers}
        self._in_body = True
        self._until_close = status not in _NO_CONTENT and names.isdisjoint((b"content-length", b"transfer-encoding"))
        self.is_complete = self._is_bodiless
        if self._on_progress is not None:
            self._on_progress()

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        buffer = self.buffer
        if buffer is None or self.is_complete:
            return
        if not buffer.add(self.now_ns, self._lateness.since_ns, data):
            self.is_complete, self._keep = True, False
        elif self._on_progress is not None:
            self._on_progress()

    def on_message_complete(self) -> None:
        if self._in_body and not self.is_complete:
            self.is_complete = True
            self._keep = self._parser.should_keep_alive()


def _describe(error: Exception) -> str:
    cause = str(error.__context__ or error) if isinstance(error, httptools.HttpParserCallbackError) else str(error)
    if isinstance(error, httptools.HttpParserUpgrade):
        cause = "the server wants to speak another protocol"
    return f"not HTTP: {cause}"

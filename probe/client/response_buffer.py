"""The part of one response that has arrived so far, and the parser of HTTP/1.1 that fills it.

A buffer may be inspected at any time. httptools parses the syntax; nothing here depends on the content.
In: the bytes of one connection, with the time of each read. Out: status, headers and stamped reads of the body.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httptools

from probe.client.loop_lateness import LoopLateness
from probe.core.foreign_json import size_text

# One network read of a body: when it was noticed, the earliest time at which it can have arrived (nanoseconds,
# monotonic), and the bytes.
Read = tuple[int, int, bytes]
# The memory of a read in addition to its bytes: a tuple, two integers, a head of the bytes.
_PER_READ = 180
_OK = 200
_NO_LIMIT = 2**63
# The reads, and about the bytes, that are parsed before other streams are served: 0.2 ms of usual reads, which are one
# event each, and some milliseconds of those in which a fast stream arrives.
_PORTION = 64
_PORTION_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The most that a body may have. `max_error_bytes` applies where the status is not 200."""

    max_bytes: int
    max_error_bytes: int = 64 * 1024
    max_reads: int = 2**14


UNLIMITED = BodyLimits(_NO_LIMIT, _NO_LIMIT, _NO_LIMIT)


def stream_limits(tokens: int) -> BodyLimits:
    """Return the limits for a stream of `tokens` output tokens.

    vLLM's event of one token has some 300 bytes and is one read; gateways add fields, comments and pieces.
    """
    return BodyLimits(max_bytes=64 * 1024 + 2048 * tokens, max_reads=4096 + 16 * tokens)


class ResponseMemory:
    """The memory of several responses until they are parsed. More than `limit` cuts the response that exceeds it."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = _NO_LIMIT) -> None:
        self.limit = limit
        self.held = 0


@dataclass(slots=True)
class ResponseBuffer:
    """A response being received. `is_complete` is set at its end.

    At a limit `cut` is set, to the limit that was exceeded, and the transport then closes the connection.
    `is_cut_for_others`: it was the limit of `memory`, which says nothing about this response.
    """

    limits: BodyLimits = UNLIMITED
    memory: ResponseMemory = field(default_factory=ResponseMemory)
    write_lag_ns: int = 0  # upper bound on the time from handing over the request to sending it
    written_ns: int = 0  # when the request was handed over, on a connection that was there; 0: not yet
    head_ns: int = 0  # when the response's head came; 0: not yet
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # names in lower case
    reads: list[Read] = field(default_factory=list)
    size: int = 0
    is_complete: bool = False
    cut: str | None = None
    is_cut_for_others: bool = False
    is_refused: bool = False  # there was no connection, as the server's machine refused it or its name is not known
    packed: str | None = None  # why its body, which is compressed, cannot be read

    @property
    def held(self) -> int:
        """Return the memory that it takes, in bytes."""
        return self.size + _PER_READ * len(self.reads)

    @property
    def body(self) -> bytes:
        """Return the bytes of the body."""
        return b"".join(data for _, _, data in self.reads)

    def ends_with(self, end: bytes) -> bool:
        """Return whether it is complete and these are its last bytes. Only the last four reads are compared."""
        tail = b"".join(data for _, _, data in self.reads[-4:])
        return self.is_complete and tail.endswith(end)

    def header(self, name: bytes) -> str:
        """Return a header's last value, or an empty string."""
        return next((value.decode("latin-1") for key, value in reversed(self.headers) if key == name), "")

    def add(self, at_ns: int, since_ns: int, data: bytes) -> bool:
        """Keep one read. Return False if it exceeds a limit."""
        self.reads.append((at_ns, since_ns, data))
        length = len(data)
        self.size += length
        memory, limits = self.memory, self.limits
        memory.held += length + _PER_READ
        most = limits.max_bytes if self.status == _OK else limits.max_error_bytes
        if self.size <= most and len(self.reads) <= limits.max_reads and memory.held <= memory.limit:
            return True
        if self.size > most:
            self.cut = f"more than {size_text(most)}"
        elif len(self.reads) > limits.max_reads:
            self.cut = f"more than {limits.max_reads} pieces"
        else:
            self.cut = f"more than {size_text(memory.limit)} with all others in flight; send fewer at once"
            self.is_cut_for_others = True
        return False

    def replace(self, reads: list[Read]) -> None:
        """Take other reads in place of those that came."""
        before = self.held
        self.reads, self.size = reads, sum(len(data) for _, _, data in reads)
        self.memory.held += self.held - before

    def release(self) -> None:
        """Count its memory no longer: it is parsed, or will not be."""
        self.memory.held -= self.held
        self.memory = ResponseMemory()


def portions(reads: Sequence[Read]) -> Iterator[Sequence[Read]]:
    """Yield the reads in portions; one that is larger than a portion is one."""
    first = size = 0
    for index, (_, _, data) in enumerate(reads):
        if index > first and (index - first == _PORTION or size + len(data) > _PORTION_BYTES):
            yield reads[first:index]
            first, size = index, 0
        size += len(data)
    if reads:
        yield reads[first:]


# The most consecutive bytes without content: a head (with preceding 1xx responses), chunk framing, trailers. Servers
# and gateways allow heads of 8 to 64 KiB.
_MAX_OVERHEAD = 64 * 1024
_NO_CONTENT = (204, 304)
_FIRST = 100
# Transfer codings that compression.py undoes.
_UNCHUNKED = (b"identity", b"gzip", b"x-gzip", b"deflate")


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
        buffer.head_ns = self.now_ns
        self._in_body = True
        is_framed = any(name == b"content-length" for name, _ in buffer.headers) or not _ends_with_connection(buffer)
        self._until_close = status not in _NO_CONTENT and not is_framed
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


def _ends_with_connection(buffer: ResponseBuffer) -> bool:
    """Return whether each transfer coding, if any, is known and leaves the end to the connection (RFC 9112, 6.3)."""
    codings = b",".join(value for name, value in buffer.headers if name == b"transfer-encoding")
    return not codings or all(each.strip() in _UNCHUNKED for each in codings.lower().split(b","))


def _describe(error: Exception) -> str:
    cause = str(error.__context__ or error) if isinstance(error, httptools.HttpParserCallbackError) else str(error)
    if isinstance(error, httptools.HttpParserUpgrade):
        cause = "the server switches to another protocol"
    return f"not HTTP: {cause}"

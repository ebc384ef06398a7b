"""The part of one response that has arrived so far. The transport fills it; it may be inspected at any time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from probe.core.foreign_json import size_text

# One network read of a body: when it was noticed, the earliest time at which it can have arrived (nanoseconds,
# monotonic), and the bytes.
Read = tuple[int, int, bytes]
# The memory of a read beside its bytes: a tuple, two integers, a head of the bytes.
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
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # names in lower case
    reads: list[Read] = field(default_factory=list)
    size: int = 0
    is_complete: bool = False
    cut: str | None = None
    is_cut_for_others: bool = False

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

"""The part of one response that has arrived so far. The transport fills it; it may be inspected at any time."""

from dataclasses import dataclass, field

# One network read of a body: when it was noticed, the earliest time at which it can have arrived (nanoseconds,
# monotonic), and the bytes.
Read = tuple[int, int, bytes]
# More reads than any real response has: a body sent byte by byte would take a hundred times its length in memory.
_MAX_READS = 2**20


@dataclass(slots=True)
class ResponseBuffer:
    """A response being received. `complete` is set at its end.

    More than `max_bytes` of body (`max_error_bytes` where the status is not 200), or a million reads, sets
    `cut`, and the transport then closes the connection.
    """

    max_bytes: int
    max_error_bytes: int
    write_lag_ns: int = 0  # upper bound on the time from handing over the request to sending it
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # names in lower case
    reads: list[Read] = field(default_factory=list)
    size: int = 0
    is_complete: bool = False
    is_cut: bool = False

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
        self.size += len(data)
        most = self.max_bytes if self.status == 200 else self.max_error_bytes  # noqa: PLR2004 - HTTP's OK
        if self.size <= most and len(self.reads) <= _MAX_READS:
            return True
        self.is_cut = True
        return False

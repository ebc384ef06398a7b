"""What has arrived of one answer so far: filled in by the transport, and there to be looked at at any time."""

from dataclasses import dataclass, field

# Bytes of a body as one read of the network gave them: when they were noticed, the earliest time at which they can
# have arrived (nanoseconds, monotonic), and the bytes.
Read = tuple[int, int, bytes]
# More reads than any answer has: a body sent byte by byte would take a hundred times its length in memory.
_MAX_READS = 2**20


@dataclass(slots=True)
class ResponseBuffer:
    """An answer in the making. `complete` is set when its end has been seen.

    More than `max_bytes` of body (`max_error_bytes` where the status is not 200), or a million reads, is not kept:
    the transport then closes the connection, and `cut` says so.
    """

    max_bytes: int
    max_error_bytes: int
    write_lag_ns: int = 0  # by how much, at most, the request left later than it was handed over
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # names in lower case
    reads: list[Read] = field(default_factory=list)
    size: int = 0
    complete: bool = False
    cut: bool = False

    @property
    def body(self) -> bytes:
        """The bytes of the body."""
        return b"".join(data for _, _, data in self.reads)

    def ends_with(self, end: bytes) -> bool:
        """Whether it is complete and these are its last bytes; looks at the last reads alone."""
        tail = b"".join(data for _, _, data in self.reads[-4:])
        return self.complete and tail.endswith(end)

    def header(self, name: bytes) -> str:
        """A header's last value, or nothing."""
        return next((value.decode("latin-1") for key, value in reversed(self.headers) if key == name), "")

    def add(self, at_ns: int, since_ns: int, data: bytes) -> bool:
        """Keeps one read; False where that was too much."""
        self.reads.append((at_ns, since_ns, data))
        self.size += len(data)
        most = self.max_bytes if self.status == 200 else self.max_error_bytes  # noqa: PLR2004 - HTTP's OK
        if self.size <= most and len(self.reads) <= _MAX_READS:
            return True
        self.cut = True
        return False

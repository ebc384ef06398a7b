"""Server-sent events out of stamped network reads. Pure.

In: reads of a response body, each with the time it arrived. Out: the payload of each event, with the
time of the read that completed it. How the bytes were cut into reads changes only the times.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes as they came off the network, and when (nanoseconds, monotonic)."""

    at_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """The joined `data:` lines of one event, and when its last byte arrived."""

    at_ns: int
    data: bytes


def events(reads: Iterable[Read]) -> Iterator[Event]:
    """The events of a stream, in order. Lines end in LF or CRLF; comments and other fields are skipped.

    An event cut off by the end of the stream is still returned: whether its content is whole is for
    the reader of the content to say.
    """
    pending, lines, at_ns = list[bytes](), list[bytes](), 0
    for read in reads:
        at_ns = read.at_ns
        *complete, rest = read.data.split(b"\n")
        for line in complete:
            # Pieces of a long line are joined once, not at each read: a hostile line costs no more than its length.
            yield from _take(b"".join((*pending, line)).removesuffix(b"\r"), lines, at_ns)
            pending.clear()
        pending.append(rest)
    yield from _take(b"".join(pending).removesuffix(b"\r"), lines, at_ns)
    yield from _take(b"", lines, at_ns)


def _take(line: bytes, lines: list[bytes], at_ns: int) -> Iterator[Event]:
    """Adds a data line to `lines`; at an empty line, gives what has been gathered."""
    if line.startswith(b"data:"):
        lines.append(line[5:].removeprefix(b" "))
    elif not line and lines:
        yield Event(at_ns, b"\n".join(lines))
        lines.clear()

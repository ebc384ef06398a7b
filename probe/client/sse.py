"""Splits a response body into server-sent events, piece by piece. Pure.

In: the bytes of a body in any pieces. Out: the payload of each event, when a piece completes it. The events do not
depend on how the bytes were cut.
"""


class EventSplitter:
    """A buffer that returns the joined `data:` lines of each event once it is complete.

    Lines end in LF or CRLF; comments and other fields are skipped.
    """

    __slots__ = ("_lines", "_pending")

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that this piece completes."""
        if not self._pending and not self._lines and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            # As servers send them: whole events of one line each. Anything else is split line by line.
            blocks = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(blocks) and b"\r" not in data:
                return blocks
        *complete, rest = data.split(b"\n")
        events: list[bytes] = []
        for line in complete:
            # Pieces of a long line are joined once, not at each read: a hostile line costs no more than its length.
            self._take(b"".join((*self._pending, line)).removesuffix(b"\r"), events)
            self._pending.clear()
        if rest:
            self._pending.append(rest)
        return events

    def finish(self) -> list[bytes]:
        """Return the events left when the body ends. One that was cut off is included."""
        events: list[bytes] = []
        self._take(b"".join(self._pending).removesuffix(b"\r"), events)
        self._take(b"", events)
        self._pending.clear()
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        """Keep a data line. At an empty line, append the event to `events`."""
        if line.startswith(b"data:"):
            self._lines.append(line[5:].removeprefix(b" "))
        elif not line and self._lines:
            events.append(b"\n".join(self._lines))
            self._lines.clear()

"""Splits a body into server-sent events, as the standard defines them: bytes in, the data of each event out. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Four things differ, because
every event of the API is JSON. Blanks around the data mean nothing. An event without data is none: proxies send such
events to keep a connection alive. So is one that is named so, such as `event: ping`, or that has another name and no
JSON. And the last event counts even if no empty line ends it.
"""

DONE = b"[DONE]"  # the data of the last event of completions and chat
_BOM = b"\xef\xbb\xbf"
_OBJECT = b"{"
_JSON_BEGINS = (_OBJECT, b"[")
_PLAIN = (b"", b"message")
_ERROR = b"error"
_NO_CHOICE = (b'"choices":[]', b'"choices": []')
_KEEP_ALIVES = (b"ping", b"keepalive", b"keep-alive", b"heartbeat")


def is_keep_alive(data: bytes) -> bool:
    """Return whether a read holds only comments, keep-alives or an event without a choice: no sign of an answer."""
    if data.startswith(b"data:"):  # nearly always
        return data.count(b"data:") == 1 and any(empty in data for empty in _NO_CHOICE)
    lines = [line for line in data.splitlines() if line and not line.startswith(b":")]
    kinds = [line.removeprefix(b"event:").strip() for line in lines if line.startswith(b"event:")]
    has_others = any(not line.startswith((b"event:", b"data:")) for line in lines)
    return not lines or (bool(kinds) and not has_others and all(kind in _KEEP_ALIVES for kind in kinds))


class EventSplitter:
    """A buffer that returns the data of each event once it is complete, whatever the pieces that its bytes come in.

    Nothing is returned after an event of the type `error`; `failure` is its data, else None. `stray`: the first line of
    a JSON object that is in no event; gateways append the error of a server that died like that.
    """

    __slots__ = ("_after_cr", "_begin", "_data", "_is_between", "_line", "_type", "failure", "stray")

    def __init__(self) -> None:
        self._begin: bytes | None = b""  # what may become a byte order mark; None once the stream has begun
        self._after_cr = False
        self._is_between = False  # whether the next byte begins an event
        self._line: list[bytes] = []  # the pieces of a line
        self._data: list[bytes] = []
        self._type = b""
        self.failure: bytes | None = None
        self.stray: bytes | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that this piece completes."""
        if self._is_between and data.startswith(b"data: {") and data.endswith(b"\n\n"):
            # As servers send them: whole events of one line each. Anything else is split line by line.
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events) == 2 * data.count(b"data: {") and b"\r" not in data:
                return events
        if self._begin is not None:
            data = self._without_mark(data)
        return self._split(data) if data else []

    def finish(self) -> list[bytes]:
        """Return the event left when the body ends. One that was cut off is included."""
        left = self._split((self._begin or b"") + b"\n\n")
        self._begin = None
        return left

    def _without_mark(self, data: bytes) -> bytes:
        """Return the begin of the stream without a byte order mark; nothing while it may still become one."""
        data = (self._begin or b"") + data
        is_open = len(data) < len(_BOM) and _BOM.startswith(data)
        self._begin = data if is_open else None
        return b"" if is_open else data.removeprefix(_BOM)

    def _split(self, data: bytes) -> list[bytes]:
        """Return the events that these bytes complete. A line ends in LF, CR or CRLF, which a read may cut."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *complete, rest = data.split(b"\n")
        events: list[bytes] = []
        for line in complete:
            # Pieces of a long line are joined once, not at each read: a hostile line costs no more than its length.
            self._take(b"".join((*self._line, line)), events)
            self._line.clear()
        if rest:
            self._line.append(rest)
        is_within = self._line or self._data or self._type or self._after_cr
        self._is_between = not is_within and self.failure is None
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        """Keep what a line says of the event. At an empty line, append the event to `events`."""
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")
        if field == _ERROR and value:  # llama.cpp names the field, not the type
            self._type, self._data = _ERROR, [value.removeprefix(b" ")]
        elif field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._type = value.removeprefix(b" ")
        elif line.startswith(_OBJECT) and self.stray is None:
            self.stray = line

    def _dispatch(self, events: list[bytes]) -> None:
        event, kind, has_data = b"\n".join(self._data).strip(), self._type, bool(self._data)
        self._data.clear()
        self._type = b""
        if self.failure is not None or not has_data or kind in _KEEP_ALIVES:
            return
        if kind == _ERROR:
            self.failure = event
        elif event and (kind in _PLAIN or event.startswith(_JSON_BEGINS)):
            events.append(event)

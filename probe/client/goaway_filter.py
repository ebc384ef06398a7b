"""Takes those GOAWAY frames out of what a server sends over HTTP/2 that let the current request go on. Pure.

A server that is about to close a connection names the last stream that it answers, and answers it (RFC 9113, 6.8).
nginx does so with each thousandth request, and every proxy as it is reloaded. h2 and httpcore end all streams at any
GOAWAY, so a reload would look like a broken server.
"""

from struct import Struct

# RFC 9113, sections 4.1 and 6.8.
_HEAD_BYTES = 9
_KIND_AT = 3
_GOAWAY = 7
_NO_ERROR = 0
_LAST_AND_CODE = Struct(">II")
_STREAM_BITS = 2**31 - 1
_MAX_BYTES = 2**14  # of a frame, unless it was agreed otherwise


class GoawayFilter:
    """A filter of one connection's bytes. `is_leaving`: a frame was taken out, so the connection ends soon."""

    def __init__(self) -> None:
        self.is_leaving = False
        self._held = b""  # the begin of a frame that may have to be taken out
        self._left = 0  # bytes of a frame that passes

    def passed(self, data: bytes, stream: int | None) -> bytes:
        """Return what passes of these bytes; at the end of the connection (no bytes) what was held.

        `stream`: the current request's; None: there is none yet.
        """
        whole, self._held = self._held + data, b""
        if not data:
            return whole
        parts, at = [], 0
        while at < len(whole):
            end = at + self._left if self._left else _end(whole, at)
            if end > len(whole) and not self._left and not _passes(whole, at):
                self._held = whole[at:]
                break
            if self._left or not self._is_taken(whole[at:end], stream):
                parts.append(whole[at:end])
            self._left = max(end - len(whole), 0)
            at = end
        return b"".join(parts)

    def _is_taken(self, frame: bytes, stream: int | None) -> bool:
        """Return whether this frame is to be taken out."""
        if stream is None or _passes(frame, 0) or len(frame) < _HEAD_BYTES + _LAST_AND_CODE.size:
            return False
        last, code = _LAST_AND_CODE.unpack_from(frame, _HEAD_BYTES)
        is_taken = bool(code == _NO_ERROR and stream <= last & _STREAM_BITS)
        self.is_leaving |= is_taken
        return is_taken


def _end(data: bytes, at: int) -> int:
    """Return where the frame ends that begins there; its head may not be there as a whole."""
    return at + _HEAD_BYTES + int.from_bytes(data[at : at + _KIND_AT].ljust(_KIND_AT, b"\0"))


def _passes(data: bytes, at: int) -> bool:
    """Return whether the frame that begins there passes whatever it says; False while that is not known."""
    if at + _KIND_AT >= len(data):
        return False
    return data[at + _KIND_AT] != _GOAWAY or _end(data, at) - at > _HEAD_BYTES + _MAX_BYTES

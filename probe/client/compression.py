"""Unpacks a body that a server or proxy compressed, although `accept-encoding: identity` asked it not to. Pure.

Each read keeps its time, and what it unpacks to: a proxy that flushes after each event shows when each token came.
"""

import zlib
from collections.abc import Iterator

from probe.client.response_buffer import Read, ResponseBuffer
from probe.core.foreign_json import size_text

# What zlib calls each coding. Deflate means zlib's format; some servers send it raw.
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_READ = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
_NOT_READ = ("br", "zstd", "compress", "x-compress", "dcb", "dcz")
_HEADERS = (b"content-encoding", b"transfer-encoding")
_GZIP_BEGINS = b"\x1f\x8b"
_ZLIB_METHOD = 8


def unread(coding: str) -> str | None:
    """Return why a body of this coding cannot be read, with the fix, or None."""
    if coding not in _NOT_READ:
        return None
    return f"compressed ({coding}), although identity was asked for; turn off compression at the server or proxy"


def window_bits(coding: str, begin: bytes) -> int | None:
    """Return what zlib calls the coding of a body that begins so; None if it is not compressed.

    Proxies unpack a body and leave the header; other names are no compression: Next.js sends `none`, others a character
    set.
    """
    bits, head = _READ.get(coding), begin[:2]
    if bits == _GZIP and head != _GZIP_BEGINS:
        return None
    if bits == _ZLIB and (head[0] & 0x0F != _ZLIB_METHOD or int.from_bytes(head, "big") % 31):
        return _RAW
    return bits


def unpack(received: ResponseBuffer) -> None:
    """Replace the reads of a compressed body by what they unpack to; set `packed` if that cannot be done."""
    for coding in _codings(received):
        if not received.reads or received.packed is not None:
            return
        if why := unread(coding):
            received.packed = f"the answer is {why}"
        elif (bits := window_bits(coding, received.body[:2])) is not None:
            received.packed = _unpack(received, bits)


def _codings(received: ResponseBuffer) -> list[str]:
    """Return the codings of a body, the one that was applied last first."""
    named = [value for name in _HEADERS for key, value in received.headers if key == name]
    return [coding.strip().lower() for coding in b",".join(named).decode("latin-1").split(",")][::-1]


def _unpack(received: ResponseBuffer, bits: int) -> str | None:
    most = received.limits.max_bytes
    reads, size = [], 0
    try:
        for at_ns, since_ns, data in _pieces(received.reads, bits, most):
            size += len(data)
            if size > most:
                return f"the answer is compressed, and unpacks to more than {size_text(most)}"
            reads.append((at_ns, since_ns, data))
    except zlib.error as error:
        return f"the answer is compressed, and damaged ({error})"
    received.replace(reads)
    return None


def _pieces(reads: list[Read], bits: int, most: int) -> Iterator[Read]:
    """Yield each read unpacked, up to a limit. A body may consist of several compressed ones."""
    unpacker = zlib.decompressobj(bits)
    for at_ns, since_ns, data in reads:
        left = data
        while left:
            if unpacker.eof:
                unpacker = zlib.decompressobj(bits)
            if out := unpacker.decompress(left, most + 1):
                yield at_ns, since_ns, out
            left = unpacker.unconsumed_tail or (unpacker.unused_data if unpacker.eof else b"")

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


def unpack(received: ResponseBuffer) -> None:
    """Replace the reads of a compressed body by what they unpack to; set `packed` if that cannot be done.

    Other names of codings are no compression: Next.js sends `none`, others a character set.
    """
    for coding in _codings(received):
        if coding in _NOT_READ:
            asked = "although identity was asked for"
            received.packed = (
                f"the answer is compressed ({coding}), {asked}; turn off compression at the server or proxy"
            )
        elif coding in _READ and received.reads and received.packed is None:
            received.packed = _unpack(received, _READ[coding])


def _codings(received: ResponseBuffer) -> list[str]:
    """Return the codings of a body, the one that was applied last first."""
    named = [value for name in _HEADERS for key, value in received.headers if key == name]
    return [coding.strip().lower() for coding in b",".join(named).decode("latin-1").split(",")][::-1]


def _unpack(received: ResponseBuffer, bits: int) -> str | None:
    begin = received.body[:2]
    if bits == _GZIP and begin != _GZIP_BEGINS:
        return None  # a proxy unpacked it, and left the header
    if bits == _ZLIB and (begin[0] & 0x0F != _ZLIB_METHOD or int.from_bytes(begin, "big") % 31):
        bits = _RAW
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

"""Blocks of Prometheus' storage, written directly: billions of samples in minutes.

In: series (labels, times, values), and how many copies under other labels each is to have. Out: a folder that
Prometheus opens as its own. A chunk's bytes do not depend on labels, so what many targets share is encoded once and
copied, and to Prometheus they are as many series as any others. Chunks are encoded as its XOR encoder does
(Facebook's Gorilla), all of a block side by side, one sample of each after the other.

Formats: https://github.com/prometheus/prometheus/tree/main/tsdb/docs/format
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.backfill import Floats

SAMPLES = 120  # in a chunk, as Prometheus' head has it
_BATCH = 16_384  # chunks that are encoded side by side
_SEGMENT_BYTES = 512 * 1024 * 1024
_Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Chunks:
    """One series' samples in a block, encoded: each chunk with its first and last time (ms), and its bytes."""

    spans: tuple[tuple[int, int], ...]
    data: bytes  # of all chunks, as they lie in a segment
    offsets: tuple[int, ...]  # where each begins in `data`


def encode(times_ms: NDArray[np.int64], values: Floats) -> list[Chunks]:
    """Encode `values`, a row for each series, all at the same times, in chunks of 120 samples."""
    count = len(times_ms)
    found: list[list[bytes]] = [[] for _ in values]
    spans = [(int(times_ms[i]), int(times_ms[min(i + SAMPLES, count) - 1])) for i in range(0, count, SAMPLES)]
    for begin in range(0, count, SAMPLES * max(1, _BATCH // max(1, len(values)))):
        end = min(count, begin + SAMPLES * max(1, _BATCH // max(1, len(values))))
        whole = (end - begin) // SAMPLES * SAMPLES
        if whole:
            at = times_ms[begin : begin + whole].reshape(-1, SAMPLES)
            rows = np.ascontiguousarray(values[:, begin : begin + whole]).reshape(-1, SAMPLES)
            _add(found, _encode(np.tile(at, (len(values), 1)), rows), len(at))
        if whole < end - begin:
            at = times_ms[begin + whole : end].reshape(1, -1)
            _add(found, _encode(np.tile(at, (len(values), 1)), np.ascontiguousarray(values[:, begin + whole : end])), 1)
    return [_chunks(spans, chunks) for chunks in found]


def _add(found: Sequence[list[bytes]], chunks: Sequence[bytes], each: int) -> None:
    for i, mine in enumerate(found):
        mine.extend(chunks[i * each : (i + 1) * each])


def _chunks(spans: Sequence[tuple[int, int]], chunks: Sequence[bytes]) -> Chunks:
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    return Chunks(tuple(spans), b"".join(chunks), (0, *ends[:-1]))


_U = np.uint64
_Rows = NDArray[np.intp]


class _Bits:
    """A bit stream for each row, written from the highest bit on, as `bstream` does."""

    def __init__(self, rows: int, most_bits: int) -> None:
        self.words = np.zeros((rows, most_bits // 64 + 2), np.uint64)
        self.length = np.zeros(rows, np.uint64)
        self.all: _Rows = np.arange(rows)

    def add(self, rows: _Rows, values: _Words, bits: _Words) -> None:
        """Append the lowest `bits` (1 to 64) of each value to these rows."""
        length = self.length[rows]
        word, used = (length >> _U(6)).astype(np.intp), length & _U(63)
        top = values << (_U(64) - bits)
        self.words[rows, word] |= top >> used
        over = used + bits > _U(64)
        if over.any():
            self.words[rows[over], word[over] + 1] |= top[over] << (_U(64) - used[over])
        self.length[rows] = length + bits

    def skip(self, bits: int) -> None:
        """Append zeros to every row."""
        self.length += _U(bits)


def _encode(times_ms: NDArray[np.int64], values: Floats) -> list[bytes]:
    """Return a chunk for each row as stored in a segment: length, encoding, data, checksum."""
    rows, count = values.shape
    raw = values.view(np.uint64)
    bits = _Bits(rows, 16 + 80 + 64 + 40 + count * (1 + 64 + 13 + 17))
    bits.add(bits.all, np.full(rows, count, _U), np.full(rows, 16, _U))
    _varint(bits, _zigzag(times_ms[:, 0]))
    bits.add(bits.all, raw[:, 0], np.full(rows, 64, _U))
    deltas = np.diff(times_ms, axis=1)
    changes = np.diff(deltas, axis=1)
    # The window of bits that the last change needed: its leading and trailing zeros. None yet: 255.
    lead, trail = np.full(rows, 0xFF, _U), np.zeros(rows, _U)
    for i in range(1, count):
        if i == 1:
            _varint(bits, deltas[:, 0].astype(_U))
        else:
            _delta(bits, changes[:, i - 2])
        xor = raw[:, i] ^ raw[:, i - 1]
        changed = np.flatnonzero(xor)
        _xor(bits, changed, xor[changed], lead, trail)
    return _framed(bits)


def _xor(bits: _Bits, rows: _Rows, xor: _Words, lead: _Words, trail: _Words) -> None:
    """Append 0 for the same value; 10 and the bits in the old window; or 11 and a new window (leading zeros, size) and
    its bits.
    """
    same = np.ones(len(bits.all), bool)
    same[rows] = False
    bits.length[same] += _U(1)
    if not len(rows):
        return
    leading, trailing = np.minimum(_leading(xor), _U(31)), _trailing(xor)  # leading has five bits
    before, after = lead[rows], trail[rows]
    fits = (before != _U(0xFF)) & (leading >= before) & (trailing >= after)
    before, after = np.where(fits, before, leading), np.where(fits, after, trailing)
    lead[rows], trail[rows] = before, after
    size = _U(64) - before - after
    head = np.where(fits, _U(0b10), (_U(0b11) << _U(11)) | (before << _U(6)) | (size & _U(63)))  # 64 is written as 0
    bits.add(rows, head, np.where(fits, _U(2), _U(13)))
    bits.add(rows, xor >> after, size)


def _delta(bits: _Bits, change: NDArray[np.int64]) -> None:
    """Append the change of the delta of timestamps: 0, or 10, 110, 1110 or 1111 and as many bits as it needs."""
    if not change.any():
        bits.skip(1)
        return
    head, size = np.zeros(len(change), _U), np.zeros(len(change), _U)
    for prefix, width in ((0b1111, 64), (0b1110, 20), (0b110, 17), (0b10, 14)):
        fits = (change != 0) & (width == 64 or ((change > -(1 << width - 1)) & (change <= 1 << width - 1)))
        head, size = np.where(fits, _U(prefix), head), np.where(fits, _U(width), size)
    bits.add(bits.all, head, np.select([size == 0, size == 14, size == 17], [_U(1), _U(2), _U(3)], _U(4)))
    rows = np.flatnonzero(size)
    mask = np.where(size == 64, _U(2**64 - 1), (_U(1) << (size & _U(63))) - _U(1))
    bits.add(rows, (change.astype(_U) & mask)[rows], size[rows])


def _zigzag(values: NDArray[np.int64]) -> _Words:
    return ((values << np.int64(1)) ^ (values >> np.int64(63))).astype(_U)


def _varint(bits: _Bits, values: _Words) -> None:
    left, rows = values.copy(), bits.all
    while len(rows):
        mine = left[rows]
        more = mine >= _U(0x80)
        bits.add(rows, np.where(more, (mine & _U(0x7F)) | _U(0x80), mine), np.full(len(rows), 8, _U))
        left[rows] = mine >> _U(7)
        rows = rows[more]


def _leading(values: _Words) -> _Words:
    """Return the number of leading zeros, from the float's exponent once rounding cannot change it."""
    found = np.full(len(values), 64, _U)
    for shift in (0, 32):  # halves are exact as floats
        half = ((values >> _U(shift)) & _U(0xFFFFFFFF)).astype(np.float64)
        exponent = np.frexp(half)[1].astype(_U)
        found = np.where(half > 0, _U(64 - shift) - exponent, found)
    return found


def _trailing(values: _Words) -> _Words:
    lowest = values & (~values + _U(1))
    return _U(63) - _leading(np.where(lowest == 0, _U(1), lowest))


def _framed(bits: _Bits) -> list[bytes]:
    sizes = ((bits.length + _U(7)) >> _U(3)).astype(np.intp)
    data = bits.words.byteswap().view(np.uint8).reshape(len(sizes), -1)
    sums = _checksums(data, sizes)
    return [
        _uvarint(int(size)) + b"\x01" + row[:size].tobytes() + struct.pack(">I", int(checksum))
        for row, size, checksum in zip(data, sizes, sums, strict=True)
    ]


def _table() -> NDArray[np.uint32]:
    """Return the byte-wise table of CRC-32C (Castagnoli)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


_CRC = _table()
_CRC_LIST: list[int] = _CRC.tolist()


def _checksums(data: _Bytes, sizes: NDArray[np.intp]) -> NDArray[np.uint32]:
    """Return the checksums of the encoding's byte and each row's first `sizes` bytes."""
    start = np.uint32(0xFFFFFFFF)
    crc = np.full(len(data), _CRC[(start ^ np.uint32(1)) & np.uint32(0xFF)] ^ (start >> np.uint32(8)), np.uint32)
    for i in range(int(sizes.max(initial=0))):
        following = _CRC[(crc ^ data[:, i]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        crc = np.where(i < sizes, following, crc)
    return ~crc


def checksum(data: bytes) -> int:
    """Return the CRC-32C of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _svarint(value: int) -> bytes:
    return _uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def write_block(
    folder: Path, number: int, span_ms: tuple[int, int], groups: Iterable[Sequence[tuple[Mapping[str, str], Chunks]]]
) -> int:
    """Write a block of series that end before `span_ms[1]`, stored group by group. Return its size in bytes."""
    ulid = f"01KNEEWATCHBENCH{number:010d}"[:26]
    block = folder / ulid
    (block / "chunks").mkdir(parents=True)
    entries: list[tuple[Mapping[str, str], Chunks, int]] = []
    segment, file, at = 0, None, 0
    for group in groups:
        for labels, chunks in group:
            if file is None or at + len(chunks.data) > _SEGMENT_BYTES:
                if file is not None:
                    file.close()
                segment += 1
                file = (block / "chunks" / f"{segment:06d}").open("wb")
                at = file.write(struct.pack(">IB3x", 0x85BD40DD, 1))
            entries.append((labels, chunks, (segment - 1) << 32 | at))
            at += file.write(chunks.data)
    if file is None:
        raise ValueError("a block without series")
    file.close()
    (folder / "wal").mkdir(exist_ok=True)
    (block / "index").write_bytes(_index(entries))
    (block / "tombstones").write_bytes(struct.pack(">IBI", 0x0130BA30, 1, checksum(b"")))
    stats = {
        "numSamples": 0,
        "numSeries": len(entries),
        "numChunks": sum(len(chunks.spans) for _, chunks, _ in entries),
    }
    meta = {
        "ulid": ulid, "minTime": span_ms[0], "maxTime": span_ms[1], "stats": stats,
        "compaction": {"level": 4, "sources": [ulid]}, "version": 1,
    }  # fmt: skip
    (block / "meta.json").write_text(json.dumps(meta))
    return sum(path.stat().st_size for path in block.rglob("*") if path.is_file())


def _index(entries: Sequence[tuple[Mapping[str, str], Chunks, int]]) -> bytes:
    """Return the index: symbols, series, postings, their table, and the offset of each."""
    entries = sorted(entries, key=lambda entry: sorted(entry[0].items()))
    symbols = sorted({text for labels, _, _ in entries for pair in labels.items() for text in pair} | {""})
    number = {text: i for i, text in enumerate(symbols)}
    out = bytearray(struct.pack(">IB", 0xBAAAD700, 2))
    symbols_at = len(out)
    out += _section(struct.pack(">I", len(symbols)) + b"".join(_text(text) for text in symbols))
    out += b"\0" * (-len(out) % 16)
    series_at = len(out)
    postings: dict[tuple[str, str], list[int]] = {("", ""): []}
    for labels, chunks, ref in entries:
        out += b"\0" * (-len(out) % 16)
        mine = len(out) // 16
        postings["", ""].append(mine)
        for pair in labels.items():
            postings.setdefault(pair, []).append(mine)
        body = _series(labels, chunks, ref, number)
        out += _uvarint(len(body)) + body + struct.pack(">I", checksum(body))
    postings_at = len(out)
    places: list[tuple[tuple[str, str], int]] = []
    for pair in sorted(postings):
        out += b"\0" * (-len(out) % 4)
        places.append((pair, len(out)))
        refs = postings[pair]
        out += _section(struct.pack(f">I{len(refs)}I", len(refs), *refs))
    table_at = len(out)
    rows = b"".join(b"\x02" + _text(name) + _text(value) + _uvarint(place) for (name, value), place in places)
    out += _section(struct.pack(">I", len(places)) + rows)
    contents = struct.pack(">6Q", symbols_at, series_at, 0, 0, postings_at, table_at)
    return bytes(out + contents + struct.pack(">I", checksum(contents)))


def _series(labels: Mapping[str, str], chunks: Chunks, ref: int, number: Mapping[str, int]) -> bytes:
    out = bytearray(_uvarint(len(labels)))
    for name, value in sorted(labels.items()):
        out += _uvarint(number[name]) + _uvarint(number[value])
    out += _uvarint(len(chunks.spans))
    last_end = last_ref = 0
    for i, ((first, last), offset) in enumerate(zip(chunks.spans, chunks.offsets, strict=True)):
        here = ref + offset
        if i == 0:
            out += _svarint(first) + _uvarint(last - first) + _uvarint(here)
        else:
            out += _uvarint(first - last_end) + _uvarint(last - first) + _svarint(here - last_ref)
        last_end, last_ref = last, here
    return bytes(out)


def _section(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content + struct.pack(">I", checksum(content))


def _text(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data)) + data

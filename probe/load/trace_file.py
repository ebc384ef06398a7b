"""Reads and writes files of traces. What is read is bounded: bytes, requests, and the size of each record."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from probe.config.path_checks import file_problem
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line
from probe.core.trace import Trace, TraceRequest, trace_of
from probe.load.trace_formats import CsvColumns, TraceFormatError, json_request, record_of

MOST_REQUESTS = 100_000
_MOST_BYTES = 2**30
_RECORD = JsonLimits(max_bytes=8 * 2**20, max_values=100_000, max_depth=16)
_MOST_BLOCKS = 5_000_000  # of all requests; a number takes some 40 bytes
_PIECE = 64 * 1024
_BOM = b"\xef\xbb\xbf"
_MARKS = re.compile(rb'["\\{}]')

Records = Iterator[tuple[int, TraceRequest | None]]  # the number of the line or element, and its request


def read_trace(file: Path, option: str) -> Trace:
    """Read a trace. Raises ConfigError, which names the option, the line and what was expected."""
    if problem := file_problem(file):
        raise ConfigError(f"{option} {file}: {problem}")
    kind = "line"
    try:
        with file.open("rb") as opened:
            begins = opened.read(_PIECE).removeprefix(_BOM).lstrip()[:1]
            opened.seek(0)
            kind = "element" if begins == b"[" else "line"
            records = {b"[": _array, b"{": _lines}.get(begins, _rows)(opened)
            found, skipped, blocks = list[TraceRequest](), 0, 0
            is_cut = False
            for _, request in records:
                is_cut = len(found) >= MOST_REQUESTS or blocks > _MOST_BLOCKS
                if is_cut:
                    break
                if request is None:
                    skipped += 1
                else:
                    found.append(request)
                    blocks += len(request.blocks)
            is_cut = is_cut or opened.tell() > _MOST_BYTES
    except _RecordError as error:
        raise ConfigError(f"{option} {file}: {kind} {error.number}: {one_line(str(error), 300)}") from None
    except OSError as error:
        raise ConfigError(f"{option} {file}: cannot be read ({error.strerror})") from None
    if not found:
        raise ConfigError(f"{option} {file}: holds no request; expected at least one with a prompt and an answer")
    return trace_of(found, skipped=skipped, is_cut=is_cut)


def trace_lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace in Kneewatch's own format."""
    for request in trace.requests:
        yield json.dumps(record_of(request), separators=(",", ":")) + "\n"


class _RecordError(Exception):
    """A record that cannot be read; `number` counts from 1."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number


def _lines(opened: IO[bytes]) -> Records:
    for number, line in _bounded_lines(opened):
        if line.strip():
            yield number, _json(number, line)


def _array(opened: IO[bytes]) -> Records:
    for number, record in enumerate(_objects(opened), 1):
        yield number, _json(number, record)


def _rows(opened: IO[bytes]) -> Records:
    last = 0

    def text() -> Iterator[str]:
        nonlocal last
        for number, line in _bounded_lines(opened):
            last = number
            try:
                yield line.removeprefix(_BOM).decode()
            except UnicodeDecodeError:
                raise _RecordError(number, "expected UTF-8") from None

    columns: CsvColumns | None = None
    try:
        for row in csv.reader(text()):
            if columns is None:
                columns = CsvColumns.of(row)
            elif row:
                yield last, columns.request(row)
    except (TraceFormatError, csv.Error) as error:
        raise _RecordError(last, str(error)) from None


def _bounded_lines(opened: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, as far as the file's byte limit."""
    number = 0
    while opened.tell() <= _MOST_BYTES and (line := opened.readline(_RECORD.max_bytes + 1)):
        number += 1
        if len(line) > _RECORD.max_bytes:
            raise _RecordError(number, "it is larger than 8 MiB")
        yield number, line


def _objects(opened: IO[bytes]) -> Iterator[bytes]:
    """Yield the objects of a JSON array, one after the other, as far as the file's byte limit."""
    held, scan, ended, is_closed = bytearray(), _ObjectScan(), 0, False
    while opened.tell() <= _MOST_BYTES:
        if not (piece := opened.read(_PIECE)):
            if scan.depth or not is_closed:
                where = "in the middle of it" if scan.depth else "before the array does; expected ] at its end"
                raise _RecordError(ended + 1, f"the file ends {where}")
            return
        seen = len(held)
        held += piece
        done = 0
        for begins, end in scan.objects(held, seen):
            ended, done = ended + 1, end
            yield bytes(held[begins:end])
        if outside := held[done:].strip() if not scan.depth else b"":
            is_closed = outside.endswith(b"]")
        elif done or scan.depth:
            is_closed = False
        done = done if scan.depth else len(held)
        del held[:done]
        scan.forget(done)
        if len(held) > _RECORD.max_bytes:
            raise _RecordError(ended + 1, "it is larger than 8 MiB")


@dataclass(slots=True)
class _ObjectScan:
    """Where in a text of JSON the outermost objects are, found piece by piece."""

    depth: int = 0
    begins: int = 0
    escaped: int = -1  # the place of a character behind a backslash
    is_text: bool = False

    def objects(self, data: bytearray, at: int) -> Iterator[tuple[int, int]]:
        """Yield beginning and end of each object that ends from this place on."""
        for mark in _MARKS.finditer(data, at):
            here, sign = mark.start(), mark[0]
            if here == self.escaped:
                continue
            if sign == b'"':
                self.is_text = not self.is_text
            elif self.is_text:
                self.escaped = here + 1 if sign == b"\\" else self.escaped
            elif sign == b"{":
                self.begins, self.depth = (here, 1) if not self.depth else (self.begins, self.depth + 1)
            elif sign == b"}" and self.depth:
                self.depth -= 1
                if not self.depth:
                    yield self.begins, here + 1

    def forget(self, before: int) -> None:
        """Count places from here on."""
        self.begins, self.escaped = self.begins - before, self.escaped - before


def _json(number: int, data: bytes) -> TraceRequest | None:
    try:
        return json_request(read_json(data, _RECORD))
    except ForeignJsonError as error:
        raise _RecordError(number, f"it {error}") from None
    except TraceFormatError as error:
        raise _RecordError(number, str(error)) from None

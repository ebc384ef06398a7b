"""Reads and writes files of traces. What is read is bounded: bytes, requests, and the size of each record.

A format makes a request of each record, without its text. JSON: Kneewatch's own, Mooncake's and Bailian's, ShareGPT's,
and the `custom` data sets of `vllm bench serve`. CSV: BurstGPT's, Azure's, and any with the same columns in its header.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from probe.config.path_checks import file_problem
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.text import one_line
from probe.core.trace import Trace, TraceRequest, trace_of

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
                columns = CsvColumns.find(row)
            elif row:
                yield last, columns.request(row)
    except (TraceFormatError, csv.Error) as error:
        raise _RecordError(last, str(error)) from None


def _bounded_lines(opened: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, up to the file's byte limit."""
    number = 0
    while opened.tell() <= _MOST_BYTES and (line := opened.readline(_RECORD.max_bytes + 1)):
        number += 1
        if len(line) > _RECORD.max_bytes:
            raise _RecordError(number, "it is larger than 8 MiB")
        yield number, line


def _objects(opened: IO[bytes]) -> Iterator[bytes]:
    """Yield the objects of a JSON array one by one, up to the file's byte limit."""
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


MOST_TOKENS = 1_000_000  # of a prompt, and of an answer
_LATEST_S = 1e12  # 30,000 years
_BYTES_PER_TOKEN = 4  # of text, as the tokenizer is not known: about right for English
_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16  # tokens, by their documentation
_TIMES = ("at_s", "timestamp", "time", "starttime", "created_at")
_PROMPTS = ("prompt_tokens", "contexttokens", "request tokens", "input_tokens", "num_prefill_tokens")
_OUTPUTS = ("output_tokens", "generatedtokens", "response tokens", "completion_tokens", "num_decode_tokens")
_ASKING, _ANSWERING = ("human", "user"), ("gpt", "chatgpt", "assistant", "bing", "bard")


class TraceFormatError(ValueError):
    """A record that is no request. The message says what was expected."""


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The places of the columns in a row; `time` is None where there is none."""

    prompt: int
    output: int
    time: int | None

    @classmethod
    def find(cls, header: Sequence[str]) -> "CsvColumns":
        """Find the columns by their names. Raises TraceFormatError."""
        names = [name.strip().lower() for name in header]
        found = {kind: next((names.index(n) for n in known if n in names), None) for kind, known in _COLUMNS.items()}
        prompt, output = found["prompt"], found["output"]
        if prompt is None or output is None:
            lacking = ", ".join(kind for kind in ("prompt", "output") if found[kind] is None)
            raise TraceFormatError(
                f"expected a header with columns such as timestamp, prompt_tokens, output_tokens; none is for {lacking}"
            )
        return cls(prompt, output, found["time"])

    def request(self, row: Sequence[str]) -> TraceRequest | None:
        """Return the request of a row; None for one without a prompt or an answer. Raises TraceFormatError."""
        if len(row) <= max(self.prompt, self.output, self.time or 0):
            raise TraceFormatError(f"expected as many columns as the header has, found {len(row)}")
        at_s = None if self.time is None else _seconds(row[self.time])
        return _request(_count(row[self.prompt], "prompt tokens"), _count(row[self.output], "output tokens"), at_s)


_COLUMNS: Mapping[str, Sequence[str]] = {"time": _TIMES, "prompt": _PROMPTS, "output": _OUTPUTS}


def json_request(record: object) -> TraceRequest | None:
    """Return the request of a JSON record; None for one without a prompt or an answer. Raises TraceFormatError."""
    if not isinstance(record, dict):
        raise TraceFormatError("expected a JSON object")
    record = {key.lower(): value for key, value in record.items()}
    if "conversations" in record:
        return _sharegpt(record["conversations"])
    if "input_length" in record:
        return _mooncake(record)
    prompt, output = (_first(record, names) for names in (_PROMPTS, _OUTPUTS))
    text = record.get("prompt")
    if isinstance(text, str) and output is None:
        raise TraceFormatError("expected output_tokens as well as prompt; add it (vllm bench serve takes 256 without)")
    if isinstance(text, str) and prompt is None:
        prompt = _text_tokens(text)
    if prompt is None or output is None:
        raise TraceFormatError(
            "expected prompt_tokens and output_tokens, or a record of Mooncake (input_length), ShareGPT (conversations)"
            " or vllm bench serve's custom data sets (prompt, output_tokens)"
        )
    at = _first(record, _TIMES)
    size = _count(record.get("block_tokens", _MOONCAKE_BLOCK), "block_tokens")
    found = _request(
        _count(prompt, "prompt_tokens"), _count(output, "output_tokens"), None if at is None else _seconds(at)
    )
    return found and _with_blocks(found, record.get("blocks"), size)


def record_of(request: TraceRequest) -> dict[str, object]:
    """Return the request as a record of Kneewatch's own format."""
    time = {} if request.at_s is None else {"at_s": round(request.at_s, 6)}
    blocks = {"blocks": list(request.blocks), "block_tokens": request.block_tokens} if request.blocks else {}
    return {**time, "prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens, **blocks}


def _mooncake(record: Mapping[str, Any]) -> TraceRequest | None:
    """Return Mooncake's request (milliseconds) or Bailian's (seconds and smaller blocks)."""
    is_bailian = "chat_id" in record
    at_s = _seconds(record["timestamp"]) / (1.0 if is_bailian else 1000.0) if "timestamp" in record else None
    prompt, output = (_count(record.get(name), name) for name in ("input_length", "output_length"))
    found = _request(prompt, output, at_s)
    return found and _with_blocks(found, record.get("hash_ids"), _BAILIAN_BLOCK if is_bailian else _MOONCAKE_BLOCK)


def _sharegpt(turns: object) -> TraceRequest | None:
    """Return the first question of a conversation and its answer, as `vllm bench serve` takes them."""
    if not isinstance(turns, list):
        raise TraceFormatError("expected conversations to be a list")
    said = [(turn.get("from"), turn.get("value")) for turn in turns if isinstance(turn, dict)]
    asked = next((i for i, (who, _) in enumerate(said) if who in _ASKING), None)
    if asked is None or asked + 1 >= len(said) or said[asked + 1][0] not in _ANSWERING:
        return None
    question, answer = said[asked][1], said[asked + 1][1]
    if not isinstance(question, str) or not isinstance(answer, str):
        raise TraceFormatError("expected the value of each turn to be text")
    return _request(_text_tokens(question), _text_tokens(answer), None)


def _request(prompt: int, output: int, at_s: float | None) -> TraceRequest | None:
    return TraceRequest(prompt, output, at_s) if prompt and output else None


def _with_blocks(request: TraceRequest, blocks: object, size: int) -> TraceRequest:
    if not blocks:
        return request
    if not isinstance(blocks, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in blocks):
        raise TraceFormatError("expected blocks (hash_ids) to be a list of whole numbers")
    if not size:
        raise TraceFormatError("expected block_tokens above 0")
    most = -(-request.prompt_tokens // size)
    return TraceRequest(request.prompt_tokens, request.output_tokens, request.at_s, tuple(blocks[:most]), size)


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:  # noqa: ANN401 - what JSON has
    return next((record[name] for name in names if record.get(name) is not None), None)


def _count(value: object, name: str) -> int:
    """Return a number of tokens. Raises TraceFormatError."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not (0 <= number <= MOST_TOKENS and number == int(number)):
        raise TraceFormatError(f"expected {name} to be a whole number from 0 to {MOST_TOKENS}")
    return int(number)


def _seconds(value: object) -> float:
    """Return a time in seconds, from a number or an ISO 8601 date and time. Raises TraceFormatError."""
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = _iso_seconds(str(value))
    if not abs(found) <= _LATEST_S:
        raise TraceFormatError("expected the time to be a number of seconds, or a date and time in ISO 8601")
    return found


def _iso_seconds(text: str) -> float:
    try:
        at = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        return math.nan
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _text_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)

"""Server-sent events, against a second reading of the standard: https://html.spec.whatwg.org (9.2.6)."""

import re
import time
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_wire import cut_at

from probe.client.sse import EventSplitter, is_keep_alive

LINES = st.sampled_from(
    [
        *(
            b'data: {"a":1}',
            b"data:{}",
            b"data:  two",
            b"data",
            b"data:",
            b"data:   ",
            b"data: [DONE] ",
            b"data: a:b: c",
        ),
        *(b": ping", b":", b"id: 1", b"id:\0", b"retry: 5", b"retry", b"", b"", b"", b"datax: 1", b" data: 1", b"a\0b"),
        *(b"event: ping", b"event: message", b"event", b"event:", b"event: error", b"error: {}", b"error:"),
        *(b"data: \xff\xfe", b"data: \xe2\x82\xac", b"data: \x0b\x0c\xc2\x85\xe2\x80\xa8", b"\xef\xbb\xbfdata: {}"),
    ]
)
ENDS = (b"\n", b"\r\n", b"\r")
CUTS = st.lists(st.integers(0, 250), max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """Generate lines, each with its own end; the last one may have none."""
    lines = [(draw(LINES), draw(st.sampled_from(ENDS))) for _ in range(draw(st.integers(0, 12)))]
    return [*lines, (draw(st.sampled_from([b"", b"data: cut", b"da"])), b"")]


def joined(lines: list[tuple[bytes, bytes]], end: bytes | None = None, mark: bytes = b"") -> bytes:
    return mark + b"".join(line + (its if end is None or not its else end) for line, its in lines)


def events(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the data of the events, each with the index of the piece that completed it; a failure is the last one."""
    splitter = EventSplitter()
    found = [(i, event) for i, piece in enumerate(pieces) for event in splitter.feed(piece)]
    found += [(len(pieces) - 1, event) for event in splitter.finish()]
    return found if splitter.failure is None else [*found, (-1, b"failed: " + splitter.failure)]


def payloads(pieces: list[bytes]) -> list[bytes]:
    return [event for _, event in events(pieces)]


def reference(data: bytes) -> list[bytes]:
    """Read the whole stream at once, with what sse.py does otherwise: it says what, and why."""
    found, values, kind = [], [], b""
    for line in [*re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf")), b""]:
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            text = b"\n".join(values).strip()
            if values and kind == b"error":
                return [*found, b"failed: " + text]
            is_alive = kind in (b"ping", b"keepalive", b"keep-alive", b"heartbeat")
            if text and not is_alive and (kind in (b"", b"message") or text[:1] in (b"{", b"[")):
                found.append(text)
            values, kind = [], b""
        elif name == b"data":
            values.append(value)
        elif name == b"event":
            kind = value
        elif name == b"error" and value:
            values, kind = [value], b"error"
    return found


@given(streams(), CUTS, st.booleans())
def test_any_cut_and_any_line_end_gives_the_events_of_the_standard(
    lines: list[tuple[bytes, bytes]],
    cuts: list[int],
    has_mark: bool,  # noqa: FBT001
) -> None:
    mark = b"\xef\xbb\xbf" if has_mark else b""
    data = joined(lines, mark=mark)
    assert payloads([data]) == payloads(cut_at(data, cuts)) == reference(data)
    right = reference(joined(lines, b"\n", mark))
    for end in ENDS:
        assert payloads(cut_at(joined(lines, end, mark), cuts)) == right


@given(streams())
def test_byte_by_byte_too(lines: list[tuple[bytes, bytes]]) -> None:
    data = joined(lines, mark=b"\xef\xbb\xbf")
    assert payloads([data[i : i + 1] for i in range(len(data))]) == reference(data)


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_are_read_without_complaint_and_alike_in_any_split(data: bytes, cuts: list[int]) -> None:
    assert payloads(cut_at(data, cuts)) == payloads([data]) == reference(data)


@pytest.mark.parametrize("end", ENDS)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10), cuts=CUTS)
def test_an_event_bears_the_time_of_the_read_that_completed_it(end: bytes, sizes: list[int], cuts: list[int]) -> None:
    parts = [b"data: " + b"x" * size + end + end[:1] for size in sizes]  # the CR of CRLF completes the line
    whole = (b"" if len(end) == 1 else b"\n").join(parts)
    reads = cut_at(whole, cuts)
    ends = list(accumulate(len(part) + len(end) - 1 for part in parts))
    arrived = list(accumulate(len(read) for read in reads))
    for (completed_by, _), at in zip(events(reads), ends, strict=True):
        assert completed_by == next(i for i, size in enumerate(arrived) if size >= at - len(end) + 1)


def test_a_line_end_cut_in_the_middle_is_one_line_end() -> None:
    reads = [b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"]
    assert events(reads) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"", []),
        (b"\n\n\n: ping\n\n", []),
        (b": ping\n\ndata: a\n\n: ping\n\n", [b"a"]),
        (b"data:\n\ndata: \n\ndata\n\ndata\ndata\n\ndata: a\n\n", [b"a"]),
        (b"event: ping\ndata: 2026-11-27\n\ndata: a\n\n", [b"a"]),
        (b'event: keep-alive\ndata: {"message":"waiting"}\n\ndata: a\n\n', [b"a"]),
        (b"event: heartbeat\n\ndata: a\n\n", [b"a"]),
        (b'event: response.created\ndata: {"a":1}\n\n', [b'{"a":1}']),
        (b"event: done\ndata: [DONE]\n\n", [b"[DONE]"]),
        (b'data: {"a"', [b'{"a"']),  # whether it is whole is for its reader to say
        (b"event: error\ndata: boom\n\ndata: a\n\n", [b"failed: boom"]),
        (b"event: error\ndata:\n\n", [b"failed: "]),
        (b"event: error\n\ndata: a\n\n", [b"a"]),
        (b'error: {"code":500}\n\ndata: a\n\n', [b'failed: {"code":500}']),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),  # only one mark, at the begin
    ],
)
def test_what_is_an_event(data: bytes, found: list[bytes]) -> None:
    assert payloads([data]) == found == reference(data)


@pytest.mark.fault(
    "ME5",
    "A line without an end in a stream",
    area="Memory",
    users_see="time in proportion to its length",
    stays="-",
)
def test_a_line_without_an_end_takes_time_in_proportion_to_its_length() -> None:
    """A page that is no event stream may have no line ends; reading it must not hold up the event loop."""
    reads = [b"x" * 64 for i in range(16_384)]
    started = time.process_time()
    assert payloads([b"data: ", *reads]) == [b"x" * 64 * 16_384]
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b": ping\n\n", True),
        (b":\n\n: OPENROUTER PROCESSING\n\n", True),
        (b'event: ping\ndata: {"type": "ping"}\n\n', True),
        (b"\n", True),
        (b'data: {"choices":[]}\n\n', True),
        (b'data: {"choices":[{"text":"a"}]}\n\n', False),
        (b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[]}\n\n', False),
        (b": ping\n\ndata: a\n\n", False),
        (b'event: ping\n\nevent: content_block_delta\ndata: {"a":1}\n\n', False),
        (b'oices":[{"text":"a"}]}\n\n', False),
        (b"\x1f\x8b\x08", False),
    ],
)
def test_what_is_no_sign_of_an_answer(data: bytes, is_one: bool) -> None:  # noqa: FBT001
    assert is_keep_alive(data) is is_one

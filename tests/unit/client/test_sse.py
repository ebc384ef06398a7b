"""Server-sent events out of network reads."""

import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.client.sse import EventSplitter

LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:{}",
        b"data:  two",
        b"data",
        b"data:",
        b": ping",
        b":",
        b"event: x",
        b"id: 1",
        b"retry: 5",
        b"",
        b"",
        b"datax: 1",
        b" data: 1",
        b"data: \xff\xfe",
        b"data: \xe2\x82\xac",
        b"data: a:b: c",
        b"data: \x0b\x0c\xc2\x85",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    ends = st.sampled_from([b"\n", b"\r\n"])
    text = b"".join(draw(LINES) + draw(ends) for _ in range(draw(st.integers(0, 12))))
    return text + draw(st.sampled_from([b"", b"data: cut", b"\r", b"da"]))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def events(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the payloads, each with the index of the piece that completed it."""
    splitter = EventSplitter()
    found = [(i, event) for i, piece in enumerate(pieces) for event in splitter.feed(piece)]
    return found + [(len(pieces) - 1, event) for event in splitter.finish()]


def payloads(pieces: list[bytes]) -> list[bytes]:
    return [event for _, event in events(pieces)]


def reference(data: bytes) -> list[bytes]:
    """Apply the definition to the whole stream at once; the end of the stream ends an event too."""
    found, lines = [], []
    for line in [*data.replace(b"\r\n", b"\n").removesuffix(b"\r").split(b"\n"), b""]:
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and lines:
            found.append(b"\n".join(lines))
            lines = []
    return found


@given(streams(), st.lists(st.integers(0, 200), max_size=10))
def test_every_split_into_reads_gives_the_same_payloads(data: bytes, cuts: list[int]) -> None:
    assert payloads(split(data, cuts)) == payloads([data]) == reference(data)


@given(streams())
def test_byte_by_byte_too(data: bytes) -> None:
    assert payloads(split(data, list(range(len(data))))) == reference(data)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_any_bytes_are_read_without_complaint_and_alike_in_any_split(data: bytes, cuts: list[int]) -> None:
    assert payloads(split(data, cuts)) == payloads([data])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.data())
def test_an_event_bears_the_time_of_the_read_that_completed_it(sizes: list[int], data: st.DataObject) -> None:
    parts = [b"data: " + b"x" * size + b"\n\n" for size in sizes]
    whole = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(1, len(whole)), max_size=8))
    reads = split(whole, cuts)
    ends = list(accumulate(len(part) for part in parts))
    arrived = list(accumulate(len(read) for read in reads))
    for (completed_by, _), end in zip(events(reads), ends, strict=True):
        assert completed_by == next(i for i, size in enumerate(arrived) if size >= end)


def test_a_line_end_cut_in_the_middle_is_one_line_end() -> None:
    reads = [b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"]
    assert events(reads) == [(2, b"a"), (2, b"b")]


def test_data_lines_of_one_event_are_joined() -> None:
    assert payloads([b"data: a\ndata: b\n\n"]) == [b"a\nb"]


def test_nothing_is_no_event() -> None:
    assert payloads([]) == payloads([b""]) == payloads([b"\n\n\n: ping\n\n"]) == []


def test_keep_alive_comments_are_skipped() -> None:
    assert payloads([b": ping\n\ndata: a\n\n: ping\n\n"]) == [b"a"]


def test_an_event_cut_off_by_the_end_is_returned() -> None:
    """Whether its content is whole is for the reader of the content to say."""
    assert payloads([b'data: {"a"']) == [b'{"a"']


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

"""One connection, byte by byte: what an answer becomes does not depend on how it was cut, only on what it says."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hostile_server import GOOD, chunked, head, whole
from hypothesis import given
from hypothesis import strategies as st
from memory_wire import EOF, OPEN, RESET, Exchanged, cut_at, exchange, outcome, recorded, streamed, wire
from property_examples import examples

from probe.client.connection import StaleConnectionError
from probe.client.response_buffer import UNLIMITED, BodyLimits, ResponseBuffer, ResponseMemory

OK = whole(200, b"hello", "text/plain")
CHUNKED = head(200, "text/plain", "transfer-encoding: chunked")
RECORDED = ["completions-stream-continuous", "chat-stream-usage", "completions-whole", "completions-get", "health"]
TRAILERS = b'5;ext=1;quoted="a;b"\r\nhello\r\n0;last\r\nx-trailer: one\r\nx-more: two\r\n\r\n'


def after(pieces: Sequence[bytes], end: str = EOF, **how: Any) -> Exchanged:
    return asyncio.run(exchange(pieces, end, **how))


# --- What an answer may look like ------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "of known length": (OK, 200, b"hello", True),
    "without a body": (whole(200, b""), 200, b"", True),
    "in chunks": (CHUNKED + chunked(b"hel", b"lo"), 200, b"hello", True),
    "in chunks with extensions and trailers": (CHUNKED + TRAILERS, 200, b"hello", True),
    "in chunks, their sizes in capitals and zeros": (
        CHUNKED + b"000A\r\n0123456789\r\n000\r\n\r\n", 200, b"0123456789", True),
    "of no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "of no content, though a length is said": (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", 204, b"", True),
    "not modified, with the length of what it would be": (
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b"", True),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hello", True),
    "after 103 with headers": (
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\ncontent-length: 99\r\n\r\n" + OK, 200, b"hello", True),
    "after a hundred of 102": (b"HTTP/1.1 102 Processing\r\n\r\n" * 100 + OK, 200, b"hello", True),
    "that closes": (whole(200, b"hello", "text/plain", "connection: close"), 200, b"hello", False),
    "of HTTP/1.0": (OK.replace(b"HTTP/1.1", b"HTTP/1.0"), 200, b"hello", False),
    "of HTTP/1.0 that keeps": (
        whole(200, b"hello", "text/plain", "connection: keep-alive").replace(b"/1.1", b"/1.0"), 200, b"hello", True),
    "until the end of the connection": (head(200, "text/plain") + b"hello", 200, b"hello", False),
    "until the end, and nothing": (head(200, "text/plain"), 200, b"", False),
    "without a reason": (b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello", 200, b"hello", True),
    "with an empty reason": (b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello", 200, b"hello", True),
    "of a status nobody knows": (b"HTTP/1.1 600 Odd\r\ncontent-length: 5\r\n\r\nhello", 600, b"hello", True),
    "of the highest status": (b"HTTP/1.1 999 Odd\r\ncontent-length: 5\r\n\r\nhello", 999, b"hello", True),
    "after empty lines": (b"\r\n\r\n" + OK, 200, b"hello", True),
    "and more than it": (OK + b"more", 200, b"hello", False),
    "and half of another": (OK + b"HTTP/1.1 200 O", 200, b"hello", False),
    "and another": (OK + OK, 200, b"hello", False),
    "that closes, and more": (whole(200, b"hello", "text/plain", "connection: close") + b"more", 200, b"hello", False),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read(name: str) -> None:
    data, status, body, kept = ANSWERS[name]
    got = after([data], OPEN if kept else EOF)
    assert (got.status, got.body, got.is_complete, got.error, got.is_kept) == (status, body, True, "", kept)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_read_as_a_stream_is_the_same(name: str) -> None:
    data, status, body, kept = ANSWERS[name]
    end = OPEN if kept else EOF
    assert asyncio.run(streamed([data], end)) == (status, body, "")
    assert asyncio.run(streamed([data[i : i + 1] for i in range(len(data))], end)) == (status, body, "")


def test_the_headers_are_those_of_the_answer_alone() -> None:
    data = b"HTTP/1.1 103 Early\r\nX-Early: 1\r\n\r\n" + head(200, "text/plain", "X-Twice: a", "x-twice: b",
        "transfer-encoding: chunked") + TRAILERS  # fmt: skip
    got = after([data])
    assert got.headers == (
        (b"content-type", b"text/plain"), (b"x-twice", b"a"), (b"x-twice", b"b"), (b"transfer-encoding", b"chunked"),
    )  # fmt: skip


@pytest.mark.parametrize("length", [b"", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"])
def test_the_answer_to_head_has_no_body(length: bytes) -> None:
    got = after([b"HTTP/1.1 200 OK\r\n", length, b"\r\n"], OPEN, bodiless=True)
    assert (got.status, got.body, got.is_complete, got.error) == (200, b"", True, "")


def test_a_body_that_head_should_not_have_spoils_no_other_answer() -> None:
    got = after([whole(200, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")], OPEN, bodiless=True)
    assert (got.status, got.body, got.is_complete, got.is_kept) == (200, b"", True, False)


# --- What is no answer -----------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[bytes, str]] = {
    "status 99": (b"HTTP/1.1 99 Odd\r\ncontent-length: 2\r\n\r\nhi", "not HTTP"),
    "status 099": (b"HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\nhi", "not HTTP: status 99"),
    "status 000": (b"HTTP/1.1 000 Odd\r\ncontent-length: 2\r\n\r\nhi", "not HTTP: status 0"),
    "status 99999": (b"HTTP/1.1 99999 Odd\r\n\r\n", "not HTTP"),
    "no status": (b"HTTP/1.1 \r\n\r\n", "not HTTP"),
    "a request": (b"GET / HTTP/1.1\r\n\r\n", "not HTTP"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not HTTP"),
    "HTTP/7.7": (b"HTTP/7.7 200 OK\r\n\r\n", "not HTTP"),
    "TLS": (b"\x15\x03\x03\x00\x02\x02\x46", "not HTTP"),
    "101": (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "another protocol"),
    "NUL in a name": (b"HTTP/1.1 200 OK\r\nx\x00y: 1\r\n\r\n", "not HTTP"),
    "NUL in a value": (b"HTTP/1.1 200 OK\r\nx: \x00\r\n\r\n", "not HTTP"),
    "a folded header with a length": (b"HTTP/1.1 200 OK\r\ncontent-length:\r\n 5\r\n\r\nhello", "not HTTP"),
    "a header without a colon": (b"HTTP/1.1 200 OK\r\noops\r\n\r\n", "not HTTP"),
    "a space before the colon": (b"HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\nhello", "not HTTP"),
    "two lengths": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", "Content-Length"),
    "a length twice": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello", "Content-Length"),
    "a list of lengths": (b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello", "not HTTP"),
    "a length and chunks": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"hello"), "not HTTP"),
    "chunks and a length": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + chunked(b"hello"), "not HTTP"),
    "a negative length": (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello", "not HTTP"),
    "a length that is no number": (b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello", "not HTTP"),
    "a length past all bounds": (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhello", "not HTTP"),
    "a chunk size that is no number": (CHUNKED + b"zz\r\nhello\r\n", "not HTTP"),
    "an empty chunk size": (CHUNKED + b"\r\nhello\r\n", "not HTTP"),
    "a negative chunk size": (CHUNKED + b"-5\r\nhello\r\n", "not HTTP"),
    "a chunk size past all bounds": (CHUNKED + b"f" * 17 + b"\r\nhello\r\n", "not HTTP"),
    "a chunk size in hexadecimal notation": (CHUNKED + b"0x5\r\nhello\r\n", "not HTTP"),
    "a chunk longer than its size": (CHUNKED + b"5\r\nhello world\r\n0\r\n\r\n", "not HTTP"),
    "too many headers": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "more than 65536 bytes without content"),
    "one long header": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "more than 65536"),
    "one long reason": (b"HTTP/1.1 200 " + b"y" * 70_000, "more than 65536"),
    "endless 100": (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "more than 65536"),
    "endless trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n" + b"x: y\r\n" * 40_000, "more than 65536"),
    "an endless chunk extension": (CHUNKED + b"5;" + b"x" * 70_000, "more than 65536"),
    "endless empty lines": (b"\r\n" * 40_000, "more than 65536"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("size", [1000, 2**16])
def test_an_answer_that_is_not_http_is_an_error_in_one_line(name: str, size: int) -> None:
    """At once, and not only when the server closes."""
    data, words = FAULTS[name]
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    got = after(pieces, OPEN)
    assert got.error.startswith("RemoteProtocolError: "), got
    assert words in got.error
    assert got.error.isprintable()
    assert (got.is_complete, got.is_kept) == (False, False)
    assert asyncio.run(streamed(pieces, OPEN))[2] == "RemoteProtocolError"


@pytest.mark.fault(
    "FA59",
    "An answer in a transfer coding that is not known",
    area="Foreign answers",
    users_see="never complete",
    stays="the connection is closed",
)
def test_an_answer_in_an_unknown_transfer_coding_is_never_complete() -> None:
    for coding in (b"rot13", b"gzip, rot13", b"chunked, gzip", b"identity, x"):
        got = after([b"HTTP/1.1 200 OK\r\ntransfer-encoding: " + coding + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n"])
        assert got.error.startswith("RemoteProtocolError")
        assert not got.is_complete


def test_a_head_of_a_size_that_servers_allow_is_read() -> None:
    data = head(200, "text/plain", *(f"x-{i}: {'y' * 100}" for i in range(400)), "content-length: 5") + b"hello"
    assert len(data) > 40_000
    got = after([data[i : i + 999] for i in range(0, len(data), 999)], OPEN)
    assert (got.status, got.body, len(got.headers), got.is_kept) == (200, b"hello", 402, True)


# --- Where it ends ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GOOD", *RECORDED, *(name for name in ANSWERS if "and" not in name)])
@pytest.mark.parametrize("end", [EOF, RESET])
def test_an_answer_cut_off_at_any_byte_is_an_error_and_never_complete(name: str, end: str) -> None:
    data = GOOD if name == "GOOD" else recorded(name) if name in RECORDED else ANSWERS[name][0]
    until_close = "until the end" in name

    async def main() -> None:
        for length in range(len(data)):
            got = await exchange([data[:length]], end)
            in_body = until_close and got.status is not None
            if in_body and end == EOF:
                assert (got.is_complete, got.error) == (True, ""), length
            else:
                assert not got.is_complete, (length, got)
                assert got.error.startswith("RemoteProtocolError" if length else "Stale"), (length, got)
            assert not got.is_kept

    asyncio.run(main())


def test_a_body_without_a_length_is_complete_at_the_servers_end_alone() -> None:
    data = [head(200, "text/plain"), b"hello"]
    assert after(data, EOF).is_complete
    assert not after(data, RESET).is_complete

    async def ours() -> Exchanged:
        on, answer = wire(), ResponseBuffer(BodyLimits(100, 100))
        on.start(answer)
        for piece in data:
            on.feed(piece)
        on.connection.abort()  # as closing the client does
        on.end(OPEN)
        return await outcome(on, answer)

    got = asyncio.run(ours())
    assert (got.is_complete, got.body) == (False, b"hello")
    assert got.error.startswith("RemoteProtocolError")


def test_a_connection_that_closes_before_a_byte_is_stale_and_after_one_is_not() -> None:
    async def error_of(pieces: list[bytes], end: str) -> Exception:
        on = wire()
        on.start(ResponseBuffer(BodyLimits(100, 100)))
        for piece in pieces:
            on.feed(piece)
        on.end(end)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
            await on.connection.wait()
        return caught.value

    for end in (EOF, RESET):
        assert isinstance(asyncio.run(error_of([], end)), StaleConnectionError)
        for first in (b"H", b"\r", b"HTTP/1.1 100 Continue\r\n\r\n"):
            assert not isinstance(asyncio.run(error_of([first], end)), StaleConnectionError)


@pytest.mark.parametrize("end", [EOF, RESET])
def test_a_connection_that_closes_later_than_the_idle_race_is_a_failure(end: str) -> None:
    async def error_after(waited_s: float) -> Exception:
        on = wire()
        on.start(ResponseBuffer(BodyLimits(100, 100)))
        on.connection._sent_ns -= round(waited_s * 1e9)
        on.end(end)
        with pytest.raises(httpx.RemoteProtocolError, match="without an answer") as caught:
            await on.connection.wait()
        return caught.value

    assert isinstance(asyncio.run(error_after(0.9)), StaleConnectionError)
    assert not isinstance(asyncio.run(error_after(1.0)), StaleConnectionError)


@pytest.mark.fault(
    "FA58",
    "Bytes on a connection that nobody asked for",
    area="Foreign answers",
    users_see="nothing: the connection is closed",
    stays="no answer is taken for that of another request",
)
def test_bytes_that_come_while_nothing_was_asked_close_the_connection() -> None:
    async def main() -> None:
        fresh, used = wire(), wire()
        used.start(ResponseBuffer(BodyLimits(100, 100)))
        used.feed(OK)
        assert used.kept
        for on in (fresh, used):
            on.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            assert not on.connection.is_usable
            with pytest.raises(StaleConnectionError):
                on.start(ResponseBuffer(BodyLimits(100, 100)))

    asyncio.run(main())


def test_a_connection_serves_one_answer_after_the_other() -> None:
    async def main() -> None:
        on = wire()
        for name, (data, status, body, kept) in ANSWERS.items():
            answer = ResponseBuffer(BodyLimits(100, 100))
            on.start(answer)
            for piece in (data[:20], data[20:]):
                on.feed(piece)
            if kept:
                assert (answer.status, answer.body, answer.is_complete) == (status, body, True), name
            else:
                on = wire()

    asyncio.run(main())


def test_an_answer_that_comes_before_the_request_is_sent_does_not_free_the_connection() -> None:
    """The rest of the body would be read as the next request."""

    async def main() -> None:
        on, answer = wire(), ResponseBuffer(BodyLimits(100, 100))
        on.start(answer, last=False)
        assert await on.connection.write(b"part", last=False)
        on.feed(whole(413, b"too much"))
        assert answer.is_complete
        assert not on.idle
        sent = len(on.transport.sent)
        assert not await on.connection.write(b"more", last=False)
        assert len(on.transport.sent) == sent
        await on.connection.wait()

    asyncio.run(main())


def test_a_connection_whose_reader_was_slow_is_read_again_when_it_is_used_again() -> None:
    """The socket is left alone because of the very bytes with which the answer is complete."""

    async def main() -> None:
        on, long, next_ = wire(), ResponseBuffer(), ResponseBuffer(BodyLimits(100, 100))
        on.start(long, whole=False)
        on.feed(whole(200, bytes(2**20 + 1)))
        assert (long.is_complete, on.kept) == (True, True)
        on.start(next_)
        assert not on.transport.paused
        on.feed(OK)
        assert next_.is_complete

    asyncio.run(main())


def test_giving_up_an_exchange_that_is_over_leaves_the_next_one_alone() -> None:
    """Its task may be cancelled after the last byte, when the connection serves another already."""

    async def main() -> None:
        on, first, second = wire(), ResponseBuffer(BodyLimits(100, 100)), ResponseBuffer(BodyLimits(100, 100))
        on.start(first)
        on.feed(OK)
        on.start(second)
        on.connection.drop(first)
        on.feed(OK)
        await on.connection.wait()
        assert second.is_complete
        assert on.kept

    asyncio.run(main())


# --- How it is cut ---------------------------------------------------------------------------------------------

STREAMS = st.one_of(
    st.sampled_from([recorded(name) for name in RECORDED] + [GOOD]),
    st.sampled_from(list(ANSWERS.values())).map(lambda case: case[0]),
    st.sampled_from([data for data, _ in FAULTS.values() if len(data) < 2000]),
)
CUTS = st.lists(st.integers(0, 4000), max_size=12)


@examples(150)
@given(STREAMS, CUTS, st.sampled_from([OPEN, EOF, RESET]), st.booleans())
def test_every_split_of_an_answer_gives_the_same(data: bytes, cuts: list[int], end: str, bodiless: bool) -> None:  # noqa: FBT001
    whole_, pieces = after([data], end, bodiless=bodiless), after(cut_at(data, cuts), end, bodiless=bodiless)
    assert pieces == whole_


@pytest.mark.parametrize("data", [GOOD, recorded("completions-stream-continuous"), CHUNKED + TRAILERS])
def test_every_split_in_two_and_byte_by_byte_gives_the_same(data: bytes) -> None:
    async def main() -> None:
        one = await exchange([data])
        assert one.is_complete
        for place in range(1, len(data)):
            assert await exchange([data[:place], data[place:]]) == one
        assert await exchange([data[i : i + 1] for i in range(len(data))]) == one

    asyncio.run(main())


@examples(60)
@given(STREAMS, CUTS, st.sampled_from([EOF, RESET]))
def test_every_split_read_as_a_stream_gives_the_same(data: bytes, cuts: list[int], end: str) -> None:
    assert asyncio.run(streamed(cut_at(data, cuts), end)) == asyncio.run(streamed([data], end))


@examples(150)
@given(st.binary(max_size=400), CUTS)
def test_any_bytes_are_an_outcome(data: bytes, cuts: list[int]) -> None:
    assert after(cut_at(data, cuts)).error.startswith(("RemoteProtocolError", "Stale"))


# --- How much of it is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "most"), [(200, 1000), (500, 100)])
@pytest.mark.fault(
    "ME2",
    "A body that is longer than an answer can be",
    area="Memory",
    users_see="cut, and the connection is closed",
    stays="what is kept is bounded",
)
def test_a_body_that_is_too_long_is_cut_and_the_connection_closed(status: int, most: int) -> None:
    data = head(status, "text/plain", "transfer-encoding: chunked") + chunked(*[b"x" * 10] * 500)
    got = after([data[i : i + 64] for i in range(0, len(data), 64)], OPEN, max_bytes=1000, max_error_bytes=100)
    assert (got.is_cut, got.is_complete, got.is_kept, got.error) == (True, False, False, "")
    assert most < len(got.body) <= most + 64


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_of_just_the_size_is_whole(status: int) -> None:
    got = after([whole(status, b"x" * 1000)], OPEN, max_bytes=1000, max_error_bytes=1000)
    assert (got.is_cut, got.is_complete, got.is_kept) == (False, True, True)


def test_bytes_after_the_size_limit_are_not_kept() -> None:
    received = ResponseBuffer(BodyLimits(1000, 1000))
    data = head(200, "text/plain", "transfer-encoding: chunked") + chunked(*[b"x"] * 50_000)
    got = after([data], OPEN, received=received)
    assert (got.is_cut, len(got.body)) == (True, 1001)


@pytest.mark.fault(
    "ME1",
    "A body sent byte by byte",
    area="Memory",
    users_see="nothing",
    stays="no more memory than the longest answer takes",
)
def test_a_body_sent_byte_by_byte_takes_no_more_memory_than_the_longest_answer() -> None:
    received = ResponseBuffer(BodyLimits(2**30, 2**30, max_reads=1000))
    got = after([CHUNKED] + [chunked(b"x", end=False) * 50] * 100, OPEN, received=received)
    assert (got.is_cut, got.is_complete, len(received.reads)) == (True, False, 1001)
    assert received.cut == "more than 1000 pieces"


def test_responses_of_one_memory_are_cut_where_they_take_too_much_together() -> None:
    memory = ResponseMemory(10_000)
    first, second, third = (ResponseBuffer(UNLIMITED, memory) for _ in range(3))

    assert first.add(0, 0, b"x" * 9_000)
    assert not second.add(0, 0, b"x" * 1_000)
    assert second.cut == "more than 10000 B with all others in flight; send fewer at once"
    assert (first.is_cut_for_others, second.is_cut_for_others) == (False, True)
    for parsed in (first, second, second):  # the second time does nothing
        parsed.release()

    assert third.add(0, 0, b"x" * 9_000)


@pytest.mark.parametrize("part", [b"x" * 65_536, chunked(b"x", end=False) * 10_000])
def test_for_a_reader_who_never_reads_the_socket_is_left_alone(part: bytes) -> None:
    async def main() -> int:
        on, answer = wire(), ResponseBuffer()
        on.start(answer, whole=False)
        on.feed(CHUNKED if part.startswith(b"1\r\n") else head(200, "text/plain"))
        fed = 0
        while not on.transport.paused and fed < 2**26:
            on.feed(part)
            fed += len(part)
        stuck = on.transport.paused
        assert stuck
        kept = answer.size
        assert sum([len(data) async for data in _all_there_is(on.connection, answer)]) == kept
        stuck = on.transport.paused
        assert not stuck, "it goes on once what there was has been taken"
        on.connection.drop(answer)
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        assert asyncio.run(main()) < 16 * 2**20
    finally:
        tracemalloc.stop()


async def _all_there_is(connection: Any, answer: ResponseBuffer) -> Any:
    """All that is there, and then the next wait, without anyone who answers it."""
    reads, answer.reads, answer.size = answer.reads, [], 0
    for _, _, data in reads:
        yield data
    connection.more()

"""The transport for proxies and HTTP/2: a kept connection that closes, and servers that break HTTP/2."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import httpx
import pytest
import trustme
from both_loops import Run
from hostile_server import GOOD, THREE_TOKENS, chunked, head, token
from plain_records import spec
from wire_server import Peer, Server, serving

from probe.client import httpx_transport
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.httpx_transport import HttpxTransport
from probe.core.clock import SystemClock
from probe.core.request import Outcome, RequestRecord, Traffic

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    return context


async def sent(client: Client) -> RequestRecord:
    return await client.send(spec(8, 3), "tiny", Traffic.CAPACITY, CLOCK.monotonic_ns())


# --- By a proxy ------------------------------------------------------------------------------------------------


def closing(rest: bytes = b"", *, after_s: float = 0.0, also_when_fresh: bool = False) -> Any:
    """Answer the first request of a connection, and close instead of answering the second."""

    async def converse(peer: Peer) -> None:
        if peer.number == 1 or not also_when_fresh:
            await peer.ask()
            await peer.say(GOOD)
        await peer.ask()
        await asyncio.sleep(after_s)
        await peer.say(rest)

    return converse


async def outcomes(server: Server, count: int) -> list[Outcome]:
    where = Endpoint("llama", "http://llama.test:8000", proxy=server.url)
    async with Client(where, CLOCK, 5.0) as client:
        return [(await sent(client)).outcome for _ in range(count)]


@pytest.mark.fault("FA57")
def test_a_connection_of_a_proxy_that_closes_as_the_request_is_written_is_replaced(run: Run) -> None:
    async def main() -> None:
        async with serving(closing()) as server:
            assert await outcomes(server, 4) == [Outcome.OK] * 4
            assert (server.made, len(server.asked)) == (4, 7)

    run(main())


def test_a_request_by_a_proxy_is_sent_again_once(run: Run) -> None:
    async def main() -> None:
        async with serving(closing(also_when_fresh=True)) as server:
            assert await outcomes(server, 2) == [Outcome.OK, Outcome.UNREACHABLE]
            assert (server.made, len(server.asked)) == (2, 3)

    run(main())


@pytest.mark.parametrize("rest", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
def test_a_request_by_a_proxy_is_not_sent_again_after_a_byte(run: Run, rest: bytes) -> None:
    async def main() -> None:
        async with serving(closing(rest)) as server:
            assert await outcomes(server, 2) == [Outcome.OK, Outcome.UNREACHABLE]
            assert (server.made, len(server.asked)) == (1, 2)

    run(main())


def test_a_server_that_works_on_a_request_and_dies_has_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx_transport, "IDLE_RACE_NS", 50_000_000)

    async def main() -> None:
        async with serving(closing(after_s=0.1)) as server:
            assert await outcomes(server, 2) == [Outcome.OK, Outcome.UNREACHABLE]
            assert (server.made, len(server.asked)) == (1, 2)

    run(main())


def test_a_connection_closed_while_idle_is_not_used(run: Run) -> None:
    async def once(peer: Peer) -> None:
        await peer.ask()
        await peer.say(GOOD)

    async def main() -> None:
        async with serving(once) as server:
            where = Endpoint("llama", "http://llama.test:8000", proxy=server.url)
            async with Client(where, CLOCK, 5.0) as client:
                for i in range(3):
                    assert (await sent(client)).outcome is Outcome.OK
                    await server.until_open(0)
                    await asyncio.sleep(0.01)
                    assert len(server.asked) == i + 1

    run(main())


def test_each_request_in_flight_has_its_connection_which_the_next_ones_use(run: Run) -> None:
    async def main() -> None:
        async with serving(_good) as server:
            where = Endpoint("llama", "http://llama.test:8000", proxy=server.url)
            async with Client(where, CLOCK, 5.0) as client:
                for _ in range(2):
                    assert {record.outcome for record in await _together(client, 8)} == {Outcome.OK}
                assert server.made == 8
                await client.close()
                await server.until_open(0)

    run(main())


def test_a_connection_that_comes_about_after_the_client_was_closed_is_closed(run: Run) -> None:
    async def main() -> None:
        async with serving(_good) as server:
            where = Endpoint("llama", "http://llama.test:8000", proxy=server.url)
            for turns in range(12):
                client = Client(where, CLOCK, 5.0)
                sending = asyncio.create_task(sent(client))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await client.close()
                assert (await sending).outcome in (Outcome.OK, Outcome.UNREACHABLE, Outcome.BROKEN_STREAM)
                await server.until_open(0)

    run(main())


def test_what_a_server_has_not_read_when_a_request_is_given_up_never_reaches_it(run: Run) -> None:
    ends: list[str] = []
    over = asyncio.Event()

    async def slow(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await over.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            await peer.until_gone()
            ends.append("all of it")
        except ConnectionResetError:
            ends.append("a reset")

    async def main() -> None:
        async with serving(slow) as server:
            through = Endpoint("llama", "http://llama.test:8000", proxy=server.url).transport()
            asked = httpx.Request("POST", "http://llama.test:8000/v1/completions", content=bytes(8 * 2**20))
            sending = asyncio.create_task(through.handle_async_request(asked))
            await asyncio.sleep(0.1)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            over.set()
            await server.until_open(0)
            await through.aclose()
        assert ends == ["a reset"]

    run(main())


@pytest.mark.parametrize("by_timeout", [False, True])
def test_giving_up_in_any_turn_of_the_loop_leaves_no_connection(
    run: Run,
    tls: ssl.SSLContext,
    by_timeout: bool,  # noqa: FBT001
) -> None:
    async def play(peer: Http2Peer) -> None:
        await peer.begin(await peer.asked())
        await peer.asked()

    async def main() -> None:
        async with http2_client(tls, play) as (server, client):
            for turns in range(0, 60, 3):
                if by_timeout:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(turns * 0.0002):
                            await sent(client)
                else:
                    sending = asyncio.create_task(sent(client))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                await server.until_open(0)

    run(main())


async def _good(peer: Peer) -> None:
    while True:
        await peer.ask()
        await peer.say(GOOD)


async def _together(client: Client, count: int) -> list[RequestRecord]:
    return await asyncio.gather(*(sent(client) for _ in range(count)))


# --- HTTP/2 ----------------------------------------------------------------------------------------------------


class Http2Peer:
    """The server's end of a connection, on which a test says what it likes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.number = peer.number
        self.wire = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        )
        self.wire.initiate_connection()

    async def asked(self) -> int:
        """Return the stream of the next request."""
        await self.say()
        while True:
            data = await self._peer.reader.read(2**16)
            if not data:
                raise ConnectionResetError
            events = self.wire.receive_data(data)
            await self.say()
            for event in events:
                if isinstance(event, h2.events.StreamEnded):
                    self._peer.server.asked.append(b"")
                    return event.stream_id

    async def say(self, raw: bytes = b"") -> None:
        await self._peer.say(self.wire.data_to_send() + raw)

    async def begin(self, stream: int, status: str = "200") -> None:
        self.wire.send_headers(stream, [(":status", status), ("content-type", "text/event-stream")])
        await self.say()

    async def answer(self, stream: int) -> None:
        await self.begin(stream)
        for event in THREE_TOKENS:
            self.wire.send_data(stream, event)
        self.wire.end_stream(stream)
        await self.say()


Play = Callable[[Http2Peer], Awaitable[None]]


@asynccontextmanager
async def http2_client(tls: ssl.SSLContext, play: Play, timeout_s: float = 2.0) -> AsyncIterator[tuple[Server, Client]]:
    async def converse(peer: Peer) -> None:
        await play(Http2Peer(peer))

    async with serving(converse, tls=tls) as server:
        where = Endpoint("llama", server.url, verify=False, http2=True)
        async with Client(where, CLOCK, timeout_s) as client:
            yield server, client


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


DATA, HEADERS, PUSH_PROMISE, WINDOW_UPDATE, CONTINUATION = 0, 1, 5, 8, 9
BREAKS: dict[str, tuple[bytes, bool]] = {  # the bytes, and whether they come after the first token
    "not HTTP/2": (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
    "not HTTP/2, in the middle": (b"x" * 100, True),
    "a frame that is too large": (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", True),
    "data of a stream that nobody opened": (frame(DATA, b"x", stream=77), True),
    "data without a head": (frame(DATA, b"x"), False),
    "headers that are not HPACK": (frame(HEADERS, b"\xff" * 40, flags=4), False),
    "a push that was not allowed": (frame(PUSH_PROMISE, b"\0\0\0\2", flags=4), True),
    "a window of nothing": (frame(WINDOW_UPDATE, b"\0\0\0\0"), True),
    "a continuation of nothing": (frame(CONTINUATION, b""), True),
}


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.fault(
    "FA130",
    "A server that breaks HTTP/2, before or within an answer",
    area="Foreign answers",
    users_see="canary `unreachable` or `broken_stream`, in one line",
    stays="the next request is answered",
)
def test_a_server_that_breaks_http2_is_a_failure_in_one_line(run: Run, tls: ssl.SSLContext, name: str) -> None:
    raw, is_within = BREAKS[name]

    async def play(peer: Http2Peer) -> None:
        stream = await peer.asked()
        if peer.number > 1:
            await peer.answer(stream)
            await peer.asked()
        if is_within:
            await peer.begin(stream)
            peer.wire.send_data(stream, token(1))
        await peer.say(raw)
        await asyncio.sleep(0.05)

    async def main() -> None:
        async with http2_client(tls, play) as (_, client):
            record = await sent(client)
            assert record.outcome in (Outcome.UNREACHABLE, Outcome.BROKEN_STREAM, Outcome.TIMEOUT), record
            assert str(record.detail).isprintable()
            assert (await sent(client)).outcome is Outcome.OK

    run(main())


def test_a_stream_that_the_server_resets_is_a_failure_and_not_sent_again(run: Run, tls: ssl.SSLContext) -> None:
    async def play(peer: Http2Peer) -> None:
        await peer.answer(await peer.asked())
        stream = await peer.asked()
        await peer.begin(stream)
        peer.wire.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        await peer.say()
        await peer.asked()

    async def main() -> None:
        async with http2_client(tls, play) as (server, client):
            assert [(await sent(client)).outcome for _ in range(2)] == [Outcome.OK, Outcome.BROKEN_STREAM]
            assert len(server.asked) == 2

    run(main())


def _refusing(code: int, *, is_whole: bool) -> Play:
    """Return a server that refuses the first request, or the whole connection, and answers the second."""

    async def play(peer: Http2Peer) -> None:
        stream = await peer.asked()
        if len(peer._peer.server.asked) > 1:
            await peer.answer(stream)
        elif is_whole:
            peer.wire.close_connection(code, b"too_many_pings", 0)
        else:
            peer.wire.reset_stream(stream, code)
        await peer.say()
        await asyncio.sleep(0.05)

    return play


@pytest.mark.parametrize(
    ("refusing", "outcome", "words"),
    [
        (_refusing(7, is_whole=False), Outcome.UNREACHABLE, "the server reset the HTTP/2 stream: REFUSED_STREAM"),
        (_refusing(2, is_whole=False), Outcome.UNREACHABLE, "the server reset the HTTP/2 stream: INTERNAL_ERROR"),
        (_refusing(11, is_whole=False), Outcome.REJECTED, "the server reset the HTTP/2 stream: ENHANCE_YOUR_CALM"),
        (_refusing(11, is_whole=True), Outcome.REJECTED, "the HTTP/2 connection: ENHANCE_YOUR_CALM, 'too_many_pings'"),
        (_refusing(0, is_whole=True), Outcome.UNREACHABLE, "the HTTP/2 connection: NO_ERROR, 'too_many_pings'"),
    ],
    ids=["stream refused", "stream failed", "too many requests", "too much on the connection", "no more requests"],
)
def test_what_a_server_says_in_http2_is_in_words(
    run: Run, tls: ssl.SSLContext, refusing: Play, outcome: Outcome, words: str
) -> None:
    async def main() -> None:
        async with http2_client(tls, refusing) as (_, client):
            record = await sent(client)
            assert (record.outcome, words in str(record.detail)) == (outcome, True), record
            assert (await sent(client)).outcome is Outcome.OK

    run(main())


@pytest.mark.parametrize("last", [None, 2**31 - 1], ids=["the request is the last", "the begin of a shutdown"])
@pytest.mark.fault(
    "FA158",
    "A proxy that is reloaded, or closes a connection after so many requests, over HTTP/2 (GOAWAY)",
    area="Foreign answers",
    users_see="nothing: the answer goes on to its end",
    stays="the next request has a connection of its own",
)
def test_an_answer_goes_on_after_a_goaway_that_lets_it(run: Run, tls: ssl.SSLContext, last: int | None) -> None:
    async def play(peer: Http2Peer) -> None:
        stream = await peer.asked()
        await peer.say(frame(7, (last or stream).to_bytes(4) + bytes(4), stream=0))
        await peer.answer(stream)
        await peer._peer.until_gone()

    async def main() -> None:
        async with http2_client(tls, play) as (server, client):
            records = [await sent(client) for _ in range(3)]
            assert [(each.outcome, len(each.events)) for each in records] == [(Outcome.OK, 3)] * 3, records
            assert (server.made, len(server.asked)) == (3, 3)

    run(main())


@pytest.mark.parametrize("way", ["goaway", "closed", "closed as the request arrives"])
def test_an_http2_connection_that_ends_between_requests_is_replaced(run: Run, tls: ssl.SSLContext, way: str) -> None:
    async def play(peer: Http2Peer) -> None:
        await peer.answer(await peer.asked())
        if way == "goaway":
            peer.wire.close_connection()
            await peer.say()
        elif way != "closed":
            with_data = await peer._peer.reader.read(1)
            assert with_data

    async def main() -> None:
        async with http2_client(tls, play) as (server, client):
            for _ in range(3):
                assert (await sent(client)).outcome is Outcome.OK
                await asyncio.sleep(0.02)
            assert server.made == 3

    run(main())


async def _answers(peer: Http2Peer) -> None:
    while True:
        await peer.answer(await peer.asked())


def test_connections_over_http2_are_opened_ahead_and_only_those_that_lack(run: Run, tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with http2_client(tls, _answers) as (server, client):
            assert (await sent(client)).outcome is Outcome.OK
            await client.connect_ahead(4)
            await server.until(lambda server: server.made == 4)
            assert {record.outcome for record in await _together(client, 4)} == {Outcome.OK}
            assert (server.made, server.open) == (4, 4)
            await client.connect_ahead(4)
            assert server.made == 4
            await client.close()
            await server.until_open(0)

    run(main())


def test_connections_to_a_proxy_are_opened_ahead(run: Run) -> None:
    async def main() -> None:
        async with serving(_good) as server:
            where = Endpoint("llama", "http://llama.test:8000", proxy=server.url)
            async with Client(where, CLOCK, 5.0) as client:
                await client.connect_ahead(3)
                await server.until(lambda server: server.made == 3)
                assert server.asked == []
                assert {record.outcome for record in await _together(client, 3)} == {Outcome.OK}
                assert server.made == 3

    run(main())


def test_a_server_that_is_down_is_reported_by_the_request_and_not_by_connecting_ahead(run: Run) -> None:
    async def main() -> None:
        async with Client(Endpoint("llama", "https://127.0.0.1:1", http2=True), CLOCK, 5.0) as client:
            await client.connect_ahead(3)
            assert (await sent(client)).outcome is Outcome.UNREACHABLE

    run(main())


# --- Limits ----------------------------------------------------------------------------------------------------

_MEGABYTE = b"x" * 2**20
ENDLESS: dict[str, tuple[bytes, bytes]] = {  # what begins the answer, and what is then repeated
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 100),
    "a header's value": (b"HTTP/1.1 200 OK\r\nx: ", _MEGABYTE),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
    "a chunk's extension": (head(200, "text/event-stream", "transfer-encoding: chunked") + b"5;", _MEGABYTE),
    "trailers": (head(200, "text/event-stream", "transfer-encoding: chunked") + chunked(), b"x: y\r\n" * 1000),
    "a status line": (b"HTTP/1.1 200 ", _MEGABYTE),
    "bytes of a body": (head(200, "text/event-stream"), _MEGABYTE),
    "nothing": (head(200, "text/event-stream"), b""),
}


@pytest.mark.slow
@pytest.mark.parametrize("by_proxy", [False, True], ids=["own transport", "proxy"])
@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.fault(
    "FA131",
    "An answer without end: interim answers, headers, a status line, trailers, a body",
    area="Foreign answers",
    users_see="a failed request in one line, at its limit at the latest",
    stays="the connection is closed",
)
def test_what_never_ends_holds_no_request_beyond_its_limit(run: Run, name: str, by_proxy: bool) -> None:  # noqa: FBT001
    first, more = ENDLESS[name]

    async def endless(peer: Peer) -> None:
        await peer.ask()
        await peer.say(first.removesuffix(b"\r\n\r\n") + b"\r\n" if name == "trailers" else first)
        while more:
            await peer.say(more)
            await asyncio.sleep(0)
        await peer.until_gone()

    async def main() -> None:
        async with serving(endless) as server:
            where = Endpoint("llama", server.url, proxy=server.url if by_proxy else None)
            async with Client(where, CLOCK, 0.3) as client:
                async with asyncio.timeout(5):
                    record = await sent(client)
                assert record.outcome is not Outcome.OK
                assert str(record.detail).isprintable()
                await server.until_open(0)

    run(main())


FLOODS = {  # repeated after the head of an answer over HTTP/2
    "empty data": frame(DATA, b"") * 500,
    "pings": frame(6, b"12345678", stream=0) * 500,
    "settings": frame(4, b"", stream=0) * 500,
    "windows": frame(WINDOW_UPDATE, b"\0\0\0\1") * 500,
    "frames of an unknown kind": frame(99, b"x" * 100) * 500,
    "headers without end": frame(HEADERS, b"", stream=1) + frame(CONTINUATION, b"\x00\x01a\x01b" * 1000) * 50,
    "nothing": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.fault("FA131")
def test_a_flood_over_http2_holds_no_request_beyond_its_limit(run: Run, tls: ssl.SSLContext, name: str) -> None:
    async def play(peer: Http2Peer) -> None:
        await peer.begin(await peer.asked())
        while FLOODS[name]:
            await peer.say(FLOODS[name])
            await asyncio.sleep(0)
        await peer.asked()

    async def main() -> None:
        async with http2_client(tls, play, timeout_s=0.3) as (server, client):
            async with asyncio.timeout(5):
                record = await sent(client)
            assert record.outcome in (Outcome.TIMEOUT, Outcome.BROKEN_STREAM, Outcome.UNREACHABLE)
            assert str(record.detail).isprintable()
            await server.until_open(0)

    run(main())


def test_files_are_read_when_the_transport_is_made() -> None:
    read: list[int] = []

    def make() -> Any:
        read.append(1)
        raise FileNotFoundError(2, "No such file")

    made = HttpxTransport(make, lambda: 1, 4.0)
    assert read == [1]
    with pytest.raises(FileNotFoundError):
        asyncio.run(made.handle_async_request(httpx.Request("GET", "http://127.0.0.1:1")))


def test_an_unused_transport_has_no_connection() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0)
            where = Endpoint("llama", f"http://127.0.0.1:{listener.getsockname()[1]}", proxy="http://127.0.0.1:1")
            await where.transport().aclose()
            with pytest.raises(BlockingIOError):
                listener.accept()

    asyncio.run(main())

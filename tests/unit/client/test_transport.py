"""The transport against servers on loopback, on both event loops, read in every way it can be read."""

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from both_loops import Run
from hostile_server import chunked, head, whole
from wire_server import Peer, Server, always, serving

from probe.client.response_buffer import BodyLimits, ResponseBuffer
from probe.client.transport import Transport

OK = whole(200, b"hello", "text/plain")
MODES = ["received", "whole", "stream"]
PATIENT: dict[str, float | None] = {"connect": 5.0, "read": 5.0, "write": 5.0, "pool": 5.0}
LINGER_0 = struct.pack("ii", 1, 0)  # closing sends a reset


def transport(keepalive_s: float = 4.0, unix_socket: str | None = None) -> Transport:
    return Transport(tls=_tls, keepalive_s=keepalive_s, unix_socket=unix_socket)


def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(verify=False, trust_env=False)


async def fetch(
    through: Transport, url: str, mode: str = "received", method: str = "GET", **request: Any
) -> tuple[int | None, bytes]:
    """Return status and body of one exchange."""
    extensions = {"timeout": dict(PATIENT) | request.pop("timeout", {})}
    if mode == "received":
        answer = ResponseBuffer(BodyLimits(2**20, 2**20))
        asked = httpx.Request(method, url, extensions={**extensions, "received": answer}, **request)
        await through.handle_async_request(asked)
        assert answer.is_complete
        return answer.status, answer.body
    # The client would close the transport with itself.
    client = httpx.AsyncClient(transport=_Lent(through), trust_env=False)
    if mode == "whole":
        response = await client.request(method, url, extensions=extensions, **request)
        return response.status_code, response.content
    async with client.stream(method, url, extensions=extensions, **request) as response:
        return response.status_code, b"".join([part async for part in response.aiter_raw()])


class _Lent(httpx.AsyncBaseTransport):
    def __init__(self, through: Transport) -> None:
        self.handle_async_request = through.handle_async_request  # type: ignore[method-assign]


async def all_closed(through: Transport) -> None:
    """Wait a turn of the loop, in which a connection learns that it has been closed."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not through._all


def idle(through: Transport) -> int:
    return sum(connection.is_usable for kept in through._idle.values() for connection in kept)


async def numbered(peer: Peer) -> None:
    """Answer with the connection's number."""
    await always(peer, whole(200, str(peer.number), "text/plain"))


async def hang(peer: Peer) -> None:
    await peer.ask()
    await peer.until_gone()


# --- As a transport of httpx -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_arrives_and_the_connection_serves_the_next(run: Run, mode: str) -> None:
    async def main() -> None:
        async with serving(numbered) as server, transport() as through:
            assert [await fetch(through, server.url, mode) for _ in range(3)] == [(200, b"1")] * 3
            assert (server.made, idle(through), len(through._all)) == (1, 1, 1)
            await through.aclose()
            await server.until_open(0)

    run(main())


def test_every_way_of_giving_a_body_reaches_the_server(run: Run) -> None:
    async def echo(peer: Peer) -> None:
        while True:
            await peer.say(whole(200, (await peer.ask()).partition(b"\r\n\r\n")[2], "text/plain"))

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"", b"two ", b"three" * 30_000):
            yield part

    text = b"one two " + b"three" * 30_000
    long = {"content-length": str(len(text))}

    async def main() -> None:
        async with serving(echo) as server, transport() as through:
            for mode in MODES:
                sent = [
                    await fetch(through, server.url, mode, "POST", content=text),
                    await fetch(through, server.url, mode, "POST", content=parts()),
                    await fetch(through, server.url, mode, "POST", content=parts(), headers=long),
                    await fetch(through, server.url, mode, "POST", stream=httpx.ByteStream(text), headers=long)
                    if mode == "received"
                    else (200, text),
                ]
                assert sent == [(200, text)] * 4
                status, body = await fetch(through, server.url, mode, "POST", files={"f": b"in a form"})
                assert status == 200
                assert b"in a form" in body
            assert server.made == 1

    run(main())


def test_it_is_a_transport_for_any_httpx_client(run: Run) -> None:
    async def site(peer: Peer) -> None:
        while True:
            line = (await peer.ask()).split(b"\r\n")[0]
            if line == b"GET /moved HTTP/1.1":
                await peer.say(whole(302, b"", "text/html", "location: /here?a=b%20c", "set-cookie: a=1"))
            else:
                await peer.say(whole(200, {"line": line.decode()}, "application/json", "X-Twice: 1", "X-Twice: 2"))

    async def main() -> None:
        async with (
            serving(site) as server,
            httpx.AsyncClient(transport=transport(), base_url=server.url, follow_redirects=True) as client,
        ):
            got = await client.get("/moved")
            assert got.json() == {"line": "GET /here?a=b%20c HTTP/1.1"}
            assert got.headers.get_list("x-twice") == ["1", "2"]
            assert (got.history[0].status_code, client.cookies["a"], got.reason_phrase) == (302, "1", "OK")
            with pytest.raises(httpx.UnsupportedProtocol):
                await client.get("ftp://127.0.0.1/")
            with pytest.raises(httpx.ConnectError) as caught:
                await client.get("http://nowhere.invalid/")
            assert caught.value.request.url.host == "nowhere.invalid"

    run(main())


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
@pytest.mark.fault(
    "NA3",
    "A port that is no port, in an address",
    area="Names",
    users_see="canary `unreachable`, one line",
    stays="no other server is reached",
)
def test_an_invalid_port_reaches_no_server(run: Run, port: int) -> None:
    """uvloop takes it modulo 65536."""

    async def main() -> None:
        async with transport() as through:
            with pytest.raises((httpx.InvalidURL, httpx.ConnectError)):
                await fetch(through, f"http://127.0.0.1:{port}")

    run(main())


def test_the_name_that_is_looked_up_is_the_one_in_the_url() -> None:
    """Python's own idna makes another name of it."""
    from probe.client.transport import origin_of  # noqa: PLC0415

    assert origin_of(httpx.URL("https://faß.example/")) == ("https", "xn--fa-hia.example", 443)
    assert origin_of(httpx.URL("http://[::1]/")) == ("http", "::1", 80)


@pytest.mark.parametrize(
    "request_",
    [
        {"headers": {"x": "a\r\ny: b"}},
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "a\0b"}},
        {"headers": {"x\r\ny": "a"}},
        {"method": "GET / HTTP/1.1\r\nx: y\r\n\r\nGET"},
    ],
)
def test_a_request_that_would_be_two_is_not_sent_and_costs_no_connection(run: Run, request_: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(numbered) as server, transport() as through:
            await fetch(through, server.url)
            for _ in range(3):
                with pytest.raises(httpx.LocalProtocolError):
                    await fetch(through, server.url, **request_)
            assert (len(server.asked), len(through._all), idle(through)) == (1, 1, 1)

    run(main())


def test_it_speaks_ipv6(run: Run) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def main() -> None:
        async with serving(numbered, host="::1") as server, transport() as through:
            assert [await fetch(through, server.url, mode) for mode in MODES] == [(200, b"1")] * 3
            assert b"\r\nHost: [::1]:" in server.asked[0]

    run(main())


def test_it_goes_through_a_unix_socket(run: Run, tmp_path: Path) -> None:
    where = os.path.relpath(tmp_path / "s")  # the kernel takes 107 bytes

    async def main() -> None:
        async with serving(numbered, unix_socket=where) as server, transport(unix_socket=where) as through:
            assert [await fetch(through, server.url, mode) for mode in MODES] == [(200, b"1")] * 3
            assert b"\r\nHost: unix.invalid\r\n" in server.asked[0]
        async with transport(unix_socket=f"{where}.none") as through:
            with pytest.raises(httpx.ConnectError):
                await fetch(through, server.url)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_connection_is_a_connect_error(run: Run, mode: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def main() -> None:
        async with transport() as through:
            for url in (f"http://127.0.0.1:{port}", "http://nowhere.invalid", f"https://127.0.0.1:{port}"):
                with pytest.raises(httpx.ConnectError):
                    await fetch(through, url, mode)
            await all_closed(through)

    run(main())


# --- Keep-alive and its races ----------------------------------------------------------------------------------


def test_the_connection_used_last_is_the_next(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def together(peer: Peer) -> None:
            while True:
                asked = await peer.ask()
                if asked.startswith(b"GET /wait"):
                    await gate.wait()
                await peer.say(whole(200, str(peer.number), "text/plain"))

        async with serving(together) as server, transport() as through:
            waiting = [asyncio.create_task(fetch(through, f"{server.url}/wait")) for _ in range(3)]
            await server.until_asked(3)
            gate.set()
            await asyncio.gather(*waiting)
            last = next(iter(through._idle.values()))[-1]
            first = await fetch(through, server.url)
            assert [await fetch(through, server.url) for _ in range(4)] == [first] * 4
            assert next(iter(through._idle.values()))[-1] is last
            assert (server.made, idle(through)) == (3, 3)

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_closed_while_idle_is_not_used(run: Run, reset: bool) -> None:  # noqa: FBT001
    async def once(peer: Peer) -> None:
        await peer.ask()
        await peer.say(OK)
        if reset:
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)

    async def main() -> None:
        async with serving(once) as server, transport() as through:
            for i in range(3):
                assert await fetch(through, server.url) == (200, b"hello")
                await server.until_open(0)
                await asyncio.sleep(0.01)
                assert (idle(through), len(through._all), len(server.asked)) == (0, 0, i + 1)

    run(main())


def closes_at_the_second_request(rest: bytes, *, reset: bool = False, also_when_fresh: bool = False) -> Any:
    async def converse(peer: Peer) -> None:
        if peer.number == 1 or not also_when_fresh:
            await peer.ask()
            await peer.say(OK)
        await peer.reader.readexactly(1)
        peer.server.asked.append(b"refused")
        await peer.say(rest)
        if reset:
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)

    return converse


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.fault(
    "FA57",
    "A connection that closes while the request is written",
    area="Foreign answers",
    users_see="nothing: it is sent once more, on a new connection",
    stays="never sent again after a byte of the answer",
)
def test_a_connection_closed_while_the_request_is_written_is_replaced(run: Run, mode: str, reset: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with serving(closes_at_the_second_request(b"", reset=reset)) as server, transport() as through:
            assert await fetch(through, server.url, mode) == (200, b"hello")
            assert await fetch(through, server.url, mode, "POST", content=b"again") == (200, b"hello")
            assert (server.made, server.asked[1], len(server.asked)) == (2, b"refused", 3)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_request_is_sent_again_once_and_on_a_new_connection(run: Run, mode: str) -> None:
    async def main() -> None:
        converse = closes_at_the_second_request(b"", also_when_fresh=True)
        async with serving(converse) as server, transport() as through:
            assert await fetch(through, server.url, mode) == (200, b"hello")
            with pytest.raises(httpx.RemoteProtocolError, match="without an answer"):
                await fetch(through, server.url, mode)
            assert (server.made, server.asked[1:]) == (2, [b"refused"] * 2)
            await server.until_open(0)
            await all_closed(through)

    run(main())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rest", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
@pytest.mark.fault("FA57")
def test_a_request_is_never_sent_again_after_a_byte_of_the_answer(run: Run, mode: str, rest: bytes) -> None:
    async def main() -> None:
        async with serving(closes_at_the_second_request(rest)) as server, transport() as through:
            assert await fetch(through, server.url, mode) == (200, b"hello")
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(through, server.url, mode)
            assert server.made == 1

    run(main())


def test_a_body_that_was_read_cannot_be_sent_again(run: Run) -> None:
    taken = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(3):
            taken += 1
            yield b"part"
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with serving(closes_at_the_second_request(b"")) as server, transport() as through:
            assert await fetch(through, server.url) == (200, b"hello")
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(through, server.url, "received", "POST", content=body())
            assert server.made == 1
            assert taken <= 3

    run(main())


def test_an_idle_connection_is_kept_for_a_limited_time(run: Run) -> None:
    async def main() -> None:
        async with serving(numbered) as server, transport(keepalive_s=0.05) as through:
            assert await fetch(through, server.url) == (200, b"1")
            await asyncio.sleep(0.08)
            assert await fetch(through, server.url) == (200, b"2")
            await server.until_open(1)
            assert (idle(through), len(through._all)) == (1, 1)

    run(main())


@pytest.mark.fault(
    "SO9",
    "A burst's connections",
    area="Sockets",
    users_see="nothing",
    stays="they are let go though one is in use",
)
def test_connections_of_a_burst_are_let_go_though_one_is_in_use(run: Run) -> None:
    async def main() -> None:
        async with serving(numbered) as server, transport(keepalive_s=0.2) as through:
            await through.connect_ahead(httpx.URL(server.url), 20)
            assert idle(through) == 20
            for _ in range(4):
                await asyncio.sleep(0.08)
                await fetch(through, server.url)
            await server.until_open(1)
            assert len(through._all) == 1

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        whole(200, b"hello", "text/plain", "connection: close"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"more",
        OK + OK,
        head(200, "text/plain") + b"hello",
    ],
    ids=["close", "HTTP/1.0", "more bytes", "two answers", "until it closes"],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_connection_that_cannot_be_kept_is_closed_at_once(run: Run, mode: str, answer: bytes) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(answer)
        if b"content-length" in answer:
            await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            for i in range(2):
                assert await fetch(through, server.url, mode) == (200, b"hello")
                assert (server.made, idle(through)) == (i + 1, 0)
                await server.until_open(0)

    run(main())


@pytest.mark.parametrize("late", [b"x", b"\r\n", OK, b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
def test_a_connection_on_which_bytes_come_unasked_is_not_used(run: Run, late: bytes) -> None:
    async def converse(peer: Peer) -> None:
        if peer.number > 1:
            await peer.ask()
            await peer.say(OK)
        await asyncio.sleep(0.01)
        await peer.say(late)
        await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            await through.connect_ahead(httpx.URL(server.url), 1)  # never used before
            await server.until_open(0)
            assert await fetch(through, server.url) == (200, b"hello")
            await server.until_open(0)
            assert (server.made, len(through._all)) == (2, 0)

    run(main())


def test_connections_are_opened_ahead_and_only_those_that_lack(run: Run) -> None:
    async def main() -> None:
        async with serving(numbered) as server, transport() as through:
            url = httpx.URL(server.url)
            await through.connect_ahead(url, 3)
            await through.connect_ahead(url, 5)
            await through.connect_ahead(url, 2)
            assert (server.made, idle(through)) == (5, 5)
            await asyncio.gather(*(fetch(through, server.url) for _ in range(5)))
            assert server.made == 5
        async with transport() as through:
            await through.connect_ahead(httpx.URL("http://nowhere.invalid"), 2)
            await all_closed(through)

    run(main())


# --- Time ------------------------------------------------------------------------------------------------------


async def slow_head(peer: Peer) -> None:
    await peer.ask()
    for byte in OK * 100:
        await peer.say(bytes([byte]))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("said", "limits", "words"),
    [
        (b"", {"read": 0.03}, "no answer within 0.03 s"),
        (b"", {"read": 9.0, "first_byte": 0.03}, "no answer within 0.03 s"),
        (b"H", {"read": 0.03, "first_byte": 9.0}, "nothing more within 0.03 s"),
        (head(200, "text/plain", "content-length: 5") + b"hell", {"read": 0.03}, "nothing more within 0.03 s"),
        (head(200, "text/plain") + b"hell", {"read": 0.03, "first_byte": None}, "nothing more within 0.03 s"),
    ],
)
def test_each_wait_has_its_limit(run: Run, mode: str, said: bytes, limits: dict[str, Any], words: str) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(said)
        await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            with pytest.raises(httpx.ReadTimeout, match=words):
                await fetch(through, server.url, mode, timeout=limits)
            await server.until_open(0)
            await all_closed(through)

    run(main())


@pytest.mark.fault(
    "ST110",
    "Kneewatch is frozen for longer than its time limits, and bytes wait when it runs again",
    area="Starvation",
    users_see="-",
    stays="they are read before anything is judged: the server was not silent",
)
def test_bytes_that_wait_after_a_freeze_are_no_silence(run: Run) -> None:
    """The loop freezes in a read: timers come next."""

    async def main() -> None:
        freezes, begins = socket.socketpair()
        loop = asyncio.get_running_loop()

        async def converse(peer: Peer) -> None:
            await peer.ask()
            await peer.say(OK[:-2])
            theirs = socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno()))

            def freeze() -> None:
                loop.remove_reader(freezes)
                with theirs:
                    theirs.send(OK[-2:])
                time.sleep(0.4)

            loop.add_reader(freezes, freeze)
            begins.send(b"now")

        with freezes, begins:
            async with serving(converse) as server, transport() as through:
                assert await fetch(through, server.url, "received", timeout={"read": 0.2}) == (200, b"hello")

    run(main())


@pytest.mark.slow
def test_an_answer_whose_bytes_keep_coming_is_within_the_limits(run: Run) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await asyncio.sleep(0.1)
        for part in (OK[:3], OK[3:30], OK[30:-2], OK[-2:]):
            await peer.say(part)
            await asyncio.sleep(0.02)

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            for mode in MODES:
                limits = {"read": 0.08, "first_byte": 2.0}
                assert await fetch(through, server.url, mode, timeout=limits) == (200, b"hello")

    run(main())


@pytest.mark.parametrize("mode", ["received", "stream"])
@pytest.mark.fault(
    "SO7",
    "A head that comes byte by byte",
    area="Sockets",
    users_see="ends with the caller's patience",
    stays="-",
)
def test_a_head_that_comes_byte_by_byte_ends_with_the_callers_patience(run: Run, mode: str) -> None:
    async def main() -> None:
        async with serving(slow_head) as server, transport() as through:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await fetch(through, server.url, mode, timeout={"read": 0.08})
            await server.until_open(0)
            await all_closed(through)

    run(main())


def full_queue() -> tuple[socket.socket, list[socket.socket]]:
    """Return a listener that accepts no more connections, and the connections that fill its queue."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = []
    for _ in range(4):
        one = socket.socket()
        one.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            one.connect(listener.getsockname())
        waiting.append(one)
    return listener, waiting


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.fault(
    "SO5",
    "A connection that does not come about",
    area="Sockets",
    users_see="`timeout` at its own limit",
    stays="-",
)
def test_a_connection_that_does_not_come_about_has_its_limit(run: Run, scheme: str) -> None:
    listener, waiting = full_queue()

    async def main() -> None:
        async with transport() as through:
            with pytest.raises(httpx.ConnectTimeout, match=r"no connection within 0\.05 s"):
                await fetch(through, f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", timeout={"connect": 0.05})
            await all_closed(through)

    run(main())
    for one in (listener, *waiting):
        one.close()


@pytest.mark.fault(
    "SO6",
    "A TLS handshake that does not end",
    area="Sockets",
    users_see="`timeout` at its own limit",
    stays="-",
)
def test_a_handshake_that_does_not_end_has_its_limit(run: Run) -> None:
    async def main() -> None:
        async with serving(Peer.until_gone) as server, transport() as through:
            url = server.url.replace("http:", "https:")
            with pytest.raises(httpx.ConnectTimeout):
                await fetch(through, url, timeout={"connect": 0.1})
            await server.until_open(0)
            await all_closed(through)

    run(main())


# --- Giving up -------------------------------------------------------------------------------------------------

MOMENTS = {
    "before it starts": b"",
    "while the queue is full": b"",
    "in the handshake": b"",
    "sent": b"",
    "in the head": b"HTTP/1.1 200 O",
    "after the head": head(200, "text/plain", "content-length: 9"),
    "in the body": head(200, "text/plain", "transfer-encoding: chunked") + chunked(b"hell", end=False),
    "while sending": b"",
}


async def forever() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000
        await asyncio.sleep(0.001)


async def answers_all_but_the_first(peer: Peer, moment: str) -> None:
    if peer.number > 1 or moment in ("before it starts", "while the queue is full"):
        await always(peer, OK)
    if moment in ("in the handshake", "while sending"):
        peer.server.asked.append(b"something")
        peer.server.news.set()
    else:
        await peer.ask()
    await peer.say(MOMENTS[moment])
    await peer.until_gone()


async def until(moment: str, server: Server) -> None:
    if moment == "before it starts":
        return
    if moment != "while the queue is full":
        await server.until_asked()
    await asyncio.sleep(0.01)  # what was said arrives


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "by_timeout"), [*((mode, False) for mode in MODES), ("received", True)])
@pytest.mark.parametrize("moment", MOMENTS)
def test_giving_up_closes_the_connection_at_once(run: Run, mode: str, moment: str, by_timeout: bool) -> None:  # noqa: FBT001
    """vLLM stops the work for a request when its client is gone."""
    listener, waiting = full_queue()

    async def main() -> None:
        async with (
            serving(lambda peer: answers_all_but_the_first(peer, moment)) as server,
            transport() as through,
        ):
            urls = {
                "in the handshake": server.url.replace("http:", "https:"),
                "while the queue is full": f"http://127.0.0.1:{listener.getsockname()[1]}",
            }
            request: dict[str, Any] = {"method": "POST", "content": forever()} if moment == "while sending" else {}

            async def attempt() -> None:
                async with asyncio.timeout(0.03 if by_timeout else None):
                    await fetch(through, urls.get(moment, server.url), mode, **request)

            task = asyncio.create_task(attempt())
            await until(moment, server)
            if moment == "before it starts" or not by_timeout:
                task.cancel()
            with pytest.raises(asyncio.CancelledError if task.cancelling() else TimeoutError):
                await task
            async with asyncio.timeout(5):
                await server.until_open(0)
            await all_closed(through)
            assert await fetch(through, server.url, mode) == (200, b"hello")
            assert (server.open, idle(through)) == (1, 1)

    run(main())
    for one in (listener, *waiting):
        one.close()


@pytest.mark.slow
@pytest.mark.fault(
    "SO8",
    "A request is given up at any moment",
    area="Sockets",
    users_see="nothing",
    stays="its connection is closed at once; nothing is left",
)
def test_giving_up_in_any_turn_of_the_loop_leaves_nothing_behind(run: Run) -> None:
    choice = random.Random(7)

    async def converse(peer: Peer) -> None:
        while True:
            await peer.ask()
            for part in (OK[:9], OK[9:40], OK[40:]):
                await peer.say(part)

    async def main() -> None:
        async with serving(converse) as server, transport() as through:

            async def one(turns: int) -> None:
                task = asyncio.create_task(fetch(through, server.url, choice.choice(MODES)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert await task == (200, b"hello")

            for _ in range(20):
                await asyncio.gather(*(one(choice.randrange(60)) for _ in range(10)))
            assert await asyncio.gather(*(fetch(through, server.url) for _ in range(20))) == [(200, b"hello")] * 20
            await asyncio.sleep(0)
            assert len(through._all) == idle(through)
            await server.until_open(idle(through))
            await through.aclose()
            await server.until_open(0)

    run(main())


def test_a_body_that_is_not_read_to_its_end_closes_the_connection(run: Run) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(head(200, "text/plain", "content-length: 9") + b"hello")
        await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, httpx.AsyncClient(transport=transport()) as client:
            async with client.stream("GET", server.url) as response:
                async for part in response.aiter_raw():
                    assert part == b"hello"
                    break
            await server.until_open(0)
            async with client.stream("GET", server.url):
                pass
            await server.until_open(0)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_closing_the_client_ends_what_is_in_flight(run: Run, mode: str) -> None:
    async def converse(peer: Peer) -> None:
        asked = await peer.ask()
        if b"/body" in asked:
            await peer.say(head(200, "text/plain") + b"no length is said")
        await peer.until_gone()

    async def main() -> None:
        async with serving(numbered) as server, transport() as through:
            await fetch(through, server.url)  # whatever the loop opens for itself
        await asyncio.sleep(0.01)
        before = open_files()
        async with serving(converse) as server:
            through = transport()
            await through.connect_ahead(httpx.URL(server.url), 2)
            silent = server.url.replace("http:", "https:")
            urls = [server.url, f"{server.url}/body", silent]
            tasks = [asyncio.create_task(fetch(through, url, mode)) for url in urls]
            await server.until_asked(2)
            await server.until_open(3)
            await asyncio.sleep(0.01)
            await through.aclose()
            await through.aclose()
            tasks[2].cancel()  # it has no connection yet that could be closed
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, httpx.TransportError) for result in results[:2]), results
            await server.until_open(0)
            with pytest.raises(httpx.ConnectError, match="closed"):
                await fetch(through, server.url, mode)
            await all_closed(through)
        await asyncio.sleep(0.01)
        assert open_files() <= before

    run(main())


def test_a_connection_that_comes_about_after_the_client_was_closed_is_closed(run: Run) -> None:
    async def main() -> None:
        async with serving(numbered) as server:
            through = transport()
            task = asyncio.create_task(fetch(through, server.url))
            await asyncio.sleep(0)
            await through.aclose()
            with pytest.raises((httpx.ConnectError, httpx.RemoteProtocolError)):
                await task
            await server.until_open(0)
            await all_closed(through)

    run(main())


def open_files() -> int:
    here = Path("/proc/self/fd")
    return len(list(here.iterdir())) if here.exists() else 0


@pytest.mark.fault(
    "SO4",
    "Many failed requests",
    area="Sockets",
    users_see="nothing",
    stays="no socket is left",
)
def test_no_socket_is_left_after_many_failures(run: Run) -> None:
    answers = [OK, b"garbage\r\n\r\n", b"", head(200, "text/plain", "content-length: 9") + b"hello", OK + b"x"]

    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(answers[peer.number % len(answers)])

    async def main() -> None:
        async with serving(converse) as server:
            before = open_files()
            async with transport() as through:
                for mode in MODES * 10:
                    with contextlib.suppress(httpx.HTTPError):
                        await fetch(through, server.url, mode)
                    await server.until_open(0)
                await asyncio.sleep(0.01)
                await all_closed(through)
            assert open_files() <= before

    run(main())


# --- Back-pressure ---------------------------------------------------------------------------------------------

LONG = 16 * 2**20


@pytest.mark.parametrize("mode", ["received", "stream"])
@pytest.mark.fault(
    "FA68",
    "A server that never reads what is sent",
    area="Foreign answers",
    users_see="it is sent no more than it takes",
    stays="memory is bounded",
)
def test_a_server_that_never_reads_is_sent_no_more_than_it_takes(run: Run, mode: str) -> None:
    made = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(LONG // 2**16):
            made += 2**16
            yield bytes(2**16)

    async def main() -> None:
        over = asyncio.Event()

        async def converse(peer: Peer) -> None:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await over.wait()

        async with serving(converse) as server, transport() as through:
            with pytest.raises(httpx.WriteTimeout, match=r"nothing taken within 0\.1 s"):
                await fetch(through, server.url, mode, "POST", content=body(), timeout={"write": 0.1, "read": 0.05})
            assert made < LONG / 2
            with pytest.raises(httpx.ReadTimeout, match="no answer within"):
                await fetch(through, server.url, mode, "POST", content=bytes(LONG), timeout={"read": 0.1})
            await all_closed(through)
            over.set()

    run(main())


@pytest.mark.slow
def test_an_upload_that_takes_longer_than_the_answer_may_is_no_failure(run: Run) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            await asyncio.sleep(0.04)
            yield b"x"

    async def main() -> None:
        async with serving(lambda peer: always(peer, OK)) as server, transport() as through:
            for mode in MODES:
                got = await fetch(through, server.url, mode, "POST", content=body(), timeout={"read": 0.1})
                assert got == (200, b"hello")

    run(main())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", [False, True])
def test_an_answer_before_the_end_of_the_upload_ends_it(run: Run, mode: str, keep: bool) -> None:  # noqa: FBT001
    made = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(1000):
            made += 1
            yield b"x" * 100
            await asyncio.sleep(0.001)

    async def converse(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(whole(413, b"too much", "text/plain"))
        if keep:
            await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            assert await fetch(through, server.url, mode, "POST", content=body()) == (413, b"too much")
            assert made < 500
            assert idle(through) == 0
            await server.until_open(0)

    run(main())


async def flood(peer: Peer) -> None:
    await peer.ask()
    await peer.say(head(200, "text/plain", f"content-length: {LONG}"))
    for _ in range(LONG // 2**16):
        await peer.say(bytes(2**16))
        peer.server.asked.append(b"part")
    await peer.until_gone()


def test_for_a_reader_who_does_not_read_the_server_has_to_wait(run: Run) -> None:
    async def main(server: Server, through: Transport) -> None:
        client = httpx.AsyncClient(transport=_Lent(through))
        async with client.stream("GET", server.url, extensions={"timeout": {"read": 0.1}}) as response:
            sent = -1
            while sent < len(server.asked):  # until the server is stuck; longer than it may be silent
                sent = len(server.asked)
                await asyncio.sleep(0.15)
            assert sent < LONG // 2**16
            (connection,) = through._all
            assert connection._response.buffer is not None
            assert connection._response.buffer.size < 2 * 2**20
            size = 0
            async for part in response.aiter_raw():
                size += len(part)
            assert size == LONG
        assert idle(through) == 1

    async def both() -> None:
        async with serving(flood) as server, transport() as through:
            await main(server, through)

    run(both())


@pytest.mark.slow
@pytest.mark.fault(
    "SO14",
    "A slow reader of an answer",
    area="Sockets",
    users_see="the server is not called late",
    stays="-",
)
def test_a_reader_who_was_slow_does_not_make_the_server_late(run: Run) -> None:
    """The wait for the next byte begins when he has taken what there was."""
    just_too_much = 2**20 + 1  # so the socket is left alone, and nothing is in it

    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(head(200, "text/plain", f"content-length: {just_too_much + 5}"))
        await peer.say(bytes(just_too_much))
        await asyncio.sleep(0.45)
        await peer.say(b"hello")
        await peer.until_gone()

    async def main() -> None:
        async with serving(converse) as server, transport() as through:
            client = httpx.AsyncClient(transport=_Lent(through))
            async with client.stream("GET", server.url, extensions={"timeout": {"read": 0.2}}) as response:
                await asyncio.sleep(0.39)  # just before the second look at the time
                assert len(b"".join([part async for part in response.aiter_raw()])) == just_too_much + 5

    run(main())


def test_a_received_body_that_is_too_long_ends_the_exchange(run: Run) -> None:
    async def main() -> None:
        async with serving(flood) as server, transport() as through:
            answer = ResponseBuffer(BodyLimits(2**20, 2**20))
            await through.handle_async_request(httpx.Request("GET", server.url, extensions={"received": answer}))
            assert (answer.cut is not None, answer.is_complete) == (True, False)
            assert 2**20 < answer.size < 2**21
            await server.until_open(0)
            await all_closed(through)

    run(main())

"""An app on a socket: there when its address is given, gone afterwards."""

import asyncio
import socket
from contextlib import suppress

import httpx
import pytest
from starlette.responses import PlainTextResponse

from probe.core.errors import ConfigError
from probe.runtime.kept_program import free_port
from probe.web.serve import serve

HELLO = PlainTextResponse("hello")


async def _get(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url)).text


@pytest.mark.slow
def test_it_answers_while_the_block_runs_and_not_after() -> None:
    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            assert await _get(url) == "hello"
        with pytest.raises(httpx.ConnectError):
            await _get(url)

    asyncio.run(run())


def test_the_address_can_be_connected_to_as_soon_as_it_is_given() -> None:
    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=1):
                pass

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_its_address_is_a_url_of_either_family(host: str) -> None:
    async def run() -> None:
        async with serve(HELLO, host, 0) as url:
            assert await _get(url) == "hello"

    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    asyncio.run(run())


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
@pytest.mark.fault(
    "SO2",
    "A connection of the listening address is taken",
    area="Sockets",
    users_see="one line, exit 2",
    stays="-",
)
def test_an_address_that_cannot_be_listened_on_is_a_configuration_error(host: str) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError) as raised:
                async with serve(HELLO, host, port):
                    pass
        (line,) = str(raised.value).splitlines()
        assert line.startswith(f"listen: {host}:{port}")

    asyncio.run(run())


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99_999), ("no-such-host.invalid", 0)])
def test_an_address_that_is_none_is_a_configuration_error(host: str, port: int) -> None:
    async def run() -> None:
        with pytest.raises(ConfigError, match="listen"):
            async with serve(HELLO, host, port):
                pass

    asyncio.run(run())


@pytest.mark.slow
def test_a_port_is_free_again_at_once() -> None:
    async def run() -> None:
        port = free_port()
        for _ in range(2):
            async with serve(HELLO, "127.0.0.1", port):
                pass

    asyncio.run(run())


# Before anybody's password is known.


async def _ended(reader: asyncio.StreamReader, within_s: float = 5.0) -> bool:
    """Whether the other side has closed the connection."""
    try:
        return await asyncio.wait_for(reader.read(1), within_s) == b""
    except (ConnectionError, TimeoutError) as error:
        return isinstance(error, ConnectionError)


def _address(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rsplit(":", 1)[1])


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"a"], ids=["headers", "one header"])
@pytest.mark.fault(
    "ME7",
    "A request head without end on Kneewatch's pages",
    area="Memory",
    users_see="the connection is closed",
    stays="-",
)
def test_a_head_without_end_is_not_kept(piece: bytes) -> None:
    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            reader, writer = await asyncio.open_connection(*_address(url))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
            sent = 0
            with suppress(ConnectionError):
                while sent < 1_000_000 and not reader.at_eof():
                    writer.write(piece * 1000)
                    sent += len(piece) * 1000
                    await writer.drain()
                    await asyncio.sleep(0)
            assert await _ended(reader)
            writer.close()
            assert await _get(url) == "hello"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "SO1",
    "A connection that sends nothing",
    area="Sockets",
    users_see="closed after 10 s",
    stays="-",
)
def test_a_connection_without_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.web.serve.HEAD_S", 0.2)

    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            reader, writer = await asyncio.open_connection(*_address(url))
            assert await _ended(reader)
            writer.close()
            assert await _get(url) == "hello"

    asyncio.run(run())


@pytest.mark.fault("C32b")
def test_a_new_connection_takes_the_place_of_the_one_used_least_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.web.serve.MAX_CONNECTIONS", 5)

    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            held = [await asyncio.open_connection(*_address(url)) for _ in range(5)]
            first_reader, first_writer = held[0]
            first_writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(first_reader.readuntil(b"hello"), 5)
            assert await _get(url) == "hello"
            assert await _ended(held[1][0]), "it has sent nothing"
            first_writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(first_reader.readuntil(b"hello"), 5)
            for _, writer in held:
                writer.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.fault("C33")
def test_a_reader_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("probe.web.serve.PART_S", 0.2)
    large = PlainTextResponse(b"x" * 20_000_000)

    async def run() -> None:
        async with serve(large, "127.0.0.1", 0) as url:
            with socket.create_connection(_address(url)) as reader:
                reader.sendall(f"GET / HTTP/{version}\r\nHost: x\r\n\r\n".encode())
                await asyncio.sleep(1)
                reader.settimeout(5)
                taken = 0
                with suppress(ConnectionError):
                    while data := reader.recv(1 << 20):
                        taken += len(data)
                assert taken < 20_000_000
            assert len(await _get(url)) == 20_000_000

    asyncio.run(run())


@pytest.mark.slow
def test_a_response_has_a_limit_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.web.serve.RESPONSE_S", 0.5)
    monkeypatch.setattr("probe.web.serve.PART_S", 30.0)
    large = PlainTextResponse(b"x" * 20_000_000)

    async def run() -> None:
        async with serve(large, "127.0.0.1", 0) as url:
            with socket.create_connection(_address(url)) as reader:
                reader.sendall(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
                await asyncio.sleep(1.2)
                reader.settimeout(5)
                taken = 0
                with suppress(ConnectionError):
                    while data := reader.recv(1 << 20):
                        taken += len(data)
                assert taken < 20_000_000

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_body_arrives_whole(size: int) -> None:
    body = bytes(n % 251 for n in range(size))

    async def run() -> None:
        async with serve(PlainTextResponse(body), "127.0.0.1", 0) as url, httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(url)).content == body
            assert (await client.head(url)).headers["content-length"] == str(size)

    asyncio.run(run())


@pytest.mark.slow
def test_a_connection_that_is_kept_has_as_long_for_its_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.web.serve.HEAD_S", 1.0)

    async def run() -> None:
        async with serve(HELLO, "127.0.0.1", 0) as url:
            reader, writer = await asyncio.open_connection(*_address(url))
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"hello" in await asyncio.wait_for(reader.readuntil(b"hello"), 5)
            await asyncio.sleep(1.5)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"hello" in await asyncio.wait_for(reader.readuntil(b"hello"), 5), "waiting for one is no half head"
            writer.write(b"GET / HTTP/1.1\r\nHo")
            assert await _ended(reader)
            writer.close()

    asyncio.run(run())

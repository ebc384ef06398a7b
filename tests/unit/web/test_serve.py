"""An app on a socket: there when its address is given, gone afterwards."""

import asyncio
import socket

import httpx
import pytest
from standin import free_port
from starlette.responses import PlainTextResponse

from probe.errors import ConfigError
from probe.web.serve import serve

HELLO = PlainTextResponse("hello")


async def _get(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url)).text


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


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_its_address_is_a_url_of_either_family(host: str) -> None:
    async def run() -> None:
        async with serve(HELLO, host, 0) as url:
            assert await _get(url) == "hello"

    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    asyncio.run(run())


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
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


def test_a_port_is_free_again_at_once() -> None:
    async def run() -> None:
        port = free_port()
        for _ in range(2):
            async with serve(HELLO, "127.0.0.1", port):
                pass

    asyncio.run(run())

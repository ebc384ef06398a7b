"""The commands' event loop looks names up in its own way, for every caller."""

import asyncio
import socket
import threading
import time

import anyio
import httpx
import pytest
from hostile_server import hostile, whole

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.transport import Transport
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.runtime import event_loop, name_lookups


def test_addresses_and_names_become_addresses_with_the_port() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for host in ("127.0.0.1", "localhost", b"localhost"):
            found = await loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            assert ("127.0.0.1", 80) in [address for *_, address in found]
        ((*_, address),) = await loop.getaddrinfo("::1", 80, type=socket.SOCK_STREAM)
        assert address == ("::1", 80, 0, 0)
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("nowhere.invalid", 80, type=socket.SOCK_STREAM)

    event_loop.run(main())


@pytest.mark.fault("C46")
def test_names_that_hang_neither_hold_up_other_names_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()

    def look_up(host: str) -> object:
        if not host.startswith("alive"):
            forever.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(name_lookups, "_system_lookup", look_up)

    async def main() -> list[int]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(transport=_transport()) as own:
            dead = [asyncio.create_task(own.get(f"http://dead{i}.invalid:{port}", timeout=30)) for i in range(20)]
            dead += [asyncio.create_task(anyio.connect_tcp(f"gone{i}.invalid", port)) for i in range(20)]  # type: ignore[list-item]
            await asyncio.sleep(0.1)
            async with httpx.AsyncClient(trust_env=False) as stock:
                clients = (own, stock)
                answers = [await client.get(f"http://alive.invalid:{port}", timeout=10) for client in clients]
            for each in dead:
                each.cancel()
            await asyncio.gather(*dead, return_exceptions=True)
        return [answer.status_code for answer in answers]

    began_s = time.monotonic()
    assert event_loop.run(main()) == [204, 204]
    assert time.monotonic() - began_s < 15
    forever.set()


@pytest.mark.fault(
    "NM9",
    "A name is not resolved within `connect_timeout`",
    area="Names",
    users_see="canary `timeout`: the name was not resolved within 5 s",
    stays="-",
)
def test_a_name_that_is_not_resolved_in_time_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(name_lookups, "_system_lookup", lambda _: forever.wait(30))
    endpoint = Endpoint("a", "http://dead.invalid:8000", connect_s=0.05)

    async def main() -> None:
        async with Client(endpoint, SystemClock(), timeout_s=10.0) as client:
            with pytest.raises(TargetError, match=r"the name dead\.invalid was not resolved within 0\.05 s"):
                await client.models()

    event_loop.run(main())
    forever.set()


@pytest.mark.fault(
    "NM10",
    "The first address of a name refuses connections",
    area="Names",
    users_see="-",
    stays="the next one is tried",
)
def test_the_next_address_of_a_name_is_tried_where_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(name_lookups, "_system_lookup", lambda _: both)

    async def main() -> None:
        async with hostile([whole(200, b"well")]) as server, httpx.AsyncClient(transport=_transport()) as client:
            port = httpx.URL(server.base_url).port
            for _ in range(2):
                answer = await client.get(f"http://two.invalid:{port}", headers={"connection": "close"})
                assert answer.text == "well"

    event_loop.run(main())


def _transport() -> Transport:
    return Transport(tls=httpx.create_ssl_context)

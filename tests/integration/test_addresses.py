"""Names with several addresses: a dead one costs a quarter of a second, and live ones get equal shares."""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
import trustme
from dead_address import DEAD, dead_address
from forward_proxy import forward_proxy
from hostile_server import GOOD, THREE_TOKENS, hostile, whole
from http2_server import http2_server
from plain_records import spec

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import Outcome, Traffic
from probe.runtime import event_loop
from probe.runtime.kept_program import free_port
from probe.scrape.scraper import Scraper

CLOCK = SystemClock()
NAME = "several.invalid"
ANSWERS = {"/v1/completions": ("text/event-stream", b"".join(THREE_TOKENS))}


def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(NAME).configure_cert(context)
    return context


def by_name(url: str) -> str:
    return str(httpx.URL(url).copy_with(host=NAME))


# Each way's endpoint, and the address that the name's port belongs to.
@asynccontextmanager
async def plain() -> AsyncIterator[tuple[Endpoint, str]]:
    async with hostile([GOOD]) as server:
        yield Endpoint("llama", by_name(server.base_url)), server.base_url


@asynccontextmanager
async def with_tls() -> AsyncIterator[tuple[Endpoint, str]]:
    async with hostile([GOOD], tls=tls()) as server:
        yield Endpoint("llama", by_name(server.base_url), verify=False), server.base_url


@asynccontextmanager
async def http2() -> AsyncIterator[tuple[Endpoint, str]]:
    async with http2_server(ANSWERS, tls()) as server:
        yield Endpoint("llama", by_name(server.base_url), verify=False, http2=True), server.base_url


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[Endpoint, str]]:
    async with hostile([GOOD]) as server, forward_proxy() as through:
        yield Endpoint("llama", server.base_url, proxy=by_name(through.url)), through.url


Way = Callable[[], AbstractAsyncContextManager[tuple[Endpoint, str]]]


@pytest.mark.parametrize("way", [plain, with_tls, http2, proxy], ids=lambda way: way.__name__)
@pytest.mark.fault("NM20")
def test_a_canary_gets_past_a_dead_first_address(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, DEAD, "127.0.0.1")

    async def main() -> None:
        async with way() as (where, url), Client(where, CLOCK, 10.0) as client:
            with dead_address(httpx.URL(url).port or 0):
                began_ns = CLOCK.monotonic_ns()
                record = await client.send(spec(8, 3), "tiny", Traffic.CANARY, began_ns)
                assert (record.outcome, record.detail) == (Outcome.OK, None)
                assert 0.2e9 < record.done_ns - began_ns < 3e9  # the limit for connecting is 5 s

    event_loop.run(main())


def test_metrics_are_read_past_a_dead_first_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, DEAD, "127.0.0.1")
    page = b"vllm:num_requests_running 3.0\n"

    async def main() -> None:
        async with hostile([whole(200, page, "text/plain")]) as server:
            with dead_address(httpx.URL(server.base_url).port or 0):
                scraper = Scraper(Endpoint("llama", by_name(server.base_url)), CLOCK, 3.0)
                assert (await scraper.read()).running == 3
                await scraper.close()

    event_loop.run(main())


@pytest.mark.parametrize("over_http2", [False, True])
@pytest.mark.parametrize("dead", [None, DEAD])
def test_new_connections_go_to_the_live_addresses_in_equal_shares(
    over_http2: bool,  # noqa: FBT001
    dead: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = [f"127.0.0.{i}" for i in range(1, 6) if f"127.0.0.{i}" != dead]
    resolves_to(monkeypatch, *[f"127.0.0.{i}" for i in range(1, 6)])
    reached: Counter[str] = Counter()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached[writer.get_extra_info("sockname")[0]] += 1
        writer.close()

    async def main() -> None:
        port = free_port()
        server = await asyncio.start_server(accept, live, port)
        where = Endpoint("llama", f"http://{NAME}:{port}", http2=over_http2)
        with dead_address(port, dead) if dead else contextlib.nullcontext():
            async with Client(where, CLOCK, 5.0) as client:
                for _ in range(20):
                    await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())
        server.close()

    event_loop.run(main())
    assert set(reached) == set(live)
    assert max(reached.values()) - min(reached.values()) <= 1, reached


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(event_loop, "_system_lookup", lambda _: found)

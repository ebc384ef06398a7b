"""Whatever gives a request up stops the server at once, whichever way the request went.

The servers count what they generate. A request is given up by cancellation, as a stop, the guard, a budget and Ctrl-C
do; by its time limit, as a canary; and by closing the client.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme
from counting_server import Generated, counting_server
from forward_proxy import forward_proxy
from nginx_proxy import nginx_with_http2
from plain_records import spec

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.step import StepPlan
from probe.load.step_executor import StepExecution

CLOCK = SystemClock()
AT_ONCE = 4
LONG_S = 60.0


@dataclass(frozen=True, slots=True)
class Tls:
    """The test's own authority."""

    ca_file: str
    folder: Path
    ca: trustme.CA

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Tls(str(folder / "ca.pem"), folder, ca)


def endpoint(server: Generated, tls: Tls, **way: object) -> Endpoint:
    return replace(Endpoint("llama", server.base_url, ca_file=tls.ca_file), **way)  # type: ignore[arg-type]


@asynccontextmanager
async def http1(tls: Tls) -> AsyncIterator[tuple[Generated, Endpoint]]:
    async with counting_server(tls.server()) as server:
        yield server, endpoint(server, tls)


@asynccontextmanager
async def http2(tls: Tls) -> AsyncIterator[tuple[Generated, Endpoint]]:
    async with counting_server(tls.server(), http2=True) as server:
        yield server, endpoint(server, tls, http2=True)


@asynccontextmanager
async def by_proxy(tls: Tls) -> AsyncIterator[tuple[Generated, Endpoint]]:
    async with counting_server() as server, forward_proxy() as proxy:
        yield server, endpoint(server, tls, proxy=proxy.url)


@asynccontextmanager
async def by_tunnel(tls: Tls) -> AsyncIterator[tuple[Generated, Endpoint]]:
    async with counting_server(tls.server()) as server, forward_proxy() as proxy:
        yield server, endpoint(server, tls, proxy=proxy.url)


@asynccontextmanager
async def http2_by_tunnel_of_a_proxy_with_tls(tls: Tls) -> AsyncIterator[tuple[Generated, Endpoint]]:
    async with counting_server(tls.server(), http2=True) as server, forward_proxy(tls=tls.server()) as proxy:
        yield server, endpoint(server, tls, proxy=proxy.url, http2=True)


Way = Callable[[Tls], "asynccontextmanager[tuple[Generated, Endpoint]]"]
WAYS = [
    pytest.param(http1, marks=pytest.mark.long),
    http2,
    pytest.param(by_proxy, marks=pytest.mark.long),
    pytest.param(by_tunnel, marks=pytest.mark.long),
    http2_by_tunnel_of_a_proxy_with_tls,
]


async def by_step(where: Endpoint, until_runs: Callable[[], Awaitable[None]]) -> list[RequestRecord]:
    """Stop a step, as the guard, a budget and Ctrl-C do."""
    async with Client(where, CLOCK, LONG_S) as client:
        await client.connect_ahead(AT_ONCE)  # as before a step
        stop = asyncio.Event()
        requests = (client.prepare(spec(8, 1000), "tiny", Traffic.CAPACITY) for _ in iter(int, 1))
        step = asyncio.create_task(StepExecution(StepPlan(AT_ONCE, LONG_S), requests, CLOCK).run(stop))
        await until_runs()
        stop.set()
        return list((await step).records)


async def by_timeout(where: Endpoint, until_runs: Callable[[], Awaitable[None]]) -> list[RequestRecord]:
    async with Client(where, CLOCK, 0.5) as client:
        sending = [asyncio.create_task(sent(client)) for _ in range(AT_ONCE)]
        await until_runs()
        return await asyncio.gather(*sending)


async def by_closing(where: Endpoint, until_runs: Callable[[], Awaitable[None]]) -> list[RequestRecord]:
    async with Client(where, CLOCK, LONG_S) as client:
        sending = [asyncio.create_task(sent(client)) for _ in range(AT_ONCE)]
        await until_runs()
    return await asyncio.gather(*sending)


async def sent(client: Client) -> RequestRecord:
    return await client.send(spec(8, 1000), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())


GIVEN_UP = {by_step: Outcome.ABORTED, by_timeout: Outcome.TIMEOUT, by_closing: None}


async def stops(server: Generated, where: Endpoint) -> None:
    """Give requests up in every way and at both moments; assert that the server goes on with none of them."""
    for says_nothing in (False, True):
        for give_up, outcome in GIVEN_UP.items():
            server.says_nothing = says_nothing
            before = server.tokens

            async def until_runs(more_than: int = before) -> None:
                await server.until(lambda now: now.running == AT_ONCE and now.tokens > more_than + 4 * AT_ONCE)

            records = await give_up(where, until_runs)
            async with asyncio.timeout(5):
                await server.until(lambda now: now.running == 0)
            assert server.finished == 0
            assert len(records) == AT_ONCE
            assert outcome is None or {record.outcome for record in records} == {outcome}
    assert server.started == 2 * len(GIVEN_UP) * AT_ONCE


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.fault(
    "LO60",
    "Load is stopped while answers run: over HTTP/2, by a proxy, by a tunnel",
    area="Load",
    users_see="each answer ends at the server at once",
    stays="nothing is generated for nobody",
)
def test_the_server_stops_at_once_whatever_gives_a_request_up(way: Way, tls: Tls) -> None:
    async def main() -> None:
        async with way(tls) as (server, where):
            await stops(server, where)
            if where.http2:
                assert server.resets == server.started

    asyncio.run(asyncio.wait_for(main(), 60))


def test_nginx_with_http2_passes_the_stop_on(nginx: str, tls: Tls, tmp_path: Path) -> None:
    async def main() -> None:
        async with counting_server() as server:
            certificate = tls.folder / "nginx.pem"
            tls.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
            with nginx_with_http2(nginx, tmp_path / "nginx", server.base_url, certificate) as url:
                await stops(server, replace(endpoint(server, tls, http2=True), base_url=url))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stop_ends_no_other_request(tls: Tls) -> None:
    async def main() -> None:
        async with (
            counting_server(tls.server(), http2=True) as server,
            Client(endpoint(server, tls, http2=True), CLOCK, LONG_S) as client,
        ):
            other = asyncio.create_task(sent(client))
            await server.until(lambda now: now.running == 1)
            stopped = asyncio.create_task(sent(client))
            await server.until(lambda now: now.running == 2)
            stopped.cancel()
            await asyncio.gather(stopped, return_exceptions=True)
            await server.until(lambda now: now.running == 1)
            tokens = server.tokens
            await server.until(lambda now: now.tokens > tokens + 10)
            assert not other.done()
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 20))

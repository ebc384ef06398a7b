"""The transport over TLS, on both event loops: who is trusted, who is shown, and what becomes of what goes wrong."""

import asyncio
import ssl
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import trustme
from both_loops import Run
from hostile_server import GOOD, chunked, head
from plain_records import spec
from test_transport import MODES, OK, all_closed, fetch, idle
from wire_server import Peer, always, serving

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.transport import Transport
from probe.core.clock import SystemClock
from probe.core.request import Outcome, Traffic


@dataclass(frozen=True)
class Certificates:
    """An authority, what it has signed, and their files."""

    ca_file: str
    cert_file: str
    key_file: str
    server: ssl.SSLContext  # of localhost and 127.0.0.1
    other_name: ssl.SSLContext
    expired: ssl.SSLContext
    asks_for_ours: ssl.SSLContext


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder, ca = tmp_path_factory.mktemp("tls"), trustme.CA()

    def context(*names: str, until: datetime | None = None) -> ssl.SSLContext:
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(*names, not_after=until).configure_cert(own)
        return own

    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    ours = ca.issue_cert("kneewatch.example")
    ours.private_key_pem.write_to_path(str(folder / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    asks = context("localhost", "127.0.0.1")
    asks.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(asks)
    return Certificates(
        str(folder / "ca.pem"),
        str(folder / "cert.pem"),
        str(folder / "key.pem"),
        context("localhost", "127.0.0.1"),
        context("elsewhere.example"),
        context("127.0.0.1", until=datetime(2001, 1, 1, tzinfo=UTC)),
        asks,
    )


def endpoint(url: str = "", **others: object) -> Endpoint:
    return replace(Endpoint("llama", url), **others)  # type: ignore[arg-type]


def transport(where: Endpoint) -> Transport:
    return Transport(tls=where.tls)


async def ok(peer: Peer) -> None:
    await always(peer, OK)


@pytest.mark.parametrize("mode", MODES)
def test_an_authority_of_ones_own_is_trusted(run: Run, made: Certificates, mode: str) -> None:
    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(ok, tls=made.server) as server, transport(where) as through:
            for _ in range(2):
                assert await fetch(through, server.url, mode) == (200, b"hello")
                assert await fetch(through, server.url.replace("127.0.0.1", "localhost"), mode) == (200, b"hello")
            assert (server.made, idle(through)) == (2, 2)  # two names, two origins

    run(main())


@pytest.mark.fault("SE19")
def test_a_certificate_that_is_not_for_this_server_is_refused(run: Run, made: Certificates) -> None:
    ours, nobody = endpoint(ca_file=made.ca_file), endpoint()
    cases = [
        (nobody, made.server, "unable to get local issuer"),
        (ours, made.other_name, "IP address mismatch"),
        (ours, made.expired, "certificate has expired"),
    ]

    async def main() -> None:
        for where, context, words in cases:
            async with serving(ok, tls=context) as server, transport(where) as through:
                with pytest.raises(httpx.ConnectError, match=words):
                    await fetch(through, server.url)
                await server.until_open(0)
                assert not through._all
            async with serving(ok, tls=context) as server, transport(replace(where, verify=False)) as through:
                assert await fetch(through, server.url) == (200, b"hello")

    run(main())


def test_a_name_can_be_asked_for_that_is_not_in_the_url(run: Run, made: Certificates) -> None:
    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(ok, tls=made.other_name) as server, transport(where) as through:
            asked = httpx.Request("GET", server.url, extensions={"sni_hostname": "elsewhere.example"})
            assert (await through.handle_async_request(asked)).status_code == 200

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_asks_who_we_are_is_shown_our_certificate(run: Run, made: Certificates, mode: str) -> None:
    async def main() -> None:
        known = endpoint(ca_file=made.ca_file, cert_file=made.cert_file, key_file=made.key_file)
        async with serving(ok, tls=made.asks_for_ours) as server:
            async with transport(known) as through:
                assert await fetch(through, server.url, mode) == (200, b"hello")
            async with transport(endpoint(ca_file=made.ca_file)) as through:
                # TLS 1.3 says so after the handshake: to the request.
                with pytest.raises(httpx.TransportError, match=r"(?i)certificate.required|closed"):
                    await fetch(through, server.url, mode)
                await all_closed(through)

    run(main())


def test_a_client_certificate_of_an_unknown_authority_is_refused(run: Run, made: Certificates, tmp_path: Path) -> None:
    stranger = trustme.CA().issue_cert("kneewatch.example")
    stranger.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file, cert_file=str(tmp_path / "both.pem"))
        async with serving(ok, tls=made.asks_for_ours) as server, transport(where) as through:
            with pytest.raises(httpx.TransportError):
                await fetch(through, server.url)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_tls_to_a_plain_server_and_plain_to_a_tls_server_are_errors(run: Run, made: Certificates, mode: str) -> None:
    async def plain(peer: Peer) -> None:
        await peer.reader.read(10)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with transport(where) as through:
            async with serving(plain) as server:
                with pytest.raises(httpx.ConnectError):
                    await fetch(through, server.url.replace("http:", "https:"), mode)
            async with serving(ok, tls=made.server) as server:
                with pytest.raises(httpx.RemoteProtocolError):
                    await fetch(through, server.url.replace("https:", "http:"), mode)
            await all_closed(through)

    run(main())


LONG = bytes(range(256)) * 2**14


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        head(200, "text/plain", f"content-length: {2**20 - 7}") + LONG[: 2**20 - 7],
        head(200, "text/plain", "transfer-encoding: chunked") + chunked(*[LONG[:1000]] * 900),
    ],
    ids=["stream", "long", "chunks"],
)
def test_bodies_arrive_whole(run: Run, made: Certificates, mode: str, answer: bytes) -> None:
    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(lambda peer: always(peer, answer), tls=made.server) as server, transport(where) as through:
            first, second = await fetch(through, server.url, mode), await fetch(through, server.url, mode)
            assert first == second
            assert len(first[1]) > 100
            assert (server.made, idle(through)) == (1, 1)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_ends_with_the_connection_arrives(run: Run, made: Certificates, mode: str) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(head(200, "text/plain") + LONG[: 2**19])
        peer.writer.close()
        await peer.writer.wait_closed()

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(converse, tls=made.server) as server, transport(where) as through:
            assert await fetch(through, server.url, mode) == (200, LONG[: 2**19])
            await all_closed(through)

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_reader_who_is_slow_gets_all_of_it(run: Run, made: Certificates, mode: str) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        await peer.say(head(200, "text/plain", f"content-length: {len(LONG)}") + LONG)
        await peer.until_gone()

    async def main() -> None:
        if mode == "received":
            return  # it has no reader
        where = endpoint(ca_file=made.ca_file)
        async with (
            serving(converse, tls=made.server) as server,
            httpx.AsyncClient(transport=transport(where)) as client,
            client.stream("GET", server.url) as response,
        ):
            await asyncio.sleep(0.1)
            assert b"".join([part async for part in response.aiter_raw()]) == LONG

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_giving_up_closes_at_once(run: Run, made: Certificates, mode: str) -> None:
    async def converse(peer: Peer) -> None:
        await peer.ask()
        if peer.number == 1:
            await peer.say(head(200, "text/plain", "content-length: 9") + b"hello")
            await peer.until_gone()
        await peer.say(OK)
        await ok(peer)

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(converse, tls=made.server) as server, transport(where) as through:
            task = asyncio.create_task(fetch(through, server.url, mode))
            await server.until_asked()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.until_open(0)
            await all_closed(through)
            assert await fetch(through, server.url, mode) == (200, b"hello")

    run(main())


def test_a_kept_connection_that_was_closed_is_replaced(run: Run, made: Certificates) -> None:
    async def once(peer: Peer) -> None:
        await peer.ask()
        await peer.say(OK)
        if peer.number == 2:
            await peer.reader.readexactly(1)  # closed as the request is written

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(once, tls=made.server) as server, transport(where) as through:
            for _ in range(3):
                assert await fetch(through, server.url) == (200, b"hello")
                await asyncio.sleep(0.02)
            assert server.made == 3

    run(main())


def test_where_an_address_breaks_the_handshake_off_the_next_one_is_tried(
    run: Run, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a load balancer's address whose backend is gone."""

    async def both(_: str, __: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async def broken_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async def main() -> None:
        where = endpoint(ca_file=made.ca_file)
        async with serving(ok, tls=made.server) as server, transport(where) as through:
            port = httpx.URL(server.url).port
            async with await asyncio.start_server(broken_off, "127.0.0.2", port):
                monkeypatch.setattr("probe.client.transport._lookup", both)
                assert await fetch(through, f"https://localhost:{port}") == (200, b"hello")

    run(main())


def test_http2_is_not_offered_though_another_target_with_the_same_files_uses_it(run: Run, made: Certificates) -> None:
    agreed: list[str | None] = []

    async def converse(peer: Peer) -> None:
        agreed.append(peer.writer.get_extra_info("ssl_object").selected_alpn_protocol())
        if agreed[-1] != "h2":
            await ok(peer)

    async def main() -> None:
        both = made.server
        both.set_alpn_protocols(["h2", "http/1.1"])
        async with serving(converse, tls=both) as server:
            over_http2 = endpoint(base_url=server.url, ca_file=made.ca_file, http2=True).transport()
            with pytest.raises(httpx.TransportError):  # the server closes
                await over_http2.handle_async_request(httpx.Request("GET", server.url))
            await over_http2.aclose()
            async with transport(endpoint(ca_file=made.ca_file)) as through:
                assert await fetch(through, server.url) == (200, b"hello")
        assert agreed == ["h2", "http/1.1"]

    run(main())


def test_files_that_cannot_be_used_are_said_to_be_so(run: Run, made: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")

    async def main() -> None:
        for where in (
            endpoint(ca_file=str(tmp_path / "none.pem")),
            endpoint(ca_file=str(tmp_path / "empty.pem")),
            endpoint(ca_file=made.ca_file, cert_file=str(tmp_path / "empty.pem")),
        ):
            async with transport(where) as through:
                with pytest.raises((OSError, ValueError, httpx.HTTPError)):
                    await fetch(through, "https://127.0.0.1:1")

    run(main())


@pytest.mark.parametrize(
    ("trusted", "outcome", "words"),
    [(True, Outcome.OK, None), (False, Outcome.CERTIFICATE, "CERTIFICATE_VERIFY_FAILED")],
)
def test_through_the_client(run: Run, made: Certificates, trusted: bool, outcome: Outcome, words: str | None) -> None:  # noqa: FBT001
    async def main() -> None:
        async with serving(lambda peer: always(peer, GOOD), tls=made.server) as server:
            where = endpoint(server.url, base_url=server.url, ca_file=made.ca_file if trusted else None)
            async with Client(where, SystemClock(), 2.0) as client:
                record = await client.send(spec(8, 3), "tiny", Traffic.CANARY, SystemClock().monotonic_ns())
                assert (record.outcome, words is None or words in str(record.detail)) == (outcome, True), record.detail

    run(main())

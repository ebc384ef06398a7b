"""A target is reached as its configuration says: certificate, Unix socket, proxy, HTTP/2, limits.

Each way is really gone, from the YAML to the request of a canary and to the reading of the metrics.
"""

import asyncio
import pickle
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn
import yaml
from forward_proxy import forward_proxy
from hostile_server import GOOD, HANG, STREAM_HEAD, THREE_TOKENS, Script, chunked, hostile, token, whole
from http2_server import http2_server
from plain_records import spec
from structlog.testing import capture_logs

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.client.httpx_transport import HttpxTransport
from probe.client.transport import Transport
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.snapshot import ServerSnapshot
from probe.mock_server.driver import HEALTHY
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app
from probe.monitor.wiring import endpoint
from probe.scrape.scraper import Scraper

RECORDED = (Path(__file__).parents[1] / "golden/vllm-0.32/metrics.txt").read_bytes()
CLOCK = SystemClock()
LONG_S = 20.0  # a limit that no test waits for
AUTH = "monitor:not-to-be-shown"


@dataclass(frozen=True, slots=True)
class Files:
    """Certificates: the server's, ours, and the authority that issued both."""

    folder: Path
    ca: trustme.CA

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def certificate(self) -> dict[str, str]:
        """Ours, with its key in a file of its own."""
        return {"cert_file": str(self.folder / "client.crt"), "key_file": str(self.folder / "client.key")}

    @property
    def together(self) -> str:
        """Ours and its key in one file."""
        return str(self.folder / "client.pem")

    def server_context(self, asks: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        context.load_verify_locations(self.ca_file)
        context.verify_mode = asks
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("tls"), trustme.CA())
    made.ca.cert_pem.write_to_path(made.ca_file)
    ours = made.ca.issue_cert("monitor.example.com")
    ours.private_key_and_cert_chain_pem.write_to_path(made.together)
    ours.private_key_pem.write_to_path(made.certificate["key_file"])
    for i, pem in enumerate(ours.cert_chain_pems):
        pem.write_to_path(made.certificate["cert_file"], append=i > 0)
    server = made.ca.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(str(made.folder / "server.pem"))
    return made


class Server(uvicorn.Server):
    """uvicorn, without its handling of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[str]:
    """Run the mock server with uvicorn's options. Yields the authority of its TCP address."""
    app = build_app(PROFILES["tiny"], model="tiny", faults=HEALTHY)
    server = Server(uvicorn.Config(app, port=0, log_config=None, log_level="critical", lifespan="off", **options))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), "the server did not start"
        await asyncio.sleep(0.005)
    address = server.servers[0].sockets[0].getsockname()
    try:
        yield f"127.0.0.1:{address[1]}" if isinstance(address, tuple) else "localhost"
    finally:
        app.state.driver.close()
        server.should_exit = True
        await task


def with_tls(files: Files, *, asks: bool = False) -> dict[str, Any]:
    """Return uvicorn's options for https. `asks` requires a client certificate of the test's own authority."""
    required = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    return {"ssl_certfile": files.folder / "server.pem", "ssl_ca_certs": files.ca_file, "ssl_cert_reqs": required}


def configured(**target: Any) -> Endpoint:
    """Return the endpoint of a configured target."""
    raw = {"targets": [{"name": "llama", "model": "tiny", **target}]}
    return endpoint(config_from(yaml.safe_load(yaml.safe_dump(raw)), "FILE", {}).targets[0])


async def sent(where: Endpoint, timeout_s: float = 5.0) -> RequestRecord:
    async with Client(where, CLOCK, timeout_s) as client:
        return await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())


async def read(where: Endpoint, timeout_s: float = 5.0) -> ServerSnapshot:
    scraper = Scraper(where, CLOCK, timeout_s)
    try:
        return await scraper.read()
    finally:
        await scraper.close()


async def is_reached(where: Endpoint) -> None:
    """Assert that a canary succeeds and that the metrics are read, with the version that the server reports."""
    record = await sent(where)
    assert (record.outcome, record.detail, record.output_tokens) == (Outcome.OK, None, 3)
    assert (await read(where)).version != "unknown"


async def is_not_reached(where: Endpoint, why: str) -> None:
    record = await sent(where)
    assert record.outcome is (Outcome.CERTIFICATE if why == "certificate" else Outcome.UNREACHABLE)
    assert why in str(record.detail).lower()
    assert str(record.detail).isprintable()
    with pytest.raises(TargetError, match=f"(?i){why}"):
        await read(where)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 15))


# --- Certificates --------------------------------------------------------------------------------------------


def test_a_server_that_asks_for_a_client_certificate_gets_it(files: Files) -> None:
    async def main() -> None:
        async with serving(**with_tls(files, asks=True)) as at:
            for ours in (files.certificate, {"cert_file": files.together}):
                await is_reached(configured(base_url=f"https://{at}", tls={"ca_file": files.ca_file, **ours}))

    run(main())


def test_without_a_certificate_a_server_that_asks_for_one_is_not_reached(files: Files) -> None:
    async def main() -> None:
        async with serving(**with_tls(files, asks=True)) as at:
            where = configured(base_url=f"https://{at}", tls={"ca_file": files.ca_file})
            await is_not_reached(where, "without an answer")  # uvicorn says no more

    run(main())


@pytest.mark.fault(
    "SE19",
    "A server's certificate of an unknown authority",
    area="Security",
    users_see="canary `certificate`",
    stays="nothing is sent",
)
def test_our_certificate_does_not_replace_the_check_of_the_servers(files: Files) -> None:
    async def main() -> None:
        async with serving(**with_tls(files)) as at:
            await is_not_reached(configured(base_url=f"https://{at}", tls=files.certificate), "certificate")
            await is_reached(configured(base_url=f"https://{at}", tls={**files.certificate, "verify": False}))

    run(main())


@pytest.mark.parametrize("way", [{}, {"http2": True}], ids=str)
@pytest.mark.parametrize("stale", [{"not_after": datetime(2020, 1, 1, tzinfo=UTC)}, {"name": "other.example"}], ids=str)
@pytest.mark.fault(
    "SE160",
    "A server's certificate that has expired, or is for another name",
    area="Security",
    users_see="canary `certificate`; the alert says that the port answers",
    stays="nothing is sent",
)
def test_a_certificate_that_no_longer_fits_is_told_from_a_dead_server(
    stale: dict[str, Any], way: dict[str, Any], files: Files, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    pem = tmp_path / "server.pem"
    made = authority.issue_cert(stale.get("name", "127.0.0.1"), not_after=stale.get("not_after"))
    made.private_key_and_cert_chain_pem.write_to_path(pem)

    async def main() -> None:
        async with serving(**{**with_tls(files), "ssl_certfile": str(pem), "ssl_keyfile": str(pem)}) as at:
            where = configured(base_url=f"https://{at}", tls={"ca_file": str(tmp_path / "ca.pem")}, connection=way)
            await is_not_reached(where, "certificate")

    run(main())


@pytest.mark.parametrize("way", [{}, {"http2": True}, {"proxy": "http://127.0.0.1:1"}])
@pytest.mark.fault(
    "SO13",
    "A client certificate file that went away",
    area="Sockets",
    users_see="a failed request, one line",
    stays="the monitor goes on",
)
def test_a_certificate_that_went_away_is_a_failure_of_the_request_and_not_of_the_program(
    way: dict[str, Any], files: Files, tmp_path: Path
) -> None:
    """Files are checked when the configuration is loaded, but they are mounted, and mounts change."""
    copy = tmp_path / "client.pem"
    copy.write_text(Path(files.together).read_text())
    where = configured(
        base_url="https://127.0.0.1:1", tls={"ca_file": files.ca_file, "cert_file": str(copy)}, connection=way
    )
    copy.unlink()
    run(is_not_reached(where, "no such file"))


# --- Unix sockets --------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "SO12",
    "A Unix socket that is not there yet",
    area="Sockets",
    users_see="`unreachable` until the server has started",
    stays="-",
)
def test_a_server_is_reached_by_its_socket_also_when_it_starts_later(tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")

    async def main() -> None:
        where = configured(base_url="http://localhost", connection={"unix_socket": path})
        await is_not_reached(where, "no such file")
        async with serving(uds=path):
            await is_reached(where)

    run(main())


def test_a_socket_may_speak_tls(files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")

    async def main() -> None:
        async with serving(uds=path, **with_tls(files, asks=True)):
            where = configured(
                base_url="https://localhost",
                tls={"ca_file": files.ca_file, **files.certificate},
                connection={"unix_socket": path},
            )
            await is_reached(where)

    run(main())


@pytest.mark.parametrize("way", ["unix_socket", "proxy"])
def test_metrics_of_another_address_are_read_directly_and_the_version_is_not(way: str, tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")

    async def main() -> None:
        async with (
            hostile([whole(200, RECORDED, "text/plain")]) as metrics,
            forward_proxy() as proxy,
            serving(**({"uds": path} if way == "unix_socket" else {})) as at,
        ):
            where = configured(
                base_url=f"http://{at}",
                metrics_url=f"{metrics.base_url}/metrics",
                connection={way: path if way == "unix_socket" else proxy.url},
            )
            assert (await read(where)).version != "unknown"
            assert [asked.line for asked in metrics.asked] == ["GET /metrics HTTP/1.1"]
            assert proxy.asked_for == ([f"GET http://{at}/version"] if way == "proxy" else [])

    run(main())


def test_metrics_beside_the_api_go_the_same_way_though_their_path_is_another(tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")

    async def main() -> None:
        async with serving(uds=path):
            where = configured(
                base_url="http://localhost/llama",
                metrics_url="http://localhost/metrics",
                connection={"unix_socket": path},
            )
            await read(where)

    run(main())


# --- Proxies -------------------------------------------------------------------------------------------------


def test_a_proxy_is_asked_for_the_whole_address() -> None:
    async def main() -> None:
        async with serving() as at, forward_proxy() as proxy:
            await is_reached(configured(base_url=f"http://{at}", connection={"proxy": proxy.url}))
            assert sorted(proxy.asked_for) == [
                f"GET http://{at}/metrics",
                f"GET http://{at}/version",
                f"POST http://{at}/v1/completions",
            ]
            assert "proxy-authorization" not in "".join(proxy.heads).lower()

    run(main())


def test_a_proxy_tunnels_tls_and_sees_neither_request_nor_certificate(files: Files) -> None:
    async def main() -> None:
        proxy_tls = files.server_context(asks=ssl.CERT_OPTIONAL)
        async with serving(**with_tls(files, asks=True)) as at, forward_proxy(tls=proxy_tls) as proxy:
            where = configured(
                base_url=f"https://{at}",
                tls={"ca_file": files.ca_file, **files.certificate},
                connection={"proxy": proxy.url},
            )
            await is_reached(where)
            assert set(proxy.asked_for) == {f"CONNECT {at}"}
            assert not any(proxy.certificates)

    run(main())


def test_a_proxy_that_speaks_tls_is_checked_too(files: Files) -> None:
    async def main() -> None:
        async with serving() as at, forward_proxy(tls=files.server_context()) as proxy:
            where = configured(base_url=f"http://{at}", connection={"proxy": proxy.url})
            await is_not_reached(where, "certificate")
            assert proxy.heads == []

    run(main())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.fault(
    "SE21",
    "Credentials for a proxy",
    area="Security",
    users_see="only the proxy gets them",
    stays="the server does not",
)
def test_only_the_proxy_gets_its_credentials(tls: bool, files: Files, tmp_path: Path) -> None:  # noqa: FBT001
    file = tmp_path / "proxy"
    file.write_text(f"{AUTH}\n")

    async def main() -> None:
        options, scheme = (with_tls(files), "https") if tls else ({}, "http")
        async with serving(**options) as at, forward_proxy(wants=AUTH) as proxy:
            where = {"base_url": f"{scheme}://{at}", "tls": {"ca_file": files.ca_file}}
            await is_reached(configured(**where, connection={"proxy": proxy.url, "proxy_auth_file": str(file)}))
            record = await sent(configured(**where, connection={"proxy": proxy.url}))
            assert record.outcome is not Outcome.OK
            assert "407" in str(record.detail)

    run(main())


@pytest.mark.fault(
    "SO18",
    "The credentials of a proxy are rotated, or half-written",
    area="Sockets",
    users_see="one line, once, for the half-written ones",
    stays="the new ones are used, or the previous ones",
)
def test_rotated_credentials_of_a_proxy_need_no_restart(tmp_path: Path) -> None:
    file = tmp_path / "proxy"
    file.write_text("monitor:the-former-one")

    async def main() -> None:
        async with serving() as at, forward_proxy(wants=AUTH) as proxy:
            where = configured(base_url=f"http://{at}", connection={"proxy": proxy.url, "proxy_auth_file": str(file)})
            async with Client(where, CLOCK, 5.0) as client:

                async def outcome() -> Outcome:
                    return (await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())).outcome

                assert await outcome() is not Outcome.OK
                file.write_text(AUTH)
                assert await outcome() is Outcome.OK
                with capture_logs() as logs:
                    file.write_text("half of th")
                    assert await outcome() is Outcome.OK
                    assert await outcome() is Outcome.OK
                assert len(logs) == 1
                assert "USER:PASSWORD" in logs[0]["detail"]
                assert "half" not in str(logs)

    run(main())


@pytest.mark.fault("SE21")
def test_refused_credentials_are_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "proxy"
    file.write_text(AUTH)

    async def main() -> None:
        async with forward_proxy(wants="other:word") as proxy:
            for url in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
                where = configured(base_url=url, connection={"proxy": proxy.url, "proxy_auth_file": str(file)})
                record = await sent(where)
                with pytest.raises(TargetError) as caught:
                    await read(where)
                for text in (str(record), str(caught.value), repr(where)):
                    assert AUTH.partition(":")[2] not in text

    run(main())
    assert AUTH.partition(":")[2] not in "".join(capfd.readouterr())


@pytest.mark.parametrize("way", [{}, {"unix_socket": "vllm.sock"}])
@pytest.mark.fault(
    "SE20",
    "A proxy in the environment",
    area="Security",
    users_see="not used",
    stays="requests go directly",
)
def test_a_proxy_of_the_environment_is_not_used(
    way: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be measured as if it were the server."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    way = {key: str(tmp_path / name) for key, name in way.items()}

    async def main() -> None:
        async with serving(**({"uds": way["unix_socket"]} if way else {})) as at:
            await is_reached(configured(base_url=f"http://{at}", connection=way))

    run(main())


# --- HTTP/2 --------------------------------------------------------------------------------------------------

HTTP2_ANSWERS = {
    "/v1/completions": ("text/event-stream", b"".join(THREE_TOKENS)),
    "/version": ("application/json", b'{"version": "0.32.0"}'),
    "/metrics": ("text/plain", RECORDED),
}


@pytest.mark.parametrize("way", ["tcp", "unix_socket", "proxy"])
def test_http2_is_spoken_where_it_is_asked_for(way: str, files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock") if way == "unix_socket" else None

    async def main() -> None:
        tls = files.server_context(asks=ssl.CERT_REQUIRED)
        async with http2_server(HTTP2_ANSWERS, tls, path) as server, forward_proxy() as proxy:
            ways: dict[str, dict[str, str | None]] = {
                "tcp": {},
                "unix_socket": {"unix_socket": path},
                "proxy": {"proxy": proxy.url},
            }
            where = configured(
                base_url=server.base_url,
                tls={"ca_file": files.ca_file, **files.certificate},
                connection={"http2": True, **ways[way]},
            )
            await is_reached(where)
            assert sorted(server.asked) == ["/metrics", "/v1/completions", "/version"]

    run(main())


def test_a_server_that_speaks_no_http2_is_reached_by_the_protocol_it_speaks(files: Files) -> None:
    async def main() -> None:
        async with serving(**with_tls(files)) as at:
            where = configured(base_url=f"https://{at}", tls={"ca_file": files.ca_file}, connection={"http2": True})
            await is_reached(where)

    run(main())


# --- Limits --------------------------------------------------------------------------------------------------

LATE_S, SHORT_S = 0.5, 0.2
WAYS = pytest.mark.parametrize("through_proxy", [False, True], ids=["ours", "proxy"])


async def answer_to(script: Script, limits: dict[str, str], *, through_proxy: bool) -> RequestRecord:
    async with hostile(script) as server, forward_proxy() as proxy:
        way = {"proxy": proxy.url} if through_proxy else {}
        return await sent(configured(base_url=server.base_url, connection={**way, **limits}), LONG_S)


def record_of(script: Script, limits: dict[str, str], *, through_proxy: bool) -> RequestRecord:
    """Return the record of a request, and assert that it took far less than its total limit."""
    began_s = time.monotonic()
    record = asyncio.run(answer_to(script, limits, through_proxy=through_proxy))
    assert time.monotonic() - began_s < LONG_S / 2
    return record


@WAYS
@pytest.mark.fault(
    "SO10",
    "A first byte that is too late",
    area="Sockets",
    users_see="`timeout` at `first_byte_timeout`",
    stays="-",
)
def test_waiting_for_the_first_byte_ends_at_its_timeout(through_proxy: bool) -> None:  # noqa: FBT001
    record = record_of([HANG], {"first_byte_timeout": "100ms"}, through_proxy=through_proxy)
    assert record.outcome is Outcome.TIMEOUT
    assert list(record.events.at_ns) == []


@WAYS
@pytest.mark.fault(
    "SO11",
    "A pause in a stream",
    area="Sockets",
    users_see="`timeout` at its limit",
    stays="-",
)
def test_a_pause_in_an_answer_ends_at_its_timeout(through_proxy: bool) -> None:  # noqa: FBT001
    script: Script = [STREAM_HEAD + chunked(token(1), end=False), HANG]
    record = record_of(script, {"between_bytes_timeout": "100ms"}, through_proxy=through_proxy)
    assert record.outcome is Outcome.TIMEOUT


@WAYS
def test_a_first_byte_may_be_later_than_the_ones_after_it(through_proxy: bool) -> None:  # noqa: FBT001
    limits = {"between_bytes_timeout": f"{SHORT_S}s"}
    assert record_of([LATE_S, GOOD], limits, through_proxy=through_proxy).outcome is Outcome.OK


@WAYS
def test_a_pause_may_be_longer_than_the_wait_for_the_first_byte(through_proxy: bool) -> None:  # noqa: FBT001
    limits = {"first_byte_timeout": f"{SHORT_S}s"}
    script: Script = [STREAM_HEAD + chunked(token(1), end=False), LATE_S, chunked(*THREE_TOKENS[1:])]
    assert record_of(script, limits, through_proxy=through_proxy).outcome is Outcome.OK


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.fault("SO5")
def test_connecting_ends_at_its_timeout(http2: bool) -> None:  # noqa: FBT001
    """Here the server takes the connection and never answers TLS."""

    async def main() -> None:
        limits = {"connect_timeout": "100ms", "http2": http2}
        where = configured(base_url=f"https://{silent}", tls={"verify": False}, connection=limits)
        began_s = time.monotonic()
        record = await sent(where, LONG_S)
        assert (record.outcome, record.detail) == (
            Outcome.TIMEOUT,
            "no connection within 0.1 s, Kneewatch's time limit; connection.connect_timeout raises it",
        )
        with pytest.raises(TargetError):
            await read(where, LONG_S)
        assert time.monotonic() - began_s < LONG_S / 2

    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        run(main())


@pytest.mark.parametrize(
    ("connect_s", "total_s", "effective_s"), [(5.0, 30.0, 5.0), (5.0, 2.0, 2.0), (40.0, 30.0, 30.0)]
)
def test_a_connection_is_waited_for_no_longer_than_a_request(
    connect_s: float, total_s: float, effective_s: float
) -> None:
    assert Endpoint("llama", "http://a", connect_s=connect_s).timeouts(total_s)["connect"] == effective_s


# --- As a value ----------------------------------------------------------------------------------------------


def test_the_own_transport_is_used_without_proxy_and_http2() -> None:
    plain = Endpoint("llama", "https://a", unix_socket="/run/vllm.sock")
    assert isinstance(plain.transport(), Transport)
    assert isinstance(Endpoint("llama", "https://a", http2=True).transport(), HttpxTransport)
    assert isinstance(Endpoint("llama", "https://a", proxy="http://proxy").transport(), HttpxTransport)


def test_a_closed_transport_sends_nothing_more() -> None:
    async def main() -> None:
        async with serving() as at, forward_proxy() as proxy:
            client = Client(configured(base_url=f"http://{at}", connection={"proxy": proxy.url}), CLOCK, 5.0)
            await client.close()
            record = await client.send(spec(8, 3), "tiny", Traffic.CANARY, CLOCK.monotonic_ns())
            assert record.outcome is Outcome.UNREACHABLE
            assert proxy.heads == []

    run(main())


def test_everything_configured_arrives_and_goes_to_another_process(files: Files, tmp_path: Path) -> None:
    (tmp_path / "proxy").write_text(AUTH)
    where = configured(
        base_url="https://a",
        tls={"ca_file": files.ca_file, **files.certificate},
        connection={
            "proxy": "http://proxy:3128/",
            "proxy_auth_file": str(tmp_path / "proxy"),
            "http2": True,
            "connect_timeout": "1s",
            "first_byte_timeout": "2s",
            "between_bytes_timeout": "3s",
        },
    )
    assert (where.cert_file, where.key_file) == (files.certificate["cert_file"], files.certificate["key_file"])
    assert (where.proxy, where.proxy_auth_file, where.http2) == ("http://proxy:3128", str(tmp_path / "proxy"), True)
    assert where.timeouts(30.0) == {"connect": 1.0, "first_byte": 2.0, "read": 3.0}
    copy = pickle.loads(pickle.dumps(where))  # noqa: S301 - our own bytes
    assert copy.timeouts(30.0) == where.timeouts(30.0)
    assert AUTH.encode() not in pickle.dumps(where)

"""TLS, client certificates and passwords in front of the pages, over real connections, and anew when files change."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest
import trustme
import yaml
from both_loops import Run
from fake_monitor import FakeMonitor
from structlog.testing import capture_logs

from probe.core.errors import ConfigError
from probe.web.pages import build_pages
from probe.web.serve import serve

pytestmark = pytest.mark.slow

WORDS = {"alice": "wonderland"}
HASHES = {"alice": bcrypt.hashpw(b"wonderland", bcrypt.gensalt(4)).decode()}
LOOK_S = 0.05
PATHS = ["/", "/metrics", "/config", "/probe?target=a", "/api/v1/targets", "/-/healthy", "/-/ready", "/nope"]


@dataclass
class Files:
    """A folder with a web configuration and what it names."""

    folder: Path
    authority: trustme.CA

    @property
    def config(self) -> Path:
        return self.folder / "web.yml"

    def write(self, **content: Any) -> None:
        # As a Secret's files change: the new one is put in the old one's place.
        fresh = self.folder / "fresh"
        fresh.write_text(yaml.safe_dump(content))
        fresh.replace(self.config)

    def certify(self, authority: trustme.CA | None = None) -> None:
        issued = (authority or self.authority).issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA)
        issued.private_key_pem.write_to_path(self.folder / "key.pem")
        issued.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")

    def tls(self, **more: Any) -> dict[str, Any]:
        return {"cert_file": "cert.pem", "key_file": "key.pem", **more}

    def trust(self, client: trustme.LeafCert | None = None, authority: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (authority or self.authority).configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    found = Files(tmp_path, authority)
    found.certify()
    return found


@asynccontextmanager
async def _serving(files: Files) -> AsyncIterator[str]:
    async with serve(build_pages(FakeMonitor()), "127.0.0.1", 0, files.config, look_s=LOOK_S) as url:
        yield url


async def _get(
    url: str, trust: ssl.SSLContext | None = None, auth: tuple[str, str] | None = None
) -> httpx.Response | str:
    """Return the answer, or the error."""
    try:
        async with httpx.AsyncClient(verify=trust or False, trust_env=False, auth=auth, timeout=10) as client:
            return await client.get(url)
    except httpx.TransportError as error:
        return type(error).__name__


async def _until(url: str, status: int, **how: Any) -> httpx.Response:
    async with asyncio.timeout(10):
        while True:
            answer = await _get(url, **how)
            if isinstance(answer, httpx.Response) and answer.status_code == status:
                return answer
            await asyncio.sleep(0.02)


async def _eventually(check: Callable[[], bool]) -> None:
    for _ in range(500):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not within 10 s")


def test_without_a_file_everybody_may_come_in(run: Run) -> None:
    async def main() -> None:
        async with serve(build_pages(FakeMonitor()), "127.0.0.1", 0) as url:
            assert url.startswith("http://")
            answer = await _get(f"{url}/-/healthy")
            assert isinstance(answer, httpx.Response)
            assert answer.status_code == 200

    run(main())


@pytest.mark.fault(
    "SE13",
    "No password, a wrong one, an unknown name",
    area="Security",
    users_see="401 at every path",
    stays="-",
)
def test_every_path_wants_the_password_and_is_closed_without_it(files: Files, run: Run) -> None:
    files.write(basic_auth_users=HASHES)

    async def main() -> None:
        async with _serving(files) as url:
            for path in PATHS:
                for auth in (None, ("alice", "x"), ("bob", "wonderland")):
                    refused = await _get(f"{url}{path}", auth=auth)
                    assert isinstance(refused, httpx.Response)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"].startswith("Basic ")
                    assert "default-src 'none'" in refused.headers["content-security-policy"]
                admitted = await _get(f"{url}{path}", auth=("alice", "wonderland"))
                assert isinstance(admitted, httpx.Response)
                assert admitted.status_code == (404 if path == "/nope" else 200)

    run(main())


def test_pages_over_tls(files: Files, run: Run) -> None:
    files.write(
        tls_server_config=files.tls(), http_server_config={"headers": {"Strict-Transport-Security": "max-age=9"}}
    )

    async def main() -> None:
        async with _serving(files) as url:
            assert url.startswith("https://127.0.0.1:")
            answer = await _get(url, files.trust())
            assert isinstance(answer, httpx.Response)
            assert answer.status_code == 200
            assert answer.headers["strict-transport-security"] == "max-age=9"
            assert isinstance(await _get(url.replace("https", "http")), str), "not without TLS"
            assert isinstance(await _get(url, files.trust(authority=trustme.CA())), str)

    run(main())


@pytest.mark.fault(
    "SE16",
    "A client certificate of a stranger, or of the wrong name",
    area="Security",
    users_see="no connection",
    stays="-",
)
def test_only_clients_with_a_certificate_and_its_name_are_spoken_to(files: Files, run: Run) -> None:
    asked = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
    files.write(tls_server_config=files.tls(**asked, client_allowed_sans=["prometheus.example", "10.1.1.1"]))

    async def main() -> None:
        async with _serving(files) as url:
            for name, good in (("prometheus.example", True), ("10.1.1.1", True), ("other.example", False)):
                client = files.authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)
                answer = await _get(url, files.trust(client))
                assert isinstance(answer, httpx.Response) is good, name
            stranger = trustme.CA().issue_cert("prometheus.example")
            assert isinstance(await _get(url, files.trust(stranger)), str)
            assert isinstance(await _get(url, files.trust()), str)

    run(main())


@pytest.mark.fault(
    "SO19",
    "The certificate of the pages is renewed",
    area="Sockets",
    users_see="one line in the log",
    stays="it is used within a second; open connections end after their request",
)
def test_a_renewed_certificate_is_taken_without_a_restart(files: Files, run: Run) -> None:
    files.write(tls_server_config=files.tls())
    other = trustme.CA(key_type=trustme.KeyType.ECDSA)

    async def main() -> None:
        async with _serving(files) as url:
            await _until(url, 200, trust=files.trust())
            with capture_logs() as logs:
                files.certify(other)
                await _until(url, 200, trust=files.trust(authority=other))
            assert isinstance(await _get(url, files.trust()), str), "the old one is gone"
            assert logs[-1]["event"] == "the web configuration is loaded"

    run(main())


def test_tls_clients_and_passwords_come_and_go_with_the_file(files: Files, run: Run) -> None:
    files.write()

    async def main() -> None:
        async with _serving(files) as url:
            await _until(url, 200)
            files.write(basic_auth_users=HASHES)
            await _until(url, 401)
            await _until(url, 200, auth=("alice", "wonderland"))
            files.write(tls_server_config=files.tls())
            secure = url.replace("http", "https")
            await _until(secure, 200, trust=files.trust())
            asked = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
            files.write(tls_server_config=files.tls(**asked))
            client = files.authority.issue_cert("prometheus", key_type=trustme.KeyType.ECDSA)
            for _ in range(500):
                if isinstance(await _get(secure, files.trust()), str):
                    break
            await _until(secure, 200, trust=files.trust(client))
            files.write()
            await _until(url, 200)

    run(main())


def test_a_connection_that_was_let_in_before_ends_with_the_change(files: Files, run: Run) -> None:
    files.write()

    async def main() -> None:
        async with _serving(files) as url:
            port = int(url.rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"healthy.\n")
            files.write(tls_server_config=files.tls())
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await _until(url.replace("http", "https"), 200, trust=files.trust())

    run(main())


@pytest.mark.fault(
    "SE18",
    "A broken web configuration while it runs",
    area="Security",
    users_see="refused in the log",
    stays="the former passwords hold",
)
def test_an_invalid_web_file_is_refused_and_the_former_one_stays(files: Files, run: Run) -> None:
    files.write(basic_auth_users=HASHES)

    async def main() -> None:
        async with _serving(files) as url:
            for broken in (
                {"basic_auth_users": {"alice": "plain"}},
                {"tls_server_config": files.tls(key_file="absent")},
            ):
                with capture_logs() as logs:
                    files.write(**broken)
                    await _eventually(lambda: bool(logs))
                assert "refused" in logs[0]["event"]
                await asyncio.sleep(4 * LOOK_S)
                await _until(url, 401)
                await _until(url, 200, auth=("alice", "wonderland"))
            files.config.unlink()
            await asyncio.sleep(4 * LOOK_S)
            await _until(url, 401)

    run(main())


@pytest.mark.fault(
    "SO15",
    "A key file that arrives after its certificate",
    area="Sockets",
    users_see="said once; loaded when both fit",
    stays="the former certificate serves",
)
def test_a_key_that_comes_a_moment_after_its_certificate_is_taken_then(files: Files, run: Run) -> None:
    files.write(tls_server_config=files.tls())
    issued = files.authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)

    async def main() -> None:
        async with _serving(files) as url:
            with capture_logs() as logs:
                issued.cert_chain_pems[0].write_to_path(files.folder / "cert.pem")
                await _eventually(lambda: bool(logs))
                await asyncio.sleep(4 * LOOK_S)
                assert [entry["log_level"] for entry in logs] == ["error"], "said once"
                await _until(url, 200, trust=files.trust())
                issued.private_key_pem.write_to_path(files.folder / "key.pem")
                await _eventually(lambda: logs[-1]["log_level"] == "info")
            await _until(url, 200, trust=files.trust())

    run(main())


@pytest.mark.fault(
    "SE14",
    "Forty password attempts at once from one address",
    area="Security",
    users_see="429 for it",
    stays="another address gets in",
)
@pytest.mark.fault(
    "C38x",
    "A client that tries passwords claims other addresses in `X-Forwarded-For`",
    area="Sockets",
    users_see="its own address is limited (429); other clients get in",
    stays="the header is ignored",
)
def test_one_client_that_tries_passwords_keeps_no_other_out(files: Files, run: Run) -> None:
    # Slow enough for all of them to be there before the first is checked.
    files.write(basic_auth_users={"alice": bcrypt.hashpw(b"wonderland", bcrypt.gensalt(9)).decode()})

    async def main() -> None:
        async with _serving(files) as url, _client("127.0.0.1") as theirs, _client("127.0.0.2") as ours:
            # Whatever address they claim to forward for.
            tries = [
                asyncio.create_task(
                    theirs.get(url, auth=("alice", str(n)), headers={"X-Forwarded-For": f"192.0.2.{n}"})
                )
                for n in range(40)
            ]
            refused = await next(asyncio.as_completed(tries))
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "5"
            assert "from this address" in refused.text
            assert (await ours.get(url, auth=("alice", "wonderland"))).status_code == 200
            codes = [(await one).status_code for one in tries]
            assert codes.count(401) >= 4
            assert codes.count(429) >= 20

    run(main())


def _client(address: str) -> httpx.AsyncClient:
    """One whose connections come from that address of this machine."""
    limits = httpx.Limits(max_connections=None)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits, trust_env=False)
    return httpx.AsyncClient(transport=transport, timeout=30)


def test_a_file_that_cannot_be_used_is_no_start(files: Files) -> None:
    async def main() -> None:
        async with _serving(files):
            pass

    files.write(basic_auth_users={"alice": "plain"})
    with pytest.raises(ConfigError, match=r"basic_auth_users\.alice: expected a bcrypt hash"):
        asyncio.run(main())
    files.write(tls_server_config=files.tls(key_file="absent.pem"))
    with pytest.raises(ConfigError, match=r"web\.yml: tls_server_config: certificate and key cannot be used"):
        asyncio.run(main())


def test_the_files_limit_holds_for_all_requests_together(files: Files, run: Run) -> None:
    files.write(rate_limit={"interval": "1h", "burst": 3})

    async def main() -> None:
        async with _serving(files) as url:
            answers = [await _get(f"{url}/-/healthy") for _ in range(5)]
            codes = [answer.status_code for answer in answers if isinstance(answer, httpx.Response)]
            assert codes == [200] * 3 + [429] * 2

    run(main())


@pytest.mark.parametrize("line", ["Basic", "Basic " + base64.b64encode(b"x" * 9000).decode(), "\u00ff"])
@pytest.mark.fault(
    "SE15",
    "An Authorization header of garbage or 9 kB",
    area="Security",
    users_see="401",
    stays="-",
)
def test_a_header_that_is_none_is_no_password(files: Files, run: Run, line: str) -> None:
    files.write(basic_auth_users=HASHES)

    async def main() -> None:
        async with _serving(files) as url, httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(url, headers={"Authorization": line.encode("latin-1")})
            assert answer.status_code == 401

    run(main())

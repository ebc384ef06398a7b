"""Certificates that change while Kneewatch runs, as those of a mounted Secret do."""

import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from both_loops import Run
from structlog.testing import capture_logs
from test_transport import OK
from wire_server import Peer, always, serving

from probe.client.endpoint import Endpoint

REFUSED = "changed certificates cannot be used, the previous ones stay in use"
TAKEN = "changed certificates are in use"


class Secret:
    """A mounted Secret: its files are links through a folder that is swapped at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = 0
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (folder / name).symlink_to(f"..data/{name}")

    def swap(self, authority: trustme.CA, issued: trustme.LeafCert, key: trustme.LeafCert | None = None) -> None:
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        authority.cert_pem.write_to_path(version / "ca.pem")
        issued.cert_chain_pems[0].write_to_path(version / "cert.pem")
        (key or issued).private_key_pem.write_to_path(version / "key.pem")
        (self._folder / "..fresh").symlink_to(version.name)
        (self._folder / "..fresh").replace(self._folder / "..data")

    def endpoint(self, *, http2: bool) -> Endpoint:
        cert, key, ca = (str(self._folder / name) for name in ("cert.pem", "key.pem", "ca.pem"))
        return Endpoint("llama", "https://127.0.0.1", ca_file=ca, cert_file=cert, key_file=key, http2=http2)


def _authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def _issue(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)


def _server(authority: trustme.CA) -> ssl.SSLContext:
    """Return the context of a server that only clients with a certificate of its authority reach."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _issue(authority).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _answer(peer: Peer) -> None:
    await always(peer, OK)


@pytest.mark.parametrize("http2", [False, True], ids=["own", "httpx"])
@pytest.mark.fault(
    "SO16",
    "The CA and the client certificate of a target are renewed (a mounted Secret is swapped)",
    area="Sockets",
    users_see="one line in the log",
    stays="new connections use them, the former CA is no longer trusted; no restart",
)
def test_renewed_certificates_are_used_without_a_restart(run: Run, tmp_path: Path, http2: bool) -> None:  # noqa: FBT001
    old, new = _authority(), _authority()
    secret = Secret(tmp_path)
    secret.swap(old, _issue(old))

    async def main() -> None:
        async with (
            serving(_answer, tls=_server(old)) as before,
            serving(_answer, tls=_server(new)) as after,
            httpx.AsyncClient(transport=secret.endpoint(http2=http2).transport(), trust_env=False) as client,
        ):
            assert (await client.get(before.url)).text == "hello"
            with pytest.raises(httpx.TransportError):
                await client.get(after.url)
            with capture_logs() as logs:
                secret.swap(new, _issue(new))
                assert (await client.get(after.url)).text == "hello"
                assert (await client.get(after.url)).text == "hello"
            assert [entry["event"] for entry in logs] == [TAKEN]

    run(main())


@pytest.mark.parametrize("http2", [False, True], ids=["own", "httpx"])
@pytest.mark.fault(
    "SO17",
    "A renewed certificate is half-written, or its key does not match",
    area="Sockets",
    users_see="one line, once",
    stays="the previous pair is used until both fit",
)
def test_a_pair_that_does_not_match_is_refused_once_and_the_previous_one_used(
    run: Run,
    tmp_path: Path,
    http2: bool,  # noqa: FBT001
) -> None:
    authority = _authority()
    first, second = _issue(authority), _issue(authority)
    secret = Secret(tmp_path)
    secret.swap(authority, first)

    async def main() -> None:
        async with serving(_answer, tls=_server(authority)) as server:
            where = secret.endpoint(http2=http2)
            for broken in ("mismatch", "half", "right"):
                secret.swap(authority, second, key=second if broken == "right" else first)
                if broken == "half":
                    cert = (tmp_path / "cert.pem").resolve()
                    cert.write_bytes(cert.read_bytes()[:100])
                with capture_logs() as logs:
                    for _ in range(3):
                        async with httpx.AsyncClient(transport=where.transport(), trust_env=False) as client:
                            assert (await client.get(server.url)).text == "hello"
                assert [entry["event"] for entry in logs] == [TAKEN if broken == "right" else REFUSED]
                assert all("\n" not in str(value) for entry in logs for value in entry.values())

    async def warm() -> None:
        where = secret.endpoint(http2=http2).transport()
        async with serving(_answer, tls=_server(authority)) as server, httpx.AsyncClient(transport=where) as client:
            await client.get(server.url)

    run(warm())
    run(main())


def test_targets_with_the_same_files_share_their_context(tmp_path: Path) -> None:
    authority = _authority()
    secret = Secret(tmp_path)
    secret.swap(authority, _issue(authority))
    assert secret.endpoint(http2=False).tls() is secret.endpoint(http2=False).tls()
    assert secret.endpoint(http2=True).tls() is secret.endpoint(http2=True).tls()
    # httpcore writes the protocols that it offers into its context, and the other transport speaks HTTP/1.1 only.
    assert secret.endpoint(http2=True).tls() is not secret.endpoint(http2=False).tls()
    assert Endpoint("a", "https://a").tls() is not secret.endpoint(http2=False).tls()


def test_certificates_are_read_when_a_transport_is_made_and_not_by_its_first_request(tmp_path: Path) -> None:
    for i, make in enumerate((Endpoint.transport, Endpoint.metrics_transport)):
        ca_file = tmp_path / f"ca{i}.pem"
        _authority().cert_pem.write_to_path(str(ca_file))
        make(Endpoint("a", "https://a", metrics_url="https://b/metrics", ca_file=str(ca_file)))
        ca_file.unlink()
        assert Endpoint("a", "https://a", ca_file=str(ca_file)).tls(), "the one that was read is in use"

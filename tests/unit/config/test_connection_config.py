"""A target's `tls` and `connection`: what is accepted, and what is refused that needs real files to see.

What needs none is in tests/golden/config. That targets are then reached so is in client/test_endpoint.py.
"""

import importlib.util
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from probe.config.config_file import config_from, config_hash, show
from probe.config.targets import TargetConfig
from probe.core.errors import ConfigError

SECRET = "sk-not-to-be-shown"
AUTHORITY = trustme.CA()
OURS = AUTHORITY.issue_cert("monitor.example.com")
OTHER = AUTHORITY.issue_cert("other.example.com")
CERTIFICATE = b"".join(pem.bytes() for pem in OURS.cert_chain_pems)
KEY = OURS.private_key_pem.bytes()


def target(**keys: Any) -> TargetConfig:
    raw = {"targets": [{"name": "llama", "base_url": "https://llama:8000", **keys}]}
    return config_from(raw, "FILE", {}).targets[0]


def refusal(**keys: Any) -> list[str]:
    """Return the lines without the file and the target in front of each."""
    with pytest.raises(ConfigError) as caught:
        target(**keys)
    return [line.removeprefix("FILE: targets[0].") for line in str(caught.value).split("\n")]


def written(folder: Path, **files: bytes) -> dict[str, str]:
    """Return the `tls` section with files of this content."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: str(folder / name) for name in files}


def with_passphrase(kind: serialization.PrivateFormat) -> bytes:
    key = serialization.load_pem_private_key(KEY, None)
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.BestAvailableEncryption(b"phrase"))


# --- Client certificates -------------------------------------------------------------------------------------


def test_a_certificate_and_its_key_may_be_in_two_files_or_in_one(tmp_path: Path) -> None:
    two = target(tls=written(tmp_path, cert_file=CERTIFICATE, key_file=KEY)).tls
    assert (two.cert_file, two.key_file) == (tmp_path / "cert_file", tmp_path / "key_file")
    for data in (KEY + CERTIFICATE, CERTIFICATE + KEY):
        assert target(tls=written(tmp_path, cert_file=data)).tls.key_file is None


@pytest.mark.parametrize(
    ("cert", "key", "line"),
    [
        (b"", KEY, "tls.cert_file: {cert} holds no certificate; use a PEM file"),
        (b"\0\xff", KEY, "tls.cert_file: {cert} holds no certificate; use a PEM file"),
        (KEY, KEY, "tls.cert_file: {cert} holds no certificate; use a PEM file"),
        (CERTIFICATE[:200], KEY, "tls.cert_file: {cert} holds no certificate; use a PEM file"),
        (
            ssl.PEM_cert_to_DER_cert(OURS.cert_chain_pems[0].bytes().decode()),
            KEY,
            "tls.cert_file: {cert} holds no certificate; use a PEM file",
        ),
        (CERTIFICATE, b"", "tls.key_file: {key} holds no private key; use a PEM file"),
        (CERTIFICATE, CERTIFICATE, "tls.key_file: {key} holds no private key; use a PEM file"),
        (CERTIFICATE, KEY[:100], "tls.key_file: {key} holds no private key; use a PEM file"),
        (
            CERTIFICATE,
            OTHER.private_key_pem.bytes(),
            "tls.key_file: {key} holds a key that does not match the certificate; use the certificate's own key",
        ),
        (
            CERTIFICATE,
            with_passphrase(serialization.PrivateFormat.PKCS8),
            "tls.key_file: {key} holds a key with a passphrase; use a key without one",
        ),
        (
            CERTIFICATE,
            with_passphrase(serialization.PrivateFormat.TraditionalOpenSSL),
            "tls.key_file: {key} holds a key with a passphrase; use a key without one",
        ),
        (
            CERTIFICATE,
            None,
            "tls.cert_file: {cert} holds no private key; set key_file to the file that holds it",
        ),
        (
            CERTIFICATE + OTHER.private_key_pem.bytes(),
            None,
            "tls.cert_file: {cert} holds a key that does not match the certificate; use the certificate's own key",
        ),
    ],
    # Said here, because what is made anew in each process cannot name a test.
    ids=[
        *("empty", "no-text", "key-as-certificate", "half-a-certificate", "der", "empty-key", "certificate-as-key"),
        *("half-a-key", "key-of-another", "passphrase", "passphrase-of-old", "no-key-with-it", "wrong-key-with-it"),
    ],
)
def test_a_certificate_error_names_the_file_to_fix(
    cert: bytes, key: bytes | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # pytest's folders are longer than a value that is shown whole
    written(tmp_path, cert=cert, **({} if key is None else {"key": key}))
    tls = {"cert_file": "cert"} if key is None else {"cert_file": "cert", "key_file": "key"}
    assert refusal(tls=tls) == [line.format(cert="'cert'", key="'key'")]


def test_a_folder_is_neither_certificate_nor_key(tmp_path: Path) -> None:
    (line,) = refusal(tls={"cert_file": str(tmp_path)})
    assert "cannot be read" in line
    files = written(tmp_path, cert_file=CERTIFICATE)
    (line,) = refusal(tls={**files, "key_file": str(tmp_path)})
    assert line.startswith("tls.key_file")


def test_a_certificate_for_the_metrics_alone_is_accepted(tmp_path: Path) -> None:
    tls = written(tmp_path, cert_file=KEY + CERTIFICATE)
    assert target(base_url="http://llama", metrics_url="https://llama:9000/metrics", tls=tls)


@pytest.mark.slow
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_file_is_too_strange(tmp_path_factory: pytest.TempPathFactory, cert: bytes, key: bytes) -> None:
    folder = tmp_path_factory.mktemp("pem")
    for tls in (written(folder, cert_file=cert, key_file=key), written(folder, cert_file=CERTIFICATE, key_file=key)):
        assert len(refusal(tls=tls)) == 1


# --- Ways ----------------------------------------------------------------------------------------------------


def test_by_default_a_target_is_reached_directly() -> None:
    connection = target().connection
    assert (connection.unix_socket, connection.proxy, connection.http2) == (None, None, False)
    assert (connection.connect_timeout, connection.limits()) == (5.0, {})


def test_a_socket_may_be_missing_or_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert target(connection={"unix_socket": "vllm.sock"}).connection.unix_socket == Path("vllm.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("vllm.sock")
        assert target(connection={"unix_socket": "vllm.sock"})


def test_a_file_in_the_place_of_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm.sock").touch()
    (line,) = refusal(connection={"unix_socket": "vllm.sock"})
    assert line == ("connection.unix_socket: 'vllm.sock' is not a socket; use the path that the server listens on")


@pytest.mark.parametrize(("path", "accepted"), [("/run/" + "x" * 102, True), ("/run/" + "x" * 103, False)])
def test_a_socket_is_refused_that_the_system_could_not_open(path: str, accepted: bool) -> None:  # noqa: FBT001
    """The length is unix(7)'s; a path that is refused here would fail at every request."""
    with socket.socket(socket.AF_UNIX) as tried, pytest.raises(OSError) as system:  # noqa: PT011 - the two differ
        tried.connect(path)
    assert ("too long" in str(system.value)) is not accepted
    assert accepted or "at most 107 bytes" in refusal(connection={"unix_socket": path})[0]
    assert not accepted or target(connection={"unix_socket": path})


@pytest.mark.parametrize("path", ["a\0b", "", "unix:/run/vllm.sock", "unix:///run/vllm.sock"])
def test_a_socket_is_a_path(path: str) -> None:
    (line,) = refusal(connection={"unix_socket": path})
    assert "expected a socket path" in line


@pytest.mark.parametrize(
    ("proxy", "effective"),
    [
        ("http://proxy:3128/", "http://proxy:3128"),
        ("https://proxy", "https://proxy"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_a_proxy_is_an_address(proxy: str, effective: str) -> None:
    assert target(connection={"proxy": proxy}).connection.proxy == effective


def test_a_proxy_may_be_named_by_the_environment() -> None:
    raw = {"targets": [{"name": "a", "base_url": "http://a", "connection": {"proxy": "${PROXY}"}}]}
    loaded = config_from(raw, "FILE", {"PROXY": "http://proxy:3128"})
    assert loaded.targets[0].connection.proxy == "http://proxy:3128"


@pytest.mark.parametrize(
    "proxy",
    [
        f"http://me:{SECRET}@proxy:3128",
        f"me:{SECRET}@proxy",
        f"http://me:{SECRET}/x@proxy",
        f"http://me%3A{SECRET}%40proxy",
        f"http://me:{SECRET}",
        f"socks5://{SECRET}",
        f"http://proxy:3128?password={SECRET}",
        [f"http://me:{SECRET}@proxy"],
        {"url": f"http://me:{SECRET}@proxy"},
    ],
)
def test_no_message_shows_a_proxys_password(proxy: object) -> None:
    for keys in ({"proxy": proxy}, {"proxy": "${PROXY}"}):
        raw = {"targets": [{"name": "a", "base_url": "https://a", "connection": keys}]}
        with pytest.raises(ConfigError) as caught:
            config_from(raw, "FILE", {"PROXY": str(proxy)})
        assert SECRET not in str(caught.value)
        assert "connection.proxy" in str(caught.value)


def test_credentials_are_in_their_file_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "proxy"
    file.write_text(f"monitor:{SECRET}\n")
    raw = {
        "targets": [
            {
                "name": "a",
                "base_url": "http://a",
                "connection": {"proxy": "http://proxy:3128", "proxy_auth_file": str(file)},
            }
        ]
    }
    loaded = config_from(raw, "FILE", {})
    for text in (show(loaded), repr(loaded), loaded.model_dump_json()):
        assert SECRET not in text
    before = config_hash(loaded)
    file.write_text("monitor:rotated\n")
    assert config_hash(config_from(raw, "FILE", {})) == before


@pytest.mark.parametrize("text", ["", "monitor", f":{SECRET}", f"monitor:{SECRET}\nb: c", "monitor:\0", "\n"])
def test_a_file_without_credentials_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy"
    file.write_text(text)
    (line,) = refusal(connection={"proxy": "http://proxy:3128", "proxy_auth_file": str(file)})
    assert "expected one line, USER:PASSWORD" in line
    assert SECRET not in line


@pytest.mark.parametrize("text", ["monitor:word", "monitor:", "monitor:a:b", "monitor:wörd\r\n"])
def test_a_password_may_be_anything_that_fits_a_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy"
    file.write_text(text)
    assert target(connection={"proxy": "http://proxy:3128", "proxy_auth_file": str(file)})


def test_http2_without_its_package_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target(connection={"http2": True}).connection.http2
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert refusal(connection={"http2": True}) == [
        "connection.http2: the package h2 is not installed; pip install 'kneewatch[http2]'"
    ]
    assert target(connection={"http2": False})


# --- Limits --------------------------------------------------------------------------------------------------


def test_a_limit_is_at_most_that_of_the_request() -> None:
    limits = {"first_byte_timeout": "30s", "between_bytes_timeout": "500ms", "connect_timeout": "1m"}
    connection = target(connection=limits).connection
    assert connection.limits() == {"first_byte_timeout": 30.0, "between_bytes_timeout": 0.5}
    lines = refusal(connection=limits, canary={"timeout": "400ms"})
    assert [line.partition(":")[0] for line in lines] == [
        "connection.first_byte_timeout",
        "connection.between_bytes_timeout",
    ]


def test_a_short_request_needs_no_shorter_limit_for_its_connection() -> None:
    assert target(canary={"timeout": "1s"}).connection.connect_timeout == 5.0


# --- Several replicas ----------------------------------------------------------------------------------------


def test_the_pages_of_replicas_are_a_page_of_their_own_in_any_order_and_spelling() -> None:
    one, other = "http://llama-0:8000/metrics", "http://llama-1:80/metrics"
    both = target(metrics_urls=[one, other])
    assert both.metrics_urls == (one, other)
    assert both.metrics_page == target(metrics_urls=["http://LLAMA-1/metrics", one]).metrics_page
    assert both.metrics_page not in {target(metrics_url=one).metrics_page, target().metrics_page}


def test_replicas_that_are_found_are_a_page_of_their_own_whichever_target_finds_them() -> None:
    found = {"dns": {"name": "llama.serving", "port": 8000}}
    replicas = target(metrics_discovery=found)
    assert replicas.metrics_page == target(name="b", metrics_discovery=found).metrics_page
    assert replicas.metrics_page not in {
        target().metrics_page,
        target(metrics_discovery={**found, "path": "/a"}).metrics_page,
    }


def test_how_replicas_are_found_is_checked_as_the_discovery_of_targets_is() -> None:
    pods = {"endpoints": "llama", "port": 8000}
    page = "http://llama-0:8000/metrics"
    assert refusal(metrics_discovery={}) == ["metrics_discovery: no source is set; add kubernetes, dns, file or http"]
    assert refusal(metrics_discovery={"kubernetes": {**pods, "service": "llama"}}) == [
        "metrics_discovery.kubernetes.service: would be read as one more replica; remove it"
    ]
    assert refusal(metrics_discovery={"kubernetes": pods}, metrics_url=page) == [
        "metrics_url: metrics_url and metrics_discovery are both set; keep one"
    ]
    assert refusal(metrics_discovery={"kubernetes": pods}, metrics_url=page, metrics_urls=[page, page + "2"]) == [
        "metrics_url: metrics_url and metrics_urls and metrics_discovery are all set; keep one"
    ]


def test_a_client_certificate_is_for_the_replicas_too(tmp_path: Path) -> None:
    tls = written(tmp_path, cert_file=CERTIFICATE, key_file=KEY)
    pages = ["http://llama-0:8000/metrics", "https://llama-1:8000/metrics"]
    assert target(base_url="http://llama", metrics_urls=pages, tls=tls)
    assert (
        "client certificates need https"
        in refusal(base_url="http://llama", metrics_urls=[pages[0], "http://b"], tls=tls)[0]
    )


def test_a_template_has_no_replicas() -> None:
    pages = ["http://llama-0:8000/metrics", "http://llama-1:8000/metrics"]
    raw = {"targets": [{"name": "llama", "discover": {"dns": {"name": "llama", "port": 8000}}, "metrics_urls": pages}]}
    with pytest.raises(ConfigError, match="metrics_urls: would apply to every discovered server; remove it"):
        config_from(raw, "FILE", {})

"""The web configuration file: what the exporters' format says is taken, or refused in one line without its values."""

from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from probe.config.web_file import WebConfig, load_web_config
from probe.core.errors import ConfigError
from probe.web.gate import is_allowed_certificate, server_context

HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
SECRET = "s3cr3t-in-the-file"


def _load(folder: Path, content: object) -> WebConfig:
    file = folder / "web.yml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_web_config(file)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a certificate, its key and its authority."""
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().issue_cert("other").private_key_pem.write_to_path(folder / "other.pem")
    (folder / "none.pem").write_text("no certificate")
    return folder


def _tls(pem: Path, **more: object) -> dict[str, Any]:
    return {"tls_server_config": {"cert_file": str(pem / "cert.pem"), "key_file": str(pem / "key.pem"), **more}}


@pytest.mark.parametrize("content", ["{}", "rate_limit:\n"])
def test_a_file_may_ask_for_nothing(tmp_path: Path, content: str) -> None:
    assert _load(tmp_path, content) == WebConfig()


@pytest.mark.parametrize("content", ["", "# nothing\n", "tls_server_config:\n", "basic_auth_users:\n"])
def test_a_file_that_is_being_written_opens_nothing(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        _load(tmp_path, content)


def test_the_whole_format_is_read(tmp_path: Path, pem: Path) -> None:
    config = _load(
        tmp_path,
        {
            **_tls(
                pem,
                client_auth_type="RequireAndVerifyClientCert",
                client_ca_file=str(pem / "ca.pem"),
                client_allowed_sans=["prometheus"],
                min_version="TLS13",
                max_version="TLS13",
                cipher_suites=["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"],
                prefer_server_cipher_suites=False,
                curve_preferences=["X25519"],
            ),
            "http_server_config": {"http2": False, "headers": {"Strict-Transport-Security": "max-age=60"}},
            "basic_auth_users": {"alice": HASH},
            "rate_limit": {"interval": "100ms", "burst": 20},
        },
    )
    assert config.http_server_config.headers.set() == {"Strict-Transport-Security": "max-age=60"}
    assert config.rate_limit.interval == pytest.approx(0.1)
    assert config.tls_server_config is not None
    context = server_context(config.tls_server_config)
    assert context.minimum_version.name == "TLSv1_3"
    assert context.verify_mode.name == "CERT_REQUIRED"


def test_paths_are_relative_to_the_file(tmp_path: Path, pem: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((pem / name).read_bytes())
    config = _load(tmp_path, {"tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"}})
    assert config.files == (tmp_path / "cert.pem", tmp_path / "key.pem")
    assert config.tls_server_config is not None
    server_context(config.tls_server_config)


def test_certificates_may_be_inline_in_the_file(tmp_path: Path, pem: Path) -> None:
    inline = {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    texts = {key: (pem / name).read_text() for key, name in inline.items()}
    config = _load(tmp_path, {"tls_server_config": {**texts, "client_auth_type": "VerifyClientCertIfGiven"}})
    assert config.tls_server_config is not None
    assert server_context(config.tls_server_config).verify_mode.name == "CERT_OPTIONAL"
    assert "PRIVATE KEY" not in repr(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1], "expected a mapping"),
        ({"tls": {}}, "tls: unknown key"),
        ({"basic_auth_users": {"alice": SECRET}}, "basic_auth_users.alice: expected a bcrypt hash"),
        ({"basic_auth_users": {"alice": 1234}}, "basic_auth_users.alice"),
        ({"basic_auth_users": [SECRET]}, "basic_auth_users"),
        ({"rate_limit": {"interval": "soon"}}, "rate_limit.interval: expected a duration"),
        ({"rate_limit": {"interval": "1s", "burst": -1}}, "rate_limit.burst"),
        ({"http_server_config": {"headers": {"X-Other": "x"}}}, "http_server_config.headers.X-Other: unknown key"),
        ({"http_server_config": {"headers": {"X-Frame-Options": "maybe"}}}, "X-Frame-Options"),
        (
            {"http_server_config": {"headers": {"Content-Security-Policy": "\u201cself\u201d"}}},
            "expected printable ASCII",
        ),
        ({"http_server_config": {"headers": {"X-XSS-Protection": "1\r\nX: y"}}}, "expected printable ASCII"),
        ({"http_server_config": {"headers": {"Strict-Transport-Security": "a\x00"}}}, "expected printable ASCII"),
        ({"basic_auth_users": {"alice": HASH.replace("$10$", "$31$")}}, "expected a bcrypt cost of at most 14"),
        ('tls_server_config: {cert: "\\ud83d"}', "half of a character"),
        ({"tls_server_config": {}}, "tls_server_config.cert_file: missing"),
        ({"tls_server_config": {"cert_file": "a", "cert": "b", "key": SECRET}}, "keep one of them"),
        ({"tls_server_config": {"min_version": "SSL3"}}, "tls_server_config.min_version"),
        ("basic_auth_users: {a: b", "not valid YAML"),
        (f"basic_auth_users: {{a: '{HASH}', a: '{HASH}'}}", "web.yml"),
    ],
)
def test_each_web_file_error_is_one_line_without_the_value(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, content)
    assert words in str(raised.value)
    for line in str(raised.value).splitlines():
        assert line.startswith(str(tmp_path / "web.yml"))
    assert SECRET not in str(raised.value)
    assert HASH not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"client_auth_type": "RequestClientCert"}, "prove nothing"),
        ({"client_auth_type": "RequireAnyClientCert"}, "prove nothing"),
        ({"client_auth_type": "RequireAndVerifyClientCert"}, "client_ca_file: missing"),
        ({"client_ca_file": "ca.pem"}, "client_auth_type: missing"),
        ({"client_allowed_sans": ["a"]}, "client_allowed_sans: requires"),
        ({"min_version": "TLS13", "max_version": "TLS12"}, "min_version: above max_version"),
        ({"curve_preferences": ["X25519", "CurveP256"]}, "curve_preferences: only one curve"),
        ({"client_auth_type": "Sometimes"}, "client_auth_type"),
    ],
)
@pytest.mark.fault(
    "SE17",
    "A web configuration that locks nothing",
    area="Security",
    users_see="refused in one line",
    stays="-",
)
def test_a_lock_that_would_not_lock_is_refused(tmp_path: Path, pem: Path, more: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _load(tmp_path, _tls(pem, **more))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cert_file": "none.pem"}, "certificate and key cannot be used"),
        ({"cert_file": "absent.pem"}, "No such file"),
        ({"key_file": "other.pem"}, "certificate and key cannot be used"),
        ({"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "none.pem"}, "client_ca_file"),
        ({"cipher_suites": ["TLS_RSA_WITH_RC4_128_SHA"]}, "cipher_suites: unknown or unsafe"),
        ({"curve_preferences": ["CurveP42"]}, "curve_preferences: unknown"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, pem: Path, more: dict[str, Any], words: str) -> None:
    paths = {key: str(pem / value) if key.endswith("_file") else value for key, value in more.items()}
    config = _load(tmp_path, _tls(pem, **paths))
    assert config.tls_server_config is not None
    with pytest.raises(ConfigError, match=words):
        server_context(config.tls_server_config)


def test_a_certificate_has_one_of_the_names_or_none_is_asked_for() -> None:
    shown = {"subjectAltName": (("DNS", "prometheus"), ("IP Address", "10.0.0.1"))}
    assert is_allowed_certificate(shown, ("x", "10.0.0.1"))
    assert not is_allowed_certificate(shown, ("prom",))
    assert not is_allowed_certificate(None, ("prometheus",))
    assert is_allowed_certificate(None, ())

"""The TLS context of the pages, from the web configuration file."""

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from probe.config.web_file import TlsServer
from probe.core.errors import ConfigError

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_POLICIES = {"VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# Go's names of its secure cipher suites, which the format uses, and OpenSSL's. TLS 1.3 suites are not configurable.
_ALWAYS = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
_SUITES = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}


def server_context(tls: TlsServer) -> ssl.SSLContext:
    """Return the TLS context of the server. Raises ConfigError with one line."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    with ExitStack() as held:
        certificate = _file(held, tls.cert_file, tls.cert)
        key = _file(held, tls.key_file, tls.key.get_secret_value() if tls.key is not None else None)
        try:
            context.load_cert_chain(certificate, key, _refuse_passphrase)
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls_server_config: certificate and key cannot be used ({_words(error)})") from None
        if tls.client_auth_type in _POLICIES:
            authority = _file(held, tls.client_ca_file, tls.client_ca)
            try:
                context.load_verify_locations(cafile=authority)
            except (OSError, ValueError) as error:
                raise ConfigError(f"tls_server_config.client_ca_file: cannot be used ({_words(error)})") from None
            context.verify_mode = _POLICIES[tls.client_auth_type]
    _choose(context, tls)
    return context


def is_allowed_certificate(certificate: Mapping[str, Any] | None, names: tuple[str, ...]) -> bool:
    """Return whether a client certificate has one of the required alternative names; without names, any is allowed."""
    if not names:
        return True
    has = {value for _, value in (certificate or {}).get("subjectAltName", ())}
    return not has.isdisjoint(names)


def _choose(context: ssl.SSLContext, tls: TlsServer) -> None:
    unknown = [one for one in tls.cipher_suites if one not in _SUITES and one not in _ALWAYS]
    if unknown:
        raise ConfigError(f"tls_server_config.cipher_suites: unknown or unsafe; expected some of {', '.join(_SUITES)}")
    if suites := [_SUITES[one] for one in tls.cipher_suites if one in _SUITES]:
        context.set_ciphers(":".join(suites))
    for curve in tls.curve_preferences:
        if curve not in _CURVES:
            raise ConfigError(f"tls_server_config.curve_preferences: unknown; expected one of {', '.join(_CURVES)}")
        context.set_ecdh_curve(_CURVES[curve])


def _file(held: ExitStack, path: Path | None, text: str | None) -> str | Path:
    """Return a file for OpenSSL, which reads only files."""
    return path if path is not None else held.enter_context(_in_memory(text or ""))


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Yield the path of an in-memory file, because a key must not reach a disk."""
    descriptor = os.memfd_create("kneewatch")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _refuse_passphrase() -> str:
    """Refuse instead of letting OpenSSL ask for a passphrase at the terminal."""
    raise ValueError("a key with a passphrase; use a key without one")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "no PEM").lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)

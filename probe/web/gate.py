"""Access control in front of an ASGI app, from the current web configuration file: TLS, passwords and a rate limit.

The file and the files it names are checked every second, so that a renewed certificate or a changed password needs no
restart. If the new files are invalid, the error is logged and the previous ones stay in use.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe.config.web_file import RateLimit, TlsServer, WebConfig, load_web_config
from probe.core.errors import ConfigError
from probe.core.file_signature import Signature, file_signature
from probe.core.plain_file import check_plain
from probe.web.auth import BasicAuth, BusyError

_log = structlog.get_logger()
LOOK_S = 1.0
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_POLICIES = {"VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# Go's names of its secure cipher suites, which the format uses, and OpenSSL's. TLS 1.3 suites are not configurable.
_TLS13_SUITES = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
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


class AccessGate:
    """An ASGI app that guards another one."""

    def __init__(self, app: ASGIApp, file: Path | None) -> None:
        """Take `file`: the web configuration; None: no access control. Raises ConfigError."""
        self._app = app
        self._file = file
        self._watched: tuple[Path, ...] = ()
        self._seen: list[Signature | None] = []
        self._config, self._auth, self._tokens = WebConfig(), BasicAuth({}), _Tokens(RateLimit())
        self.tls: ssl.SSLContext | None = None
        if file is not None:
            self._load(file)

    def _load(self, file: Path) -> None:
        # Before reading, so that a change during the read is noticed.
        self._remember((file, *self._config.files))
        config = load_web_config(file)
        self._remember((file, *config.files))
        try:
            tls = server_context(config.tls_server_config) if config.tls_server_config is not None else None
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        users = {user: hashed.get_secret_value() for user, hashed in config.basic_auth_users.items()}
        before, self._auth = self._auth, BasicAuth(users, self._auth.remembered)
        before.close()
        self._config, self._tokens, self.tls = config, _Tokens(config.rate_limit), tls

    def _remember(self, files: tuple[Path, ...]) -> None:
        self._watched, self._seen = files, [file_signature(file) for file in files]

    async def watch(self, changed: Callable[[], None], every_s: float = LOOK_S) -> None:
        """Reload the file whenever it changes, and then call `changed`. Never returns."""
        while self._file is not None:
            await asyncio.sleep(every_s)
            if [file_signature(file) for file in self._watched] != self._seen:
                try:
                    self._load(self._file)
                except ConfigError as error:
                    _log.error("the web configuration is refused, the previous one stays in use", detail=str(error))
                    continue
                _log.info("the web configuration is loaded", file=str(self._file))
                changed()

    def close(self) -> None:
        """Stop the thread for passwords."""
        self._auth.close()

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client with this certificate may connect."""
        tls = self._config.tls_server_config
        return tls is None or is_allowed_certificate(certificate, tls.client_allowed_sans)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._config.http_server_config.headers.set()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and headers:
                MutableHeaders(scope=message).update(headers)
            await send(message)

        app = await self._refusal(scope) if scope["type"] == "http" else None
        await (app or self._app)(scope, receive, send_with_headers)

    async def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the response that refuses a request, or None if it is allowed."""
        if not self._tokens.take():
            return PlainTextResponse("too many requests\n", 429, {"Retry-After": "1"})
        if not self._auth.is_required:
            return None
        try:
            if await self._auth.allows(Headers(scope=scope).get("authorization"), (scope.get("client") or [""])[0]):
                return None
        except BusyError as busy:
            return PlainTextResponse(f"{busy}\n", 429, {"Retry-After": "5"})
        wanted = {"WWW-Authenticate": 'Basic realm="Kneewatch", charset="UTF-8"'}
        return PlainTextResponse("user and password required\n", 401, wanted)


class _Tokens:
    """The rate limit of the file, for all requests together."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._left, self._at = float(limit.burst), time.monotonic()

    def take(self) -> bool:
        if not self._limit.interval:
            return True
        now = time.monotonic()
        self._left = min(self._limit.burst, self._left + (now - self._at) / self._limit.interval)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


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
            for file in (certificate, key):
                if file is not None:
                    check_plain(file)
            context.load_cert_chain(certificate, key, _refuse_passphrase)
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls_server_config: certificate and key cannot be used ({_words(error)})") from None
        if tls.client_auth_type in _POLICIES:
            authority = _file(held, tls.client_ca_file, tls.client_ca)
            try:
                if authority is not None:
                    check_plain(authority)
                context.load_verify_locations(cafile=authority)
            except (OSError, ValueError) as error:
                raise ConfigError(f"tls_server_config.client_ca_file: cannot be used ({_words(error)})") from None
            context.verify_mode = _POLICIES[tls.client_auth_type]
    _set_ciphers(context, tls)
    return context


def is_allowed_certificate(certificate: Mapping[str, Any] | None, names: tuple[str, ...]) -> bool:
    """Return whether a client certificate has one of the required alternative names; without names, any is allowed."""
    if not names:
        return True
    has = {value for _, value in (certificate or {}).get("subjectAltName", ())}
    return not has.isdisjoint(names)


def _set_ciphers(context: ssl.SSLContext, tls: TlsServer) -> None:
    unknown = [one for one in tls.cipher_suites if one not in _SUITES and one not in _TLS13_SUITES]
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

"""Access control in front of an ASGI app, from the current web configuration file.

The file and the files it names are checked every second, so that a renewed certificate or a changed password needs no
restart. If the new files are invalid, the error is logged and the previous ones stay in use.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe.config.web_file import RateLimit, WebConfig, load_web_config
from probe.core.errors import ConfigError
from probe.core.file_signature import Signature, file_signature
from probe.web.auth import BasicAuth, BusyError
from probe.web.tls import is_allowed_certificate, server_context

_log = structlog.get_logger()
LOOK_S = 1.0


class AccessGate:
    """An ASGI app that guards another one."""

    def __init__(self, app: ASGIApp, file: Path | None) -> None:
        """`file`: the web configuration; None: no access control. Raises ConfigError."""
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

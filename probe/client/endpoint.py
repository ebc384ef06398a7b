"""The address of a target, its credentials, and how its certificate is verified, in one value."""

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.client.secrets import BEARER, AuthHeader, Secrets
from probe.client.tls_files import client_context
from probe.client.transport import Transport
from probe.core.file_signature import file_signature
from probe.core.plain_file import read_secret
from probe.core.redactor import SECRETS, Redactor

if TYPE_CHECKING:
    from probe.client.httpx_transport import Route

# uvicorn, and so vLLM, closes an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE). The client closes
# first, so that a request seldom meets a connection that is just being closed.
_KEEPALIVE_S = 4.0


def no_secret() -> None:
    return None


def no_headers() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server and how to connect to it.

    Mounted files change: `secret` (the API key) and `secret_headers` are called again and again, and certificates and
    `proxy_auth_file` are read again once they have changed, for new connections.
    `proxy_auth_file` holds user:password. `metrics_urls`: the pages of all replicas behind `base_url`, two or more,
    instead of `metrics_url`. A limit of None means that only the limit of the whole request applies.
    """

    target: str
    base_url: str
    metrics_url: str = ""
    metrics_urls: tuple[str, ...] = ()
    secret: Callable[[], str | None] = no_secret
    secret_headers: Callable[[], Mapping[str, str]] = no_headers
    plain_headers: Mapping[str, str] = field(default_factory=dict)
    auth_header: AuthHeader = BEARER
    shape: RequestShape = PLAIN_REQUESTS
    ca_file: str | None = None
    verify: bool = True
    cert_file: str | None = None
    key_file: str | None = None
    unix_socket: str | None = None
    proxy: str | None = None
    proxy_auth_file: str | None = None
    http2: bool = False
    connect_s: float = 5.0
    first_byte_s: float | None = None
    between_bytes_s: float | None = None

    @property
    def metrics_address(self) -> str:
        """Return `metrics_url`; by default, /metrics on the API's host."""
        return self.metrics_url or f"{self.base_url}/metrics"

    def replicas(self) -> tuple["Endpoint", ...]:
        """Return the endpoints to read metrics from: one for each of `metrics_urls`, else this one alone.

        A replica elsewhere is asked for its version and flags too. It gets no secrets, and is reached without the
        socket and the proxy, as a single `metrics_url` is.
        """
        return tuple(map(self._replica, self.metrics_urls)) or (self,)

    def headers(self, url: str, redactor: Redactor) -> dict[str, str]:
        """Return the target's own headers for `url`. They are sent to its own address only.

        The server or the proxy may repeat the secrets, so `redactor` hides them from now on. Raises ValueError with a
        message for a secret that cannot be read or sent.
        """
        sent: dict[str, str] = {}
        if url.startswith(f"{self.base_url}/"):
            secrets = self.secrets()
            secrets.check()
            sent = {**self.plain_headers, **secrets.headers, **self.auth_header.headers(secrets.key)}
            for secret in (secrets.key or "", *secrets.headers.values()):
                redactor.add(secret)
                SECRETS.add(secret)
        with suppress(OSError, ValueError):  # a request through the proxy says so
            if (login := self._proxy_login()) is not None:
                redactor.add_login(*login)
                SECRETS.add_login(*login)
        return sent

    def secrets(self) -> Secrets:
        """Return the API key and the secret headers. Raises ValueError with a message where one cannot be read."""
        try:
            key = self.secret()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"the API key cannot be read ({_reason(error)})") from error
        try:
            return Secrets(key, self.secret_headers())
        except (OSError, UnicodeError) as error:
            raise ValueError(f"a secret of headers cannot be read ({_reason(error)})") from error

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return the transport that the target needs: httpcore's for a proxy or HTTP/2, else Transport.

        What takes long is done here and not in the first request: imports, and reading certificates.
        """
        if self.proxy is None and not self.http2:
            made = Transport(tls=self.tls, keepalive_s=_KEEPALIVE_S, unix_socket=self.unix_socket)
            made.prepare(self.base_url)
            return made
        from probe.client.httpx_transport import HttpxTransport  # noqa: PLC0415 - slow to import, and few need it

        return HttpxTransport(self._route, self._version, _KEEPALIVE_S)

    def timeouts(self, total_s: float) -> dict[str, float | None]:
        """Return the time limits for the `timeout` extension of a request; the caller limits the whole request."""
        return {
            "connect": min(self.connect_s, total_s),
            "first_byte": self.first_byte_s,
            "read": self.between_bytes_s,
        }

    def metrics_transport(self) -> httpx.AsyncBaseTransport:
        """Return the transport for the metrics page. A separate server is reached without the socket and the proxy."""
        elsewhere = urlsplit(self.metrics_address)[:2] != urlsplit(self.base_url)[:2]
        made = (replace(self, unix_socket=None, proxy=None) if elsewhere else self).transport()
        if isinstance(made, Transport):
            made.prepare(self.metrics_address)
        return made

    def _replica(self, url: str) -> "Endpoint":
        if url.startswith(f"{self.base_url}/"):
            return replace(self, metrics_url=url, metrics_urls=())
        parts = urlsplit(url)
        return replace(
            self,
            base_url=f"{parts.scheme}://{parts.netloc}",
            metrics_url=url,
            metrics_urls=(),
            secret=no_secret,
            secret_headers=no_headers,
            plain_headers={},
            unix_socket=None,
            proxy=None,
        )

    def tls(self) -> ssl.SSLContext:
        """Return the current TLS context. Raises OSError or ValueError where a file cannot be used."""
        return client_context(self.ca_file, self.cert_file, self.key_file, verify=self.verify, http2=self.http2)

    def _version(self) -> object:
        """Return a value that changes with the files that `_route` reads."""
        return self.tls(), file_signature(Path(self.proxy_auth_file)) if self.proxy_auth_file else None

    def _route(self) -> "Route":
        """Return how to reach the server, with certificates and credentials as they are now.

        A proxy is verified like the server; the client certificate is shown to the server only. A proxy from the
        environment is not used: it would be measured as if it were the server.
        """
        import httpcore  # noqa: PLC0415 - as in transport()

        from probe.client.httpx_transport import Route  # noqa: PLC0415

        url, tls = httpx.URL(self.proxy or self.base_url), self.tls()
        options: dict[str, Any] = {
            "ssl_context": tls,
            "http2": self.http2,
            "max_connections": None,
            "keepalive_expiry": _KEEPALIVE_S,
        }
        if self.proxy is None:
            make = partial(httpcore.AsyncConnectionPool, uds=self.unix_socket, **options)
            return Route(make, url, tls if url.scheme == "https" else None, self.unix_socket)
        of_proxy = client_context(self.ca_file, verify=self.verify) if url.scheme == "https" else None
        login = self._proxy_login()
        if login is not None:
            options["proxy_auth"] = tuple(part.encode() for part in login)
        address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=b"/")
        return Route(partial(httpcore.AsyncHTTPProxy, address, proxy_ssl_context=of_proxy, **options), url, of_proxy)

    def _proxy_login(self) -> tuple[str, str] | None:
        """Return user and password for the proxy, if any. Raises OSError or ValueError where the file has none."""
        if not self.proxy_auth_file:
            return None
        user, colon, password = read_secret(self.proxy_auth_file).partition(":")
        if not colon:
            raise ValueError(f"{self.proxy_auth_file}: holds no credentials; expected one line, USER:PASSWORD")
        return user, password


def _reason(error: OSError | UnicodeError) -> str:
    return f"{error.strerror}" if isinstance(error, OSError) else "it is not text"

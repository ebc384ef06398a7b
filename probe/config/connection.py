"""The `tls` and `connection` sections of a target, and their checks.

types.py checks single values. The checks here are of files, contradictions and missing packages.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from probe.config.path_checks import (
    authorities_problem,
    client_certificate_problem,
    credentials_problem,
    socket_problem,
)
from probe.config.types import ConfigSection, Duration, Proxy, SocketPath, default_duration
from probe.core.durations import format_duration


class TlsConfig(ConfigSection):
    """How the target's certificate is verified, and the client certificate."""

    ca_file: Path | None = None
    """CA certificates to trust instead of Mozilla's public list, as PEM. Must be readable at startup."""
    verify: bool = True
    """`false` accepts any certificate."""
    cert_file: Path | None = None
    """Client certificate with its chain, for servers that require one, as PEM; https only. Must be readable at startup.
    """
    key_file: Path | None = None
    """Private key of the client certificate, if `cert_file` does not contain it, as PEM without a passphrase. Must be
    readable at startup.
    """


class ConnectionConfig(ConfigSection):
    """Route of the requests, and time limits of their parts."""

    unix_socket: SocketPath | None = None
    """Socket on which the server listens; `base_url` still gives scheme, `Host` and path. A path of at most 107 bytes;
    the socket may be created later. Not together with `proxy`.
    """
    proxy: Proxy | None = None
    """HTTP proxy, an address without a path; https is tunnelled through it. No SOCKS."""
    proxy_auth_file: Path | None = None
    """File with one line for the proxy, `USER:PASSWORD`. Must be readable at startup. Only with `proxy`."""
    http2: bool = False
    """`true` uses HTTP/2 if the server offers it in TLS, as gateways do; vLLM itself does not. Each request in flight
    has a connection of its own; one that is stopped is reset. https only; needs `pip install 'kneewatch[http2]'`.
    """
    connect_timeout: Duration = default_duration("5s")
    """Limit for opening a connection, including the lookup of the name and TLS. The limit of the request applies
    if it is shorter. Where an address does not answer, the name's next one is tried after 250 ms.
    """
    first_byte_timeout: Duration | None = None
    """Limit from sending the request to the first byte of the answer; at most the limit of a canary
    (`canary.timeout`).
    """
    between_bytes_timeout: Duration | None = None
    """Limit between two parts of an answer, at most the limit of a canary. vLLM sends the HTTP head at once, so the
    wait for the first token counts.
    """

    def limits(self) -> dict[str, float]:
        """Return the time limits within a request that are set, in seconds."""
        limits = {"first_byte_timeout": self.first_byte_timeout, "between_bytes_timeout": self.between_bytes_timeout}
        return {key: limit_s for key, limit_s in limits.items() if limit_s is not None}


def connection_problems(
    tls: TlsConfig,
    connection: ConnectionConfig,
    *,
    base_url: str,
    metrics_urls: Sequence[str],
    timeouts: Mapping[str, float],
    written: Callable[[str], str],
) -> Iterator[str]:
    """Yield problems, each with the key's path below the target.

    `timeouts`: the canaries' timeouts by key (s). `written` returns a key's value as in the file.
    """
    for key, words in (*_unusable_tls(tls), *_unusable_ways(connection)):
        yield f"{key}: {written(key)} {words}"
    if tls.key_file and not tls.cert_file:
        yield "tls.key_file: is set without a certificate; add cert_file"
    if tls.cert_file and not any(url.startswith("https:") for url in (base_url, *metrics_urls)):
        yield "tls.cert_file: base_url is http, and client certificates need https; use https, or remove cert_file"
    if connection.unix_socket and connection.proxy:
        yield "connection: unix_socket and proxy are both set; keep one"
    if connection.proxy_auth_file and not connection.proxy:
        yield "connection.proxy_auth_file: is set without a proxy; add proxy"
    if connection.http2 and not base_url.startswith("https:"):
        yield "connection.http2: needs https, and base_url is http; use https, or remove http2"
    elif connection.http2 and importlib.util.find_spec("h2") is None:
        yield "connection.http2: the package h2 is not installed; pip install 'kneewatch[http2]'"
    for key, limit_s in connection.limits().items() if timeouts else ():
        where, timeout_s = min(timeouts.items(), key=lambda each: each[1])
        if limit_s > timeout_s:
            yield (
                f"connection.{key}: {written(f'connection.{key}')} is longer than {where},"
                f" {format_duration(timeout_s)}, which ends the request first; lower it, or raise {where}"
            )


def _unusable_tls(tls: TlsConfig) -> Iterator[tuple[str, str]]:
    if tls.ca_file and (words := authorities_problem(tls.ca_file)):
        yield "tls.ca_file", words
    if tls.cert_file and (problem := client_certificate_problem(tls.cert_file, tls.key_file)):
        yield f"tls.{problem[0]}", problem[1]


def _unusable_ways(connection: ConnectionConfig) -> Iterator[tuple[str, str]]:
    if connection.unix_socket and (words := socket_problem(connection.unix_socket)):
        yield "connection.unix_socket", words
    if connection.proxy_auth_file and (words := credentials_problem(connection.proxy_auth_file)):
        yield "connection.proxy_auth_file", words

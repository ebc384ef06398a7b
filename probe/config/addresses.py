"""Types of addresses in the configuration: URLs, proxies, sockets and the address to listen on. See types.py."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from probe.core.server_address import server_key
from probe.core.snapshot import MAX_REPLICAS

_MAX_PORT = 65535
_MAX_LABEL = 63
_MAX_SOCKET_PATH = 107  # unix(7): sun_path, less the zero byte at its end


def _is_possible_host(host: str | None) -> bool:
    if not host or not host.isprintable() or " " in host:
        return False
    if ":" in host:  # urlsplit has checked the address between the brackets
        return True
    return all(0 < len(label) <= _MAX_LABEL for label in host.removesuffix(".").split("."))


def _url(text: str) -> str:
    if "@" in text:
        raise ValueError("expected an address without credentials; put them in api_key_file")
    expected = ValueError("expected an address such as http://llama-8b:8000")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise expected from None
    written = parts.netloc.rpartition("]")[2].partition(":")[2]
    if (
        parts.scheme not in ("http", "https")
        or parts.query
        or parts.fragment
        or not text.isprintable()
        or not _is_possible_host(parts.hostname)
        or (bool(written) and port is None)
        or port == 0
    ):
        raise expected
    return text.rstrip("/")


def _base_url(text: str) -> str:
    url = _url(text)
    return url.removesuffix("/v1") if urlsplit(url).path.endswith("/v1") else url


def _replicas(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not 2 <= len(urls) <= MAX_REPLICAS:  # noqa: PLR2004 - a single page is metrics_url
        raise ValueError(f"expected the pages of 2 to {MAX_REPLICAS} replicas; use metrics_url for a single page")
    if len({server_key(url) for url in urls}) < len(urls):
        raise ValueError("expected the page of each replica once; remove the duplicate")
    return urls


def _proxy(text: str) -> str:
    if "@" in unquote(text):
        raise ValueError("expected a proxy address without credentials; put them in proxy_auth_file")
    expected = ValueError("expected an HTTP proxy such as http://proxy:3128")
    try:
        url = _url(text)
    except ValueError:
        raise expected from None
    if urlsplit(url).path:
        raise expected
    return url


def _external_url(text: str) -> str:
    # Braces would be read as a template by Prometheus, in whose rules the address stands.
    if "@" not in text and "{" not in text:
        with suppress(ValueError):
            return _url(text)
    raise ValueError("expected an http or https address without credentials, such as https://kneewatch.example.org")


def _socket_path(path: Path) -> Path:
    if str(path) == "." or str(path).startswith("unix:") or "\0" in str(path):
        raise ValueError("expected a socket path such as /run/vllm.sock")
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise ValueError(f"expected a socket path of at most {_MAX_SOCKET_PATH} bytes")
    return path


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9876")
    return text


Url = Annotated[str, AfterValidator(_url), Field(title="address")]
Replicas = Annotated[tuple[Url, ...], AfterValidator(_replicas)]
ExternalUrl = Annotated[str, AfterValidator(_external_url), Field(title="address")]
BaseUrl = Annotated[str, AfterValidator(_base_url), Field(title="address")]
Proxy = Annotated[str, AfterValidator(_proxy), Field(title="address")]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
Listen = Annotated[str, AfterValidator(_listen), Field(title="HOST:PORT")]

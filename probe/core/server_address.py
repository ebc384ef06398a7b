"""One spelling for all spellings of a server's address: whether two addresses are of one server. Pure but for links."""

import ipaddress
import os
import socket
from contextlib import suppress
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = "localhost"
_LOCALHOST = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


def server_key(base_url: str, unix_socket: str | None = None) -> str:
    """Return host, port and path in one spelling; for a Unix socket its path without links.

    A host name and its IP address count as two servers, except for this machine's own. Other addresses of 127.0.0.0/8
    are servers of their own: who uses several has bound one to each.
    """
    if unix_socket is not None:
        return f"unix:{os.path.realpath(unix_socket)}"
    parts = urlsplit(base_url)
    host = _host((parts.hostname or "").removesuffix(".").lower())
    return f"{host}:{parts.port or _PORTS[parts.scheme]}{parts.path.rstrip('/')}"


def _host(host: str) -> str:
    if host.endswith(f".{_THIS_MACHINE}"):  # RFC 6761
        return _THIS_MACHINE
    address = _ip_address(host)
    if address is None:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return _THIS_MACHINE if address in _LOCALHOST or address.is_unspecified else f"[{address.compressed}]"


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a resolver takes the host for, or None for a name. 127.1 and 0x7f000001 are addresses."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    with suppress(OSError, ValueError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address is every machine's own."""
    address = _ip_address(host)
    return _host(host) == _THIS_MACHINE or (address is not None and address.is_loopback)

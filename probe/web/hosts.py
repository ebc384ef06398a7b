"""Protection against DNS rebinding: the host names to which the pages respond.

A malicious site can make its own name resolve to Kneewatch's address. The browser then treats both as one site, and the
site's scripts can read the pages and send requests. Such a request has the site's name in Host. So Host must be a
name that cannot belong to a stranger: an address, a name of this machine or of a private network, or a configured name.
"""

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Kubelets and Prometheus may ask for these paths under any name.
ANY_HOST_PATHS = frozenset(("/metrics", "/-/healthy", "/-/ready"))
# These suffixes are not in the public DNS; .svc is the suffix of Services within a cluster.
_PRIVATE = (".localhost", ".local", ".internal", ".svc")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]*[a-z0-9_-])\.?)(?::[0-9]*)?", re.IGNORECASE | re.ASCII)
_MISDIRECTED = 421


def is_allowed(host: str, names: Iterable[str]) -> bool:
    """Return whether a Host header is allowed. `names`: further names; a leading dot allows all names below."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found[1] is not None:
        return _is_address(found[1])
    name = found[2].lower()
    return _is_private(name) or _is_address(name) or any(_matches(name, one.lower()) for one in names)


def only_allowed_hosts(app: ASGIApp, names: Callable[[], Sequence[str]]) -> ASGIApp:
    """Return the app, restricted to allowed Host headers: current `names`, this machine's name, and private names."""
    machine = socket.gethostname()

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in ANY_HOST_PATHS:
            hosts = Headers(scope=scope).getlist("host")
            if len(hosts) != 1 or not is_allowed(hosts[0], (machine, *names())):
                words = "the name in Host is not allowed; add it to web_allowed_hosts in the configuration\n"
                await PlainTextResponse(words, _MISDIRECTED)(scope, receive, send)
                return
        await app(scope, receive, send)

    return named


def _is_private(name: str) -> bool:
    # A name without a dot is in a search domain of the network, or is this machine's.
    return "." not in name or name.endswith(_PRIVATE)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _matches(name: str, pattern: str) -> bool:
    return name.endswith(pattern) if pattern.startswith(".") else name == pattern

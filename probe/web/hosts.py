"""Which names the pages answer to.

A page of another site can have its own name point to our address (DNS rebinding): to a browser we are then that site,
and the page may read what we answer and ask for what we do. Its name stands in Host, so Host has to be one that no
stranger can have: an address, a name of this machine or of a private network, or one that the configuration gives.
"""

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# What kubelets and Prometheus ask for, by whatever name they have.
OPEN = frozenset(("/metrics", "/-/healthy", "/-/ready"))
# Names below these are in nobody's public DNS; .svc is what a cluster's Services are called within it.
_PRIVATE = (".localhost", ".local", ".internal", ".svc")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]*[a-z0-9_-])\.?)(?::[0-9]*)?", re.IGNORECASE | re.ASCII)
_MISDIRECTED = 421


def is_ours(host: str, names: Iterable[str]) -> bool:
    """Whether a Host header can mean us. `names`: others that we have; one that begins with a dot is all below it."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found[1] is not None:
        return _is_address(found[1])
    name = found[2].lower()
    return _is_private(name) or _is_address(name) or any(_fits(name, one.lower()) for one in names)


def by_our_names(app: ASGIApp, names: Callable[[], Sequence[str]]) -> ASGIApp:
    """The app for who calls us by a name of ours: those of `names` now, this machine's, and those that are private."""
    machine = socket.gethostname()

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            hosts = Headers(scope=scope).getlist("host")
            if len(hosts) != 1 or not is_ours(hosts[0], (machine, *names())):
                words = "the name in Host is not allowed; add it to web_allowed_hosts in the configuration\n"
                await PlainTextResponse(words, _MISDIRECTED)(scope, receive, send)
                return
        await app(scope, receive, send)

    return named


def _is_private(name: str) -> bool:
    # Without a dot it is found in a search domain of the network, or is this machine's.
    return "." not in name or name.endswith(_PRIVATE)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _fits(name: str, ours: str) -> bool:
    return name.endswith(ours) if ours.startswith(".") else name == ours

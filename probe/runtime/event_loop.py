"""The event loop of the commands: uvloop's, with lookups of names that do not hold up each other."""

import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

from probe.runtime.name_lookups import NameLookups

_T = TypeVar("_T")


class EventLoop(uvloop.Loop):
    """uvloop's event loop, with a `getaddrinfo` of its own.

    uvloop's `create_connection` does not use it: look the name up first, as transport.py and anyio do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lookups = NameLookups()

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as in asyncio
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Return the addresses of a host, as socket.getaddrinfo. Raises OSError."""
        is_for_tcp = (family, type, proto, flags) == (socket.AF_UNSPEC, socket.SOCK_STREAM, 0, 0)
        if not (is_for_tcp and host and isinstance(port, int)):
            return list(await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags))
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        with suppress(socket.gaierror):
            return socket.getaddrinfo(name, port, type=type, flags=socket.AI_NUMERICHOST)  # an address, without I/O
        found = await self._lookups.addresses(name)
        return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in found]


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end, as asyncio.run."""
    return uvloop.run(main, loop_factory=EventLoop)

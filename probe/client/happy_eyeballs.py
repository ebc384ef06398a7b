"""Connecting to a name with several addresses: the first one that accepts wins (RFC 8305, "Happy Eyeballs").

In: addresses in the resolver's order. Out: a connected socket; TLS comes afterwards, on the winner alone.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from itertools import chain, zip_longest

# "Connection Attempt Delay" of RFC 8305, section 5: what an address that does not answer costs.
_DELAY_S = 0.25
# The server's own answers: they say more than that an address has no route, as where IPv6 is not configured.
_ANSWERS = (errno.ECONNREFUSED, errno.ECONNRESET)
# The server's machine is not there. That says more than that this one has no address of a family.
_ABSENT = (errno.EHOSTUNREACH, errno.ETIMEDOUT)


async def connect(addresses: Sequence[str], port: int) -> tuple[socket.socket, str]:
    """Return a connected socket and its address. Raises OSError where no address accepts.

    The next address is tried a quarter of a second after the last one, or at once when one fails. Connections that
    lose are closed at once.
    """
    if len(addresses) == 1:
        return await _attempt(addresses[0], port), addresses[0]
    waiting = interleaved(addresses)
    attempts: dict[asyncio.Task[socket.socket], str] = {}
    errors: list[OSError] = []
    try:
        while waiting or attempts:
            if waiting:
                address = waiting.pop(0)
                attempts[asyncio.create_task(_attempt(address, port))] = address
            done, _ = await asyncio.wait(
                attempts, timeout=_DELAY_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in [attempt for attempt in attempts if attempt in done]:
                address = attempts.pop(attempt)
                try:
                    return attempt.result(), address
                except OSError as error:
                    errors.append(error)
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close)
    raise _telling(errors)


def _telling(errors: Sequence[OSError]) -> OSError:
    """Return the error that says most of the server."""
    told = next((error for error in errors if error.errno in _ANSWERS), errors[-1])
    if told.errno != errno.EADDRNOTAVAIL:
        return told
    return next((error for error in errors if error.errno in _ABSENT), told)


def interleaved(addresses: Sequence[str]) -> list[str]:
    """Return the addresses with the two families in turn, beginning with that of the first one."""
    is_six = ":" in addresses[0]
    same = [address for address in addresses if (":" in address) is is_six]
    other = [address for address in addresses if (":" in address) is not is_six]
    return [address for address in chain.from_iterable(zip_longest(same, other)) if address is not None]


async def _attempt(address: str, port: int) -> socket.socket:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV  # no look-up; it keeps the scope of a link-local address
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.settimeout(0)
        await asyncio.get_running_loop().sock_connect(made, where)
    except BaseException as error:
        made.close()
        if isinstance(error, OSError) and error.errno:  # asyncio says "Connect call failed", whatever the number
            raise OSError(error.errno, f"{os.strerror(error.errno)}: {address}, port {port}") from None
        raise
    return made


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()

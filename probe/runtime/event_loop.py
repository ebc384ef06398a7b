"""The event loop of the commands: uvloop's, with lookups of names that do not hold up each other.

An event loop looks names up in a small pool of threads (libuv: four in a process). A lookup that hangs keeps its thread
after its caller has given up, so a few dead names stop all others. Here each lookup has a thread of its own, which
holds up neither other names nor the process's end. The lookup itself stays getaddrinfo's: it knows /etc/hosts,
nsswitch.conf, and the search domains and ndots of a pod.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from probe.runtime.ending import cancel_on_signals, heeded_by_loop

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
LookUp = Callable[[str], Sequence[Address]]

# An answer serves all connections of these seconds; then the name is looked up again.
_FRESH_S = 3.0
# It serves longer, up to a minute, while a lookup takes longer than half a second or fails: the server may be well.
_STALE_S = 60.0
_PATIENCE_S = 0.5
# The limit for a name without an answer. Most callers give up earlier.
_DEADLINE_S = 10.0
# A lookup that takes longer hangs. Names with a hung last lookup share some of the threads, so that others find one.
_HANGS_S = 1.0
_MAX_HUNG = 64
_MAX_THREADS = 256
# Names come from discoveries, too, and go again.
_MAX_NAMES = 4096


@dataclass(slots=True)
class _Answer:
    """The addresses of a name, which its callers take in turn, as from a DNS server that rotates them."""

    addresses: Sequence[Address]
    at_s: float
    turn: int = 0

    def take(self) -> list[Address]:
        """Return the addresses, the preferred family's first. Each family begins with another one each time.

        Where the first one is dead, the others take its turns evenly.
        """
        preferred = self.addresses[0][0]
        turn, self.turn = self.turn, self.turn + 1
        return [
            *_rotated([found for found in self.addresses if found[0] == preferred], turn),
            *_rotated([found for found in self.addresses if found[0] != preferred], turn),
        ]


def _rotated(addresses: Sequence[Address], turn: int) -> list[Address]:
    """Return the addresses beginning with the one whose turn it is; each other one is the second equally often."""
    if not addresses:
        return []
    round_, first = divmod(turn, len(addresses))
    rest = [*addresses[first + 1 :], *addresses[:first]]
    second = round_ % len(rest) if rest else 0
    return [addresses[first], *rest[second:], *rest[:second]]


class NameLookups:
    """The lookups of one event loop, at most one for a name at a time, and their last answers."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        self._look_up = look_up or _system_lookup
        self._answers: dict[str, _Answer] = {}
        self._pending: dict[str, asyncio.Task[_Answer | OSError]] = {}
        self._began_s: dict[str, float] = {}
        self._running: set[str] = set()
        self._hung: set[str] = set()  # names with a current or last lookup that took too long
        self._changed = asyncio.Condition()

    async def addresses(self, host: str) -> list[Address]:
        """Return the addresses of a name for TCP, with port 0. Raises OSError."""
        now_s = asyncio.get_running_loop().time()
        known = self._answers.get(host)
        if known is not None and now_s - known.at_s < _FRESH_S:
            return known.take()
        if known is not None and now_s - known.at_s > _STALE_S:
            known = None
        pending = self._pending.get(host) or self._begin(host, now_s)
        limit_s = _DEADLINE_S if known is None else max(self._began_s[host] + _PATIENCE_S - now_s, 0)
        await asyncio.wait({pending}, timeout=limit_s)
        found = (
            pending.result()
            if pending.done()
            else socket.gaierror(socket.EAI_AGAIN, f"the lookup of {host} has not ended within {limit_s:g} s")
        )
        if isinstance(found, _Answer):
            return found.take()
        if known is not None and found.errno != socket.EAI_NONAME:
            return known.take()
        raise found

    def _begin(self, host: str, now_s: float) -> asyncio.Task[_Answer | OSError]:
        self._forget_old(now_s)
        self._began_s[host] = now_s
        pending = self._pending[host] = asyncio.create_task(self._ask(host), name=f"lookup of {host}")
        pending.add_done_callback(lambda _: self._pending.pop(host, None))
        return pending

    def _forget_old(self, now_s: float) -> None:
        if len(self._began_s) >= _MAX_NAMES:
            old = [
                host for host, at_s in self._began_s.items() if now_s - at_s > _STALE_S and host not in self._pending
            ]
            for host in old:
                del self._began_s[host]
                self._answers.pop(host, None)
                self._hung.discard(host)

    async def _ask(self, host: str) -> _Answer | OSError:
        """Look a name up once there is room. Return the error instead of raising it: callers may have given up."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(host))
            self._running.add(host)
        try:
            thread = self._thread(host)
            await asyncio.wait({thread}, timeout=_HANGS_S)
            if thread.done():
                self._hung.discard(host)
            else:
                self._hung.add(host)
            found = await thread
        finally:
            self._running.discard(host)
            async with self._changed:
                self._changed.notify_all()
        if isinstance(found, OSError):
            return found
        answer = self._answers[host] = _Answer(found, asyncio.get_running_loop().time())
        return answer

    def _has_room(self, host: str) -> bool:
        is_hung_full = host in self._hung and len(self._running & self._hung) >= _MAX_HUNG
        return len(self._running) < _MAX_THREADS and not is_hung_full

    def _thread(self, host: str) -> asyncio.Future[Sequence[Address] | OSError]:
        """Look a name up in a new thread, which the process's end does not wait for."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Address] | OSError] = loop.create_future()

        def answer(found: Sequence[Address] | OSError) -> None:
            if not future.done():
                future.set_result(found)

        def look_up() -> None:
            found: Sequence[Address] | OSError
            try:
                found = self._look_up(host) or socket.gaierror(socket.EAI_NONAME, "the name has no address")
            except OSError as error:
                found = error
            except ValueError as error:  # a label that is empty or too long
                found = socket.gaierror(socket.EAI_NONAME, str(error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answer, found)

        try:
            threading.Thread(target=look_up, name=f"lookup of {host}", daemon=True).start()
        except RuntimeError as error:  # no more threads
            answer(socket.gaierror(socket.EAI_AGAIN, str(error)))
        return future


def _system_lookup(host: str) -> Sequence[Address]:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)


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


def run(main: Coroutine[Any, Any, _T], loop_factory: Callable[[], asyncio.AbstractEventLoop] = EventLoop) -> _T:
    """Run a command's coroutine to its end, as asyncio.run. A signal cancels it: EndedBySignal."""

    async def cancelled_by_signals() -> _T:
        cancel_on_signals()
        return await main

    with heeded_by_loop(), asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(cancelled_by_signals())

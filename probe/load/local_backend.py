"""Where load workers run: by default as processes on this machine; ray_backend.py is the other place."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from probe.core.errors import LoadError
from probe.load.messages import connect


class WorkerProcess(Protocol):
    """A worker's process: what is needed to end it. An asyncio process is one."""

    def kill(self) -> None:
        """Kill it now. May raise ProcessLookupError where it has ended."""

    async def wait(self) -> int:
        """Wait until it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """A started worker: its process, and this end of the socket to it.

    `fix`: what to check if it does not answer. `node`: its Ray node, or None on this machine; another node has another
    clock.
    """

    process: WorkerProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    fix: str
    node: str | None = None


class Backend(Protocol):
    """Starts workers. Each method raises LoadError, one line with the fix, where that is not possible."""

    async def open(self, count: int) -> None:
        """Make room for `count` workers."""

    async def spawn(self, index: int) -> WorkerLink:
        """Start one of them."""
        ...

    async def close(self) -> None:
        """End what `open` began, at once. Every worker has been killed or asked to end before."""


class LocalBackend:
    """One process per worker on this machine. Implements Backend."""

    def __init__(self) -> None:
        self._ending: list[asyncio.Task[int]] = []

    async def open(self, count: int) -> None:
        """Prepare nothing."""

    async def spawn(self, index: int) -> WorkerLink:  # noqa: ARG002 - they are all alike
        """See Backend."""
        own_end, worker_end = socket.socketpair()
        process: asyncio.subprocess.Process | None = None
        try:
            with worker_end:
                process = await start_module("probe.load.worker", worker_end)
            reader, writer = await connect(own_end)
        except BaseException as error:  # cancelled too: the process must not outlive its pool
            own_end.close()
            if process is not None:
                with suppress(ProcessLookupError):
                    process.kill()
                self._ending.append(asyncio.create_task(process.wait()))
            if isinstance(error, OSError):
                raise LoadError(f"a load worker did not start: {error}") from None
            raise
        return WorkerLink(process, reader, writer, fix=f"check that `{sys.executable} -m kneewatch --version` works")

    async def close(self) -> None:
        """See Backend. Wait for the workers that were killed while they started."""
        await asyncio.gather(*self._ending)


async def start_module(
    module: str, *sockets: socket.socket, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Run a module in a new process that inherits these sockets, named by their numbers. Raises OSError."""
    numbers = [one.fileno() for one in sockets]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *map(str, numbers)),
        pass_fds=numbers,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the controller, which then stops its workers
    )

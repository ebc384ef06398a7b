"""Where load workers run: on this machine, as processes of ours, unless another place is given (ray.py)."""

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
    """What a worker runs in, as far as ending it goes. An asyncio process is one."""

    def kill(self) -> None:
        """Ends it for good, now. May raise ProcessLookupError where it has ended."""

    async def wait(self) -> int:
        """Until it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """A worker that was started: what it runs in, and our end of the socket to it.

    `mend`: what has to be so, should it not answer. `node`: where it is, if that is no process of this machine; its
    clock is then not ours.
    """

    process: WorkerProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    mend: str
    node: str | None = None


class Backend(Protocol):
    """Starts workers. Each method raises LoadError, one line with the mend, where that is not possible."""

    async def open(self, count: int) -> None:
        """Makes room for so many workers."""

    async def spawn(self, index: int) -> WorkerLink:
        """Starts one of them."""
        ...

    async def close(self) -> None:
        """Ends what `open` began, at once. Every worker has been given up, or told to end, before."""


class LocalBackend:
    """A process a worker. Implements Place."""

    def __init__(self) -> None:
        self._ending: list[asyncio.Task[int]] = []

    async def open(self, count: int) -> None:
        """Nothing has to be made ready."""

    async def spawn(self, index: int) -> WorkerLink:  # noqa: ARG002 - they are all alike
        """See Place."""
        ours, theirs = socket.socketpair()
        process: asyncio.subprocess.Process | None = None
        try:
            with theirs:
                process = await start_module("probe.load.worker", theirs)
            reader, writer = await connect(ours)
        except BaseException as error:
            ours.close()
            if process is not None:
                with suppress(ProcessLookupError):
                    process.kill()
                self._ending.append(asyncio.create_task(process.wait()))
            if isinstance(error, OSError):
                raise LoadError(f"a load worker did not start: {error}") from None
            raise
        return WorkerLink(process, reader, writer, mend=f"`{sys.executable} -m probe.load.worker` has to work")

    async def close(self) -> None:
        """See Place. Waits for those that were ended while they started."""
        await asyncio.gather(*self._ending)


async def start_module(
    module: str, *sockets: socket.socket, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Runs a module of ours in a process that has these sockets, named by their numbers. Raises OSError."""
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

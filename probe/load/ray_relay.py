"""The actor of a load worker on a Ray cluster: it starts the worker on its node and carries bytes.

The worker is `probe.load.worker`, as on one machine, and does not know of Ray. It ends with the actor, whatever ends
that: the kernel kills it, and its socket closes.

`python -m probe.load.ray_relay FD` runs the worker, bound to its parent in this way.
"""

import asyncio
import ctypes
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from probe import __version__

# Ray keeps arguments and results up to 100 KiB in the call itself; longer ones it stores, and perhaps on a disk.
CHUNK = 64 * 1024
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The node that the worker runs on, and its version."""

    node: str
    version: str


class WorkerRelay:
    """The actor; ray_driver.py turns the class into one."""

    async def start(self) -> WorkerStarted:
        """Start the worker."""
        own_end, worker_end = socket.socketpair()
        with worker_end:
            number = worker_end.fileno()
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - a fixed command, done in a millisecond
                [sys.executable, "-P", "-m", "probe.load.ray_relay", str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_connection(sock=own_end)
        node = importlib.import_module("ray").util.get_node_ip_address()
        return WorkerStarted(str(node), __version__)

    async def forward(self, data: bytes) -> None:
        """Send bytes to the worker."""
        self._writer.write(data)
        await self._writer.drain()

    async def hear(self) -> bytes:
        """Return the worker's next bytes as soon as there are any; none once it has ended."""
        try:
            return await self._reader.read(CHUNK)
        except OSError:
            return b""


def _end_with_the_parent() -> None:
    """Have the kernel kill this process when its parent dies, so that it ends even while it is stopped."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        sys.exit(1)


if __name__ == "__main__":
    _end_with_the_parent()
    runpy.run_module("probe.load.worker", run_name="__main__")

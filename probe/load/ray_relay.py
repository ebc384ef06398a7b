"""The far end of a load worker on a Ray cluster: an actor that starts the worker beside itself and carries bytes.

The worker is the same as everywhere, `probe.load.worker`; it does not know of Ray. It ends with the actor, whatever
ends that: the kernel sees to it, and its socket closes.

`python -m probe.load.ray_relay FD` is the worker, so bound to whoever started it.
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
    """Where the worker runs, and of which version."""

    node: str
    version: str


class WorkerRelay:
    """The actor. Ray makes it one (ray_driver.py)."""

    async def start(self) -> WorkerStarted:
        """Starts the worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - ours, and done in a millisecond
                [sys.executable, "-P", "-m", "probe.load.ray_relay", str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        node = importlib.import_module("ray").util.get_node_ip_address()
        return WorkerStarted(str(node), __version__)

    async def tell(self, data: bytes) -> None:
        """Bytes for the worker."""
        self._writer.write(data)
        await self._writer.drain()

    async def hear(self) -> bytes:
        """What the worker has to say, as soon as there is something; nothing once it has ended."""
        try:
            return await self._reader.read(CHUNK)
        except OSError:
            return b""


def _end_with_the_parent() -> None:
    """Has the kernel kill us when who started us dies, so that one that is stopped ends too."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that was said
        sys.exit(1)


if __name__ == "__main__":
    _end_with_the_parent()
    runpy.run_module("probe.load.worker", run_name="__main__")

"""Load workers on the nodes of a Ray cluster.

    controller --socket-- driver (ray_driver.py) --Ray-- actor (ray_relay.py) --socket-- worker

Controller and worker exchange the same messages as on one machine, and the same silence of either side ends the load.
Ray only carries bytes, the API key among them, and finds nodes with room.
"""

import asyncio
import importlib.util
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from probe.core.errors import LoadError
from probe.load.local_backend import WorkerLink, start_module
from probe.load.messages import Failed, connect, receive, send

_REACH_S = 5.0
# To import, join and leave Ray, in addition to the time to place the workers.
_JOIN_S = 45.0
_LEAVE_S = 2.0
# What a driver needs to find Python and its cluster. No other variables: they may hold proxies and secrets.
_VARIABLES = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "TMPDIR", "USER", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The controller asks its driver for workers on the cluster at this address, placed within `within_s`."""

    address: str
    within_s: float


@dataclass(frozen=True, slots=True)
class WorkersPlaced:
    """The workers are placed, one on each of these nodes."""

    nodes: tuple[str, ...]


class RayBackend:
    """One run's workers on a Ray cluster. Implements Backend."""

    def __init__(self, address: str, within_s: float) -> None:
        """Take `address` as Ray has it: HOST:PORT or "auto" on one of its nodes, ray://HOST:PORT elsewhere."""
        self._address = address
        self._within_s = within_s
        self._driver: asyncio.subprocess.Process | None = None
        self._control: asyncio.StreamWriter | None = None
        self._ends: dict[int, socket.socket] = {}
        self._nodes: tuple[str, ...] = ()

    async def open(self, count: int) -> None:
        """See Backend."""
        if importlib.util.find_spec("ray") is None:
            raise LoadError("load.ray: the package ray is not installed; pip install 'kneewatch[ray]'")
        await self._reach()
        pairs = [socket.socketpair() for _ in range(count + 1)]
        (own_end, _), *workers = pairs
        driver_ends = [there for _, there in pairs]
        self._ends = {i: here for i, (here, _) in enumerate(workers)}
        try:
            self._driver = await start_module("probe.load.ray_driver", *driver_ends, env=_environment())
            reader, self._control = await connect(own_end)
        except OSError as error:
            own_end.close()
            raise LoadError(f"load.ray: Ray's driver did not start: {error}") from None
        finally:
            for there in driver_ends:
                there.close()
        send(self._control, PlacementRequest(self._address, self._within_s))
        self._nodes = await self._placed(reader)

    async def _reach(self) -> None:
        """Check that something listens there: Ray itself would retry for a minute. Raises LoadError."""
        if ":" not in self._address:  # "auto"
            return
        parts = urlsplit(self._address if "://" in self._address else f"//{self._address}")
        try:
            async with asyncio.timeout(_REACH_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except (OSError, TimeoutError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise LoadError(
                f"load.ray: no Ray cluster at {self._address} ({why}); fix load.ray.address, or start the cluster"
            ) from None
        writer.close()

    async def _placed(self, reader: asyncio.StreamReader) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(self._within_s + _JOIN_S):
                answer = await receive(reader)
        except TimeoutError:
            raise LoadError(
                f"load.ray: the Ray cluster at {self._address} did not accept the driver; inspect it with `ray status`"
            ) from None
        except EOFError:
            raise LoadError(
                f"load.ray: Ray ended its driver while it joined {self._address}; inspect the cluster with `ray status`"
            ) from None
        if isinstance(answer, WorkersPlaced):
            return answer.nodes
        raise LoadError(f"load.ray: {answer.why}" if isinstance(answer, Failed) else "load.ray: no answer")

    async def spawn(self, index: int) -> WorkerLink:
        """See Backend."""
        reader, writer = await connect(self._ends.pop(index))
        node = self._nodes[index]
        fix = f"check that `python -m kneewatch --version` works on the Ray node {node}"
        return WorkerLink(_DriverEnded(writer), reader, writer, fix, node)

    async def close(self) -> None:
        """See Backend. The driver ends by itself when its socket closes."""
        for end in self._ends.values():
            end.close()
        if self._control is not None:
            self._control.close()
        if self._driver is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._driver.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._driver.kill()
            await self._driver.wait()


@dataclass(frozen=True, slots=True)
class _DriverEnded:
    """A worker on another node: the driver ends it when the socket to it closes. Implements WorkerProcess."""

    writer: asyncio.StreamWriter

    def kill(self) -> None:
        self.writer.transport.abort()

    async def wait(self) -> int:
        """Return at once: RayBackend.close waits for the driver, and with it for all workers."""
        return 0


def _environment() -> dict[str, str]:
    """Return the driver's environment: Ray's own variables and the few that any program needs."""
    kept = {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith("RAY_")}
    kept.pop("RAY_ADDRESS", None)  # it joins only the configured address
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "GRPC_ENABLE_FORK_SUPPORT": "0"}

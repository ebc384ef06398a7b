"""Ray's driver, in a process of its own for as long as a run lasts: `python -m probe.load.ray_driver FD...`.

In: a socket to the controller, and one for each worker. Places as many actors on the cluster (ray_relay.py), and
relays the messages between each and its socket. Ends with the controller, and Ray ends the actors with it.

A process of its own, since Ray ends the process that it is in when its cluster goes, takes its signals,
and needs a hundred megabytes. No other module imports Ray.
"""

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from kneewatch.ray_relay import WorkerRelay
from probe import __version__
from probe.core.text import one_line
from probe.load.messages import Failed, receive, send
from probe.load.ray_backend import PlacementRequest, WorkersPlaced
from probe.load.ray_relay import CHUNK, WorkerStarted

# Leaving a cluster is a matter of tenths of a second.
_LEAVE_S = 1.5
_LONGEST_REASON = 300


class Actor(Protocol):
    """A handle to the WorkerRelay on a node. Any call may raise any error where it has died."""

    def start(self) -> Awaitable[WorkerStarted]: ...

    def forward(self, data: bytes) -> Awaitable[None]: ...

    def hear(self) -> Awaitable[bytes]: ...

    def kill(self) -> None: ...


class RayApi(Protocol):
    """The calls to Ray that are needed here. Each may raise any error."""

    def join(self, address: str) -> None:
        """Join the cluster. Blocks until that is done."""

    def actor(self) -> Actor:
        """Create an actor, to be placed on a node that has a free CPU."""
        ...

    def leave(self) -> None:
        """Leave the cluster. Blocks until that is done."""


class PlacementError(Exception):
    """The workers cannot be placed; the message has the reason and the fix, on one line."""


class RealRay:
    """RayApi by the ray package."""

    def __init__(self) -> None:
        self._ray: Any = importlib.import_module("ray")

    def join(self, address: str) -> None:
        """See Cluster."""
        self._ray.init(address, log_to_driver=False, configure_logging=False)

    def actor(self) -> Actor:
        """See Cluster."""
        # Spread over the nodes that have room. An actor that died is not restarted: its step is lost.
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        return _RayActor(self._ray, self._ray.remote(WorkerRelay).options(**options).remote())

    def leave(self) -> None:
        """See Cluster."""
        self._ray.shutdown()


class _RayActor:
    """Calls of an actor's methods, as awaitables."""

    def __init__(self, ray: Any, handle: Any) -> None:  # noqa: ANN401 - Ray is imported at run time
        self._ray, self._handle = ray, handle

    def start(self) -> Awaitable[WorkerStarted]:
        started: Awaitable[WorkerStarted] = self._handle.start.remote()
        return started

    def forward(self, data: bytes) -> Awaitable[None]:
        sent: Awaitable[None] = self._handle.forward.remote(data)
        return sent

    def hear(self) -> Awaitable[bytes]:
        heard: Awaitable[bytes] = self._handle.hear.remote()
        return heard

    def kill(self) -> None:
        self._ray.kill(self._handle)


async def place(cluster: RayApi, asked: PlacementRequest, actors: list[Actor], count: int) -> WorkersPlaced:
    """Fill `actors` with the number asked for, each started. Raises PlacementError."""
    try:
        await asyncio.to_thread(cluster.join, asked.address)
    except Exception as error:  # noqa: BLE001 - Ray has many, and the controller has to know
        fix = "see its head's log ray_client_server.err"
        if not asked.address.startswith("ray://"):
            fix = "on a machine outside the cluster, give ray://HEAD:10001 as the address"
        raise PlacementError(f"the Ray cluster at {asked.address} cannot be joined, {_summary(error)}; {fix}") from None
    actors += [cluster.actor() for _ in range(count)]
    starting = [asyncio.ensure_future(_awaited(actor.start)) for actor in actors]
    done, missing = await asyncio.wait(starting, timeout=asked.within_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in missing:
        task.cancel()
    failed = next((why for task in done if (why := task.exception()) is not None), None)
    if failed is not None:
        raise PlacementError(
            f"a load worker did not start on the Ray cluster at {asked.address}, {_summary(failed)};"
            f" kneewatch[ray] {__version__} has to be installed on its nodes"
        )
    if missing:
        raise PlacementError(
            f"the Ray cluster at {asked.address} had a free CPU for {len(done)} of {count} load workers within"
            f" {asked.within_s:g} s; give it more, or ask for fewer with load.ray.workers"
        )
    started = [task.result() for task in starting]
    for one in started:
        if one.version != __version__:
            raise PlacementError(
                f"the Ray node {one.node} has Kneewatch {one.version} and this is {__version__}; install"
                " the same on both"
            )
    return WorkersPlaced(tuple(one.node for one in started))


async def carry(end: socket.socket, actor: Actor) -> None:
    """Carry bytes both ways until one side has gone, then ends the other."""
    reader, writer = await asyncio.open_connection(sock=end)
    ways = [asyncio.create_task(_out(reader, actor)), asyncio.create_task(_back(actor, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in ways:
            direction.cancel()
        with suppress(Exception):
            actor.kill()
        # The worker's last messages have to arrive, even if they are not read any more.
        writer.close()
        await asyncio.gather(*ways, return_exceptions=True)


async def _out(reader: asyncio.StreamReader, actor: Actor) -> None:
    """Send one piece after the other: Ray does not keep calls of such an actor in order."""
    while data := await reader.read(CHUNK):
        await actor.forward(data)


async def _back(actor: Actor, writer: asyncio.StreamWriter) -> None:
    while data := await actor.hear():
        writer.write(data)
        await writer.drain()


async def _awaited(call: Callable[[], Awaitable[WorkerStarted]]) -> WorkerStarted:
    return await call()


def _summary(error: BaseException) -> str:
    """Return the first meaningful line of an error of Ray, which may have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": "), _LONGEST_REASON)


async def drive(cluster: RayApi, control: socket.socket, ends: Sequence[socket.socket]) -> None:
    """Run until the controller has gone, or no worker is left."""
    reader, writer = await asyncio.open_connection(sock=control)
    asked = await receive(reader)
    if not isinstance(asked, PlacementRequest):
        return
    gone = asyncio.create_task(reader.read())
    actors: list[Actor] = []
    try:
        working = asyncio.create_task(_place_and_carry(cluster, asked, writer, actors, ends))
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    finally:
        gone.cancel()
        for actor in actors:
            with suppress(Exception):
                actor.kill()
        with suppress(Exception):
            async with asyncio.timeout(_LEAVE_S):
                await asyncio.to_thread(cluster.leave)
        writer.close()


async def _place_and_carry(
    cluster: RayApi,
    asked: PlacementRequest,
    writer: asyncio.StreamWriter,
    actors: list[Actor],
    ends: Sequence[socket.socket],
) -> None:
    placed = None
    try:
        placed = await place(cluster, asked, actors, len(ends))
    except PlacementError as error:
        send(writer, Failed(str(error)))
        await writer.drain()
        return
    finally:
        if placed is None:
            for end in ends:
                end.close()
    send(writer, placed)
    await asyncio.gather(*(carry(end, actor) for end, actor in zip(ends, actors, strict=True)))


async def _main(numbers: Sequence[int]) -> None:
    control, *ends = (socket.socket(fileno=number) for number in numbers)
    try:
        with suppress(EOFError):
            await drive(RealRay(), control, ends)
    finally:
        os._exit(0)  # a thread of Ray's may hang, and would be waited for


if __name__ == "__main__":
    asyncio.run(_main([int(number) for number in sys.argv[1:]]))

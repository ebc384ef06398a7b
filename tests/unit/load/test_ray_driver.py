"""What stands between a controller and its workers on a cluster: bytes go through whole, and either end ends the other.

The cluster is one made for the tests; a real Ray is in tests/integration/test_ray.py.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from probe import __version__
from probe.load import ray_driver
from probe.load.messages import Failed, Ready, receive, send
from probe.load.ray_backend import PlacementRequest, WorkersPlaced
from probe.load.ray_driver import PlacementError, carry, drive, place
from probe.load.ray_relay import CHUNK, WorkerRelay, WorkerStarted

WANTED = PlacementRequest("head:6379", 0.2)


@dataclass
class MadeActor:
    """Says what it is told, in the same pieces."""

    node: str = "10.0.0.1"
    version: str = __version__
    has_room: bool = True
    refuses: Exception | None = None
    reported: list[bytes] = field(default_factory=list)
    says: "asyncio.Queue[bytes | Exception]" = field(default_factory=asyncio.Queue)
    killed: bool = False
    telling: int = 0

    async def start(self) -> WorkerStarted:
        if self.refuses is not None:
            raise self.refuses
        if not self.has_room:
            await asyncio.sleep(60)
        return WorkerStarted(self.node, self.version)

    async def forward(self, data: bytes) -> None:
        self.telling += 1
        assert self.telling == 1, "two calls at a time may arrive in any order"
        await asyncio.sleep(0)
        self.reported.append(data)
        await self.says.put(data)
        self.telling -= 1

    async def hear(self) -> bytes:
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return said

    def kill(self) -> None:
        self.killed = True


@dataclass
class MadeCluster:
    """Its actors are those given."""

    actors: list[MadeActor]
    refuses: Exception | None = None
    left: bool = False
    made: int = 0

    def join(self, address: str) -> None:
        assert address == WANTED.address
        if self.refuses is not None:
            raise self.refuses

    def actor(self) -> MadeActor:
        self.made += 1
        return self.actors[self.made - 1]

    def leave(self) -> None:
        self.left = True


async def _carried(
    actor: MadeActor, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """Talk to the actor over a socket, and assert that both sides have ended."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    carrying = asyncio.create_task(carry(theirs, actor))
    async with asyncio.timeout(5):
        await talk(reader, writer)
        writer.close()
        await carrying
    assert actor.killed


def test_bytes_come_back_whole_and_in_order_in_pieces_that_ray_keeps_in_the_call() -> None:
    sent = bytes(range(256)) * 4096
    actor = MadeActor()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent

    asyncio.run(_carried(actor, talk))
    assert b"".join(actor.reported) == sent
    assert max(map(len, actor.reported)) <= CHUNK < 100 * 1024


@pytest.mark.parametrize("end", [b"", ConnectionError("the node has died")])
def test_the_controller_sees_the_end_of_a_worker_after_its_last_words(end: bytes | Exception) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001 - it listens
        await actor.says.put(b"last words")
        await actor.says.put(end)
        assert await reader.read() == b"last words"

    actor = MadeActor()
    asyncio.run(_carried(actor, talk))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (MadeCluster([], refuses=ConnectionError("nobody\nthere")), r"cannot be joined, ConnectionError: nobody; on a"),
        (
            MadeCluster([MadeActor(), MadeActor(refuses=ModuleNotFoundError("No module named 'probe'"))]),
            r"ModuleNotFoundError: No module named 'probe'; kneewatch\[ray\] .* has to be installed on its nodes",
        ),
        (
            MadeCluster([MadeActor(), MadeActor(has_room=False)]),
            r"a free CPU for 1 of 2 load workers within 0.2 s; give it more, or ask for fewer with load.ray.workers",
        ),
        (
            MadeCluster([MadeActor(), MadeActor("10.0.0.7", version="0.0.1")]),
            r"the Ray node 10.0.0.7 has Kneewatch 0.0.1 and this is .*; install the same on both",
        ),
    ],
)
def test_workers_that_cannot_be_placed_are_one_line_with_the_mend(cluster: MadeCluster, said: str) -> None:
    with pytest.raises(PlacementError, match=said) as caught:
        asyncio.run(place(cluster, WANTED, [], 2))
    assert "\n" not in str(caught.value)


def test_an_address_that_is_already_given_is_not_suggested() -> None:
    cluster = MadeCluster([], refuses=ConnectionAbortedError("no"))
    cluster.join = lambda address: (_ for _ in ()).throw(ConnectionAbortedError(address))  # type: ignore[method-assign]
    with pytest.raises(PlacementError, match=r"see its head's log ray_client_server.err$"):
        asyncio.run(place(cluster, PlacementRequest("ray://head:10001", 1.0), [], 2))


async def _driven(
    cluster: MadeCluster, count: int
) -> tuple[asyncio.Task[None], asyncio.StreamReader, asyncio.StreamWriter, list[socket.socket]]:
    """Return a driver and the controller's ends of its sockets."""
    (ours, theirs), *pairs = (socket.socketpair() for _ in range(count + 1))
    drives = drive(cluster, theirs, [there for _, there in pairs])
    reader, writer = await asyncio.open_connection(sock=ours)
    send(writer, WANTED)
    return asyncio.create_task(drives), reader, writer, [here for here, _ in pairs]


def test_a_driver_places_carries_and_ends_with_its_controller() -> None:
    async def main() -> None:
        cluster = MadeCluster([MadeActor("n1"), MadeActor("n2")])
        driving, reader, writer, ends = await _driven(cluster, 2)
        async with asyncio.timeout(5):
            assert await receive(reader) == WorkersPlaced(("n1", "n2"))
            links = [await asyncio.open_connection(sock=end) for end in ends]
            for worker_reader, worker_writer in links:
                send(worker_writer, Ready())
                assert await receive(worker_reader) == Ready()
            assert not cluster.left
            writer.close()
            await driving
            assert [await worker_reader.read() for worker_reader, _ in links] == [b"", b""]
        assert cluster.left
        assert all(actor.killed for actor in cluster.actors)
        for _, worker_writer in links:
            worker_writer.close()

    asyncio.run(main())


def test_a_worker_that_is_given_up_ends_alone() -> None:
    async def main() -> None:
        cluster = MadeCluster([MadeActor("n1"), MadeActor("n2")])
        driving, reader, writer, ends = await _driven(cluster, 2)
        async with asyncio.timeout(5):
            await receive(reader)
            ends[0].close()
            while not cluster.actors[0].killed:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            assert not cluster.actors[1].killed
            ends[1].close()
            await driving
        writer.close()

    asyncio.run(main())


def test_a_driver_says_why_it_cannot_and_ends() -> None:
    async def main() -> None:
        cluster = MadeCluster([], refuses=RuntimeError("Version mismatch: 2.40 there"))
        driving, reader, writer, ends = await _driven(cluster, 1)
        async with asyncio.timeout(5):
            answer = await receive(reader)
            await driving
        assert isinstance(answer, Failed)
        assert "Version mismatch: 2.40 there" in answer.why
        for each in (writer, *ends):
            each.close()

    asyncio.run(main())


def test_a_controller_that_goes_while_workers_are_placed_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "_LEAVE_S", 0.2)

    async def main() -> None:
        cluster = MadeCluster([MadeActor(has_room=False)])
        driving, _, writer, ends = await _driven(cluster, 1)
        while not cluster.made:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(5):
            await driving
        assert (cluster.actors[0].killed, cluster.left) == (True, True)
        ends[0].close()

    asyncio.run(main())


@pytest.mark.slow
def test_the_far_end_starts_a_worker_and_hears_its_end() -> None:
    """The actor's class as it is, without Ray around it."""

    async def main() -> None:
        relay = WorkerRelay()
        started = await relay.start()
        assert started.version == __version__
        process = relay._process
        async with asyncio.timeout(15):
            hearing = asyncio.create_task(relay.hear())
            await asyncio.sleep(0.1)
            assert not hearing.done(), "it waits until there is something to say"
            await relay.forward(b"\0\0\0\0\0\0\0\x02N.")  # None: no message of ours, at which a worker ends
            assert await hearing == b""
            assert await asyncio.to_thread(process.wait, 10) == 0
        relay._writer.close()

    asyncio.run(main())

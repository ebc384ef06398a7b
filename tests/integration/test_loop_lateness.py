"""The bound of each stamp: bytes did not come before `since`, however busy the loop was when they came.

The peer is a process of its own, which notes the time after each write: by then the bytes are in our socket, and the
clock is the same one. So `since` may be later than what it noted only by time in which the system let our process
wait for a processor, which the bound leaves out; a witness measures that.
"""

import asyncio
import multiprocessing
import socket
import statistics
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

import httpx
import pytest
from both_loops import Run

from probe.client.response_buffer import BodyLimits, ResponseBuffer
from probe.client.transport import Transport

pytestmark = pytest.mark.alone

MS = 1_000_000
COUNT, GAP_S = 25, 0.004
ALLOWANCE_NS = 2 * MS
# One write: the time before it, and the time after the write before it.
WRITE = struct.Struct("<qq")


def _serve(port: Pipe) -> None:
    """Answer each connection with `COUNT` writes, in a body that ends with it; stop at an empty request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            if not connection.recv(2**16):
                return
            threading.Thread(target=_write, args=(connection,), daemon=True).start()


def _write(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        after = 0
        for _ in range(COUNT):
            time.sleep(GAP_S)
            connection.sendall(WRITE.pack(time.perf_counter_ns(), after))
            after = time.perf_counter_ns()


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(its,), daemon=True)
    process.start()
    port = ours.recv()
    yield f"http://127.0.0.1:{port}"
    socket.create_connection(("127.0.0.1", port)).close()
    process.join(5)
    assert process.exitcode == 0


@dataclass(frozen=True)
class Arrival:
    """One write: when it had arrived for sure, when it was noticed, the bound, and for how long of the time between
    the first two the process waited for a processor.
    """

    noted_ns: int
    at_ns: int
    since_ns: int
    waited_ns: int

    @property
    def late_ns(self) -> int:
        return self.at_ns - self.noted_ns

    @property
    def bound_ns(self) -> int:
        return self.at_ns - self.since_ns

    @property
    def wrong_ns(self) -> int:
        """By how much it came before the bound, which the wait for a processor does not account for."""
        return self.since_ns - self.noted_ns - self.waited_ns


@dataclass(frozen=True)
class Witness:
    """Knows how much of the wall time this thread did not compute."""

    at_ns: list[int] = field(default_factory=list)
    not_computed_ns: list[int] = field(default_factory=list)

    def look(self) -> None:
        now_ns = time.perf_counter_ns()
        self.at_ns.append(now_ns)
        self.not_computed_ns.append(now_ns - time.thread_time_ns())

    def between(self, start_ns: int, end_ns: int) -> int:
        """Return the time slept between two moments, of a sleep that includes `start_ns` only what follows it."""
        first, last = bisect_left(self.at_ns, start_ns), bisect_left(self.at_ns, end_ns)
        if first >= len(self.at_ns):
            return 0
        stop = self.not_computed_ns[first] - self.not_computed_ns[max(first - 1, 0)]
        rest = min(stop, self.at_ns[first] - start_ns)
        return self.not_computed_ns[min(last, len(self.at_ns) - 1)] - self.not_computed_ns[first] + rest


@dataclass(slots=True)
class Watched(ResponseBuffer):
    """Looks at each read too."""

    witness: Witness = field(default_factory=Witness)

    def add(self, at_ns: int, since_ns: int, data: bytes) -> bool:
        self.witness.look()
        return ResponseBuffer.add(self, at_ns, since_ns, data)


Disturb = Callable[[Witness], Coroutine[Any, Any, None]]


async def arrivals(peer: str, disturb: Disturb) -> list[Arrival]:
    """Receive some answers at once while `disturb` runs."""
    witness = Witness()
    answers = [Watched(BodyLimits(2**20, 2**20), witness=witness) for _ in range(4)]
    disturber = asyncio.create_task(disturb(witness))
    async with Transport(tls=httpx.create_ssl_context) as through:
        asked = [httpx.Request("GET", peer, extensions={"received": answer}) for answer in answers]
        await asyncio.gather(*(through.handle_async_request(request) for request in asked))
    disturber.cancel()
    await asyncio.gather(disturber, return_exceptions=True)
    found: list[Arrival] = []
    for answer in answers:
        stamps = [(at, since) for at, since, data in answer.reads for _ in range(len(data) // WRITE.size)]
        after = [after for _, after in WRITE.iter_unpack(answer.body)][1:]
        assert len(stamps) == COUNT
        for noted, (at, since) in zip(after, stamps, strict=False):
            found.append(Arrival(noted, at, since, witness.between(noted, at)))
    assert all(arrival.bound_ns >= 0 for arrival in found)
    return found


def compute(seconds: float, witness: Witness) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        witness.look()


async def idle(_: Witness) -> None:
    await asyncio.sleep(60)


async def blocks(witness: Witness) -> None:
    """Block the loop in long turns, with sleep between them."""
    while True:
        await asyncio.sleep(0.004)
        compute(0.03, witness)


async def never_sleeps(witness: Witness) -> None:
    """Run many short tasks that are always ready: their computing comes before the bytes of their turn."""

    async def one() -> None:
        while True:
            compute(0.002, witness)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(one())


async def computes_in_callbacks(witness: Witness) -> None:
    """Compute in a timer's turn: the loop wakes for another reason, and bytes arrive while it computes."""
    loop = asyncio.get_running_loop()
    while True:
        loop.call_later(0.01, compute, 0.02, witness)
        await asyncio.sleep(0.032)


def undisturbed(found: list[Arrival]) -> list[Arrival]:
    """Return the arrivals during which this process had the processor; waiting for it may look like sleep."""
    ours = [arrival for arrival in found if arrival.waited_ns < MS]
    if len(ours) < len(found) / 4:
        pytest.skip("this machine is too busy to tell")
    return ours


@pytest.mark.parametrize("disturb", [idle, blocks, never_sleeps, computes_in_callbacks])
def test_no_bytes_came_before_the_bound(run: Run, peer: str, disturb: Disturb) -> None:
    found = undisturbed(run(arrivals(peer, disturb)))
    wrong = sorted(arrival.wrong_ns for arrival in found)
    assert wrong[-1] < ALLOWANCE_NS, [round(by / MS, 1) for by in wrong[-9:]]


@pytest.mark.parametrize("disturb", [blocks, never_sleeps, computes_in_callbacks])
@pytest.mark.fault(
    "ST7",
    "A stamp taken late by the event loop",
    area="Starvation",
    users_see="the record says so: its error bound grows",
    stays="-",
)
def test_a_stamp_that_was_late_says_so(run: Run, peer: str, disturb: Disturb) -> None:
    """Or the bound would be of no use to tell a slow client from a slow server."""
    late = [arrival for arrival in undisturbed(run(arrivals(peer, disturb))) if arrival.late_ns > 5 * MS]
    assert all(arrival.bound_ns > arrival.late_ns - ALLOWANCE_NS for arrival in late)


def test_on_an_idle_loop_the_bound_is_close(run: Run, peer: str) -> None:
    assert statistics.median(arrival.bound_ns for arrival in run(arrivals(peer, idle))) < MS


def test_the_bound_is_no_further_back_than_some_turns_of_a_busy_loop(run: Run, peer: str) -> None:
    """Each turn takes 16 ms of computing."""
    found = run(arrivals(peer, never_sleeps))
    assert statistics.median(arrival.bound_ns for arrival in found) < 200 * MS


def test_time_in_which_the_process_did_not_compute_is_not_in_the_bound(run: Run, peer: str) -> None:
    """As documented: whoever waits for a processor, or sleeps while the loop is his, is found by the lag watcher."""

    async def sleeps(_: Witness) -> None:
        while True:
            await asyncio.sleep(0.004)
            time.sleep(0.03)  # noqa: ASYNC251 - the point of the test

    found = run(arrivals(peer, sleeps))
    unseen = [arrival.late_ns for arrival in found if arrival.since_ns > arrival.noted_ns + 5 * MS]
    assert max(unseen) > 10 * MS

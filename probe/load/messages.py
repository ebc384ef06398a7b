"""The messages between the controller and a worker, over a socket that only those two have.

Each message is a pickle behind its length. Records hold their tokens as arrays, so a step of a million tokens is a
few megabytes.
"""

import asyncio
import pickle
import socket
import struct
from array import array
from dataclasses import dataclass

from probe.client.endpoint import Endpoint
from probe.client.secrets import Secrets
from probe.core.request import RequestRecord
from probe.core.step import StepPlan
from probe.core.time_limits import TimeLimits
from probe.core.trace import Trace
from probe.core.workload import Workload


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's share of a step: the `index`-th of `count`."""

    index: int = 0
    count: int = 1

    def part_of(self, whole: int) -> int:
        """Return this worker's share of a number."""
        return whole // self.count + (self.index < whole % self.count)


WHOLE = WorkerShare()


# How often the controller sends a heartbeat, and how long a worker waits for one before it stops all load. Two seconds
# after the controller was lost nothing is sent any more, whatever happened to it.
HEARTBEAT_S = 0.25
CONTROLLER_LOST_S = 1.7
# How often a worker reports, and (WORKER_LOST_S) after how much silence it is given up.
REPORT_S = 0.1
# Packing a record takes some 20 microseconds, in which no stamp is taken.
RECORDS_A_REPORT = 16
WORKER_LOST_S = 2.5
_LENGTH = struct.Struct("!Q")


# Controller to worker.


@dataclass(frozen=True, slots=True)
class Setup:
    """Configure a worker, once. `index` of `count`: its share of the prompts (workload.py).

    Workers that share prompts have the same `seed` and `salt`.

    `trace`: its requests are sent instead of drawn ones.
    """

    endpoint: Endpoint
    model: str
    aliases: frozenset[str]
    workload: Workload
    limits: TimeLimits | float
    seed: int
    salt: str
    index: int
    count: int
    secrets: Secrets
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class RunStep:
    """Prepare a share of this step, answer Ready, and wait for Start."""

    plan: StepPlan
    share: WorkerShare
    seed: int


@dataclass(frozen=True, slots=True)
class Start:
    """Every worker is ready: begin the step at `start_ns` of the worker's clock, which is its machine's."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The controller is alive; `secrets` are the current ones.

    `sent_ns`: when this was sent, by the worker's clock; None while the controller does not know that clock.
    """

    secrets: Secrets
    sent_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel everything that is in flight, now."""


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """Ask for the worker's time. `asked_ns`: the controller's time."""

    asked_ns: int


# Worker to controller.


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is ready: for steps, or to start the one it was given."""


@dataclass(frozen=True, slots=True)
class Report:
    """The requests that have ended since the last report, and those in flight (packed: sent_request.py).

    `sending`: how many of the latter are with the server, and not only unparsed. Without `in_flight` more records
    follow at once. `at_ns`: the time of this report.
    """

    records: tuple[RequestRecord, ...]
    in_flight: "array[int] | None"
    sending: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The worker's share of a step has ended; every record has been reported."""

    window_ns: tuple[int, int]
    loop_lag_s: tuple[float, ...]
    is_cut_short: bool
    is_capped: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class ClockReply:
    """The worker's time `at_ns`, in answer to a ClockRequest of `asked_ns`."""

    asked_ns: int
    at_ns: int


Command = Setup | RunStep | Start | Heartbeat | Stop | ClockRequest


class _Reader(asyncio.StreamReader):
    """A reader that still returns the last messages of a side that has gone, also after a failed write to it."""

    def set_exception(self, exc: Exception) -> None:  # noqa: ARG002 - after any error nothing follows
        self.feed_eof()


async def connect(end: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open this end of a socket, to `receive` from and to `send` to. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = _Reader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=end)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def receive(reader: asyncio.StreamReader, silence_s: float | None = None) -> object:
    """Return the next message. Raises EOFError where the other side has gone.

    Raises TimeoutError where nothing arrives for `silence_s`: a busy worker takes seconds to send a long message.
    """
    try:
        (length,) = _LENGTH.unpack(await _exactly(reader, _LENGTH.size, silence_s))
        return pickle.loads(await _exactly(reader, length, silence_s))  # noqa: S301 - from a process that Kneewatch started, see above
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise EOFError from None


async def _exactly(reader: asyncio.StreamReader, length: int, silence_s: float | None) -> bytes:
    """Return that many bytes. Raises EOFError, and TimeoutError as `receive` does."""
    data = bytearray()
    while len(data) < length:
        async with asyncio.timeout(silence_s):
            piece = await reader.read(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def send(writer: asyncio.StreamWriter, message: object) -> None:
    """Send a message, one of the above or a backend's own; `receive` reports a side that has gone."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if not writer.is_closing():
        writer.write(_LENGTH.pack(len(data)) + data)

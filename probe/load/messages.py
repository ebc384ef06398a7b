"""What controller and worker say to each other, over a socket that only the two of them have.

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
from probe.core.request import RequestRecord
from probe.core.step import StepPlan
from probe.core.workload import Workload
from probe.load.step_executor import WorkerShare

# The controller is heard of so often; a worker that has not heard of it for the longer time stops all load. Two
# seconds after the controller was lost nothing is sent any more, whatever happened to it.
HEARTBEAT_S = 0.25
CONTROLLER_LOST_S = 1.7
# A worker reports so often; one that has been silent for the longer time is given up.
REPORT_S = 0.1
# Packing a record takes some 20 microseconds, in which no stamp is taken.
RECORDS_A_REPORT = 16
WORKER_LOST_S = 2.5
_LENGTH = struct.Struct("!Q")


# Controller to worker.


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know once. `index` of `count`: its share of the prompts."""

    endpoint: Endpoint
    model: str
    workload: Workload
    timeout_s: float
    seed: int
    index: int
    count: int
    key: str | None


@dataclass(frozen=True, slots=True)
class RunStep:
    """Make a share of this step ready, say so (Standing), and wait for Begin."""

    plan: StepPlan
    shard: WorkerShare
    seed: int


@dataclass(frozen=True, slots=True)
class Start:
    """Every worker is ready: the step begins at `start_ns` of the worker's clock, which is that of its machine."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The controller is there; `key` is the API key as it is now.

    `sent_ns`: when it said so, by the worker's clock; None while the controller does not know that clock.
    """

    key: str | None
    sent_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel everything that is in flight, now."""


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """What does your clock say? `asked_ns` is what ours says."""

    asked_ns: int


# Worker to controller.


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is ready: for steps, or to begin the one it was given."""


@dataclass(frozen=True, slots=True)
class Report:
    """Requests that have ended since the last report, and those that have not, as Step.in_flight_figures.

    `sending`: how many of the latter are with the server, and not only yet to be read. Without `in_flight` more
    records follow at once. `at_ns`: when all that was so.
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
    cut_short: bool
    capped: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class ClockReply:
    """The worker's clock says `at_ns`, as it was asked for at `asked_ns` of the controller's."""

    asked_ns: int
    at_ns: int


Command = Setup | RunStep | Start | Heartbeat | Stop | ClockRequest


class _Reader(asyncio.StreamReader):
    """Of a side that has gone it gives what that said last, also where we have failed to tell it something since."""

    def set_exception(self, exc: Exception) -> None:  # noqa: ARG002 - whatever it is, that was all
        self.feed_eof()


async def connect(end: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Our end of a socket, to `receive` from and to `send` to. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = _Reader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=end)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def receive(reader: asyncio.StreamReader) -> object:
    """The next message. Raises EOFError where the other side has gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - from our own process, see above
    except (asyncio.IncompleteReadError, OSError):
        raise EOFError from None


def send(writer: asyncio.StreamWriter, message: object) -> None:
    """Hands a message over, one of the above or a place's own; a side that has gone is noticed by `receive`."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if not writer.is_closing():
        writer.write(_LENGTH.pack(len(data)) + data)

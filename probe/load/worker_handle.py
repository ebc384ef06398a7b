"""A load worker as its controller sees it: what it was sent, what it reported, how its clock is offset."""

from array import array
from dataclasses import dataclass, field

from probe.client.secrets import Secrets
from probe.core.clock import Clock
from probe.core.errors import LoadError
from probe.core.request import RequestRecord
from probe.load.clock_sync import (
    SAME_CLOCK,
    ClockOffset,
    ClockRound,
    offset_of,
    to_controller_time,
    to_worker_time,
)
from probe.load.local_backend import WorkerLink, WorkerProcess
from probe.load.messages import (
    WORKER_LOST_S,
    ClockReply,
    ClockRequest,
    Command,
    Heartbeat,
    Report,
    receive,
    send,
)

# The most that a worker's clock offset may be wrong by: a lost controller is noticed that much later.
_CLOCK_ERROR_S = 0.25
# How often a worker with another clock is asked for the time: the quickest answer counts.
_ROUNDS = 8


@dataclass(slots=True)
class WorkerHandle:
    """A worker: the link to it, its clock, and its last report."""

    link: WorkerLink
    clock: ClockOffset | None  # None: not known yet
    records: list[RequestRecord] = field(default_factory=list)
    in_flight: "array[int]" = field(default_factory=lambda: array("q"))
    sending: int = 0
    reported_ns: int | None = None  # the time of that report; None when it has no share of a step
    is_ready: bool = False

    @property
    def process(self) -> WorkerProcess:
        return self.link.process

    def send(self, message: Command) -> None:
        """Send it a message, in its own clock's times."""
        send(self.link.writer, to_worker_time(message, self.clock or SAME_CLOCK))

    async def receive(self) -> object:
        """Return its next message in controller time. Raises EOFError if it has gone, TimeoutError if it is silent."""
        message = await receive(self.link.reader, WORKER_LOST_S)
        return to_controller_time(message, self.clock or SAME_CLOCK)

    async def compare_clocks(self, clock: Clock) -> None:
        """Ask it for the time where its clock is another one. Raises as `receive` does."""
        rounds: list[ClockRound] = []
        while self.link.node is not None and len(rounds) < _ROUNDS:
            self.send(ClockRequest(clock.monotonic_ns()))
            answer = await self.receive()
            if isinstance(answer, ClockReply):
                rounds.append(ClockRound(answer.asked_ns, answer.at_ns, clock.monotonic_ns()))
        if rounds:
            self.clock = offset_of(rounds)

    def check_clock(self) -> None:
        """Raise LoadError where its clock offset is not known well enough."""
        error_s = self.clock.error_ns * 1e-9 if self.clock is not None else 0.0
        if error_s > _CLOCK_ERROR_S:
            raise LoadError(
                f"load.ray: the Ray node {self.link.node} answers after {2 * error_s:.2f} s, too late to watch over"
                " load there; use dedicated Ray nodes, and a dedicated network where that one is full"
            )

    def send_heartbeat(self, secrets: Secrets, clock: Clock) -> None:
        """Report that the controller is alive, with the time where the worker's clock is known."""
        self.send(Heartbeat(secrets, clock.monotonic_ns() if self.clock is not None else None))

    def note(self, report: Report) -> None:
        """Keep a report."""
        self.records += report.records
        if report.in_flight is not None:
            self.in_flight, self.sending, self.reported_ns = report.in_flight, report.sending, report.at_ns

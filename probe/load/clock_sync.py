"""Translates times between a worker's clock and the controller's. Pure.

The monotonic clocks of two machines count from different moments. A question and its stamped answer give their offset:
the stamp lies between the two, in the middle but for half of the round trip. Latencies are differences on the worker's
own clock and stay exact; only a record's position in time is as wrong as the offset.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.core.request import RequestRecord
from probe.load.messages import Command, Heartbeat, Report, Start, StepFinished
from probe.load.sent_request import move_due_times


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a worker's clock is ahead of the controller's, wrong by `error_ns` at most."""

    ns: int = 0
    error_ns: int = 0


SAME_CLOCK = ClockOffset()


@dataclass(frozen=True, slots=True)
class ClockRound:
    """One question for the time: when it was sent, the worker's clock, when the answer arrived."""

    asked_ns: int
    there_ns: int
    answered_ns: int

    @property
    def took_ns(self) -> int:
        return self.answered_ns - self.asked_ns


def offset_of(rounds: Sequence[ClockRound]) -> ClockOffset:
    """Return the offset by the quickest round, which bounds it best."""
    best = min(rounds, key=lambda one: one.took_ns)
    return ClockOffset(best.there_ns - best.asked_ns - best.took_ns // 2, (best.took_ns + 1) // 2)


def to_worker_time(message: Command, offset: ClockOffset) -> Command:
    """Translate a command's times to the worker's clock."""
    if isinstance(message, Start):
        return Start(message.start_ns + offset.ns)
    if isinstance(message, Heartbeat) and message.sent_ns is not None:
        return replace(message, sent_ns=message.sent_ns + offset.ns)
    return message


def to_controller_time(message: object, offset: ClockOffset) -> object:
    """Translate a worker's message to the controller's clock."""
    if offset.ns == 0:
        return message
    if isinstance(message, Report):
        records = tuple(_record(record, offset.ns) for record in message.records)
        in_flight = move_due_times(message.in_flight, -offset.ns) if message.in_flight is not None else None
        return replace(message, records=records, in_flight=in_flight, at_ns=message.at_ns - offset.ns)
    if isinstance(message, StepFinished):
        opened, closed = message.window_ns
        return replace(message, window_ns=(opened - offset.ns, closed - offset.ns))
    return message


def _record(record: RequestRecord, ahead_ns: int) -> RequestRecord:
    events = record.events
    return replace(
        record,
        scheduled_ns=record.scheduled_ns - ahead_ns,
        sent_ns=record.sent_ns - ahead_ns,
        done_ns=record.done_ns - ahead_ns,
        events=replace(events, at_ns=array("q", (at - ahead_ns for at in events.at_ns))),
    )

"""Times of a worker whose clock is not ours, as ours has them. Pure.

Monotonic clocks of two machines count from different moments. How far apart they are is told by a question and its
answer, which was stamped at some moment between the two: in the middle, but for half of the time that took. Latencies
are differences on the worker's own clock and stay exact; only where a record lies in time is as wrong as the offset.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.core.request import RequestRecord
from probe.load.messages import Command, Heartbeat, Report, Start, StepFinished
from probe.load.step_executor import FIGURES


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """By how much a worker's clock is ahead of ours, wrong by `error_ns` at most."""

    ns: int = 0
    error_ns: int = 0


SAME_CLOCK = ClockOffset()


@dataclass(frozen=True, slots=True)
class ClockRound:
    """A question for the time: when we asked, what the worker's clock said, when we had its answer."""

    asked_ns: int
    there_ns: int
    answered_ns: int

    @property
    def took_ns(self) -> int:
        return self.answered_ns - self.asked_ns


def offset_of(rounds: Sequence[ClockRound]) -> ClockOffset:
    """By the quickest of one or more rounds, which leaves least in doubt."""
    best = min(rounds, key=lambda one: one.took_ns)
    return ClockOffset(best.there_ns - best.asked_ns - best.took_ns // 2, (best.took_ns + 1) // 2)


def as_theirs(message: Command, offset: ClockOffset) -> Command:
    """What we tell a worker, with its times as its clock has them."""
    if isinstance(message, Start):
        return Start(message.start_ns + offset.ns)
    if isinstance(message, Heartbeat) and message.sent_ns is not None:
        return replace(message, sent_ns=message.sent_ns + offset.ns)
    return message


def as_ours(message: object, offset: ClockOffset) -> object:
    """What a worker tells us, with its times as our clock has them."""
    if offset.ns == 0:
        return message
    if isinstance(message, Report):
        records = tuple(_record(record, offset.ns) for record in message.records)
        in_flight, at_ns = _figures(message.in_flight, offset.ns), message.at_ns - offset.ns
        return replace(message, records=records, in_flight=in_flight, at_ns=at_ns)
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


def _figures(figures: "array[int] | None", ahead_ns: int) -> "array[int] | None":
    """The first of each request's FIGURES is when it was due."""
    if figures is None:
        return None
    moved = array("q", figures)
    for i in range(0, len(moved), FIGURES):
        moved[i] -= ahead_ns
    return moved

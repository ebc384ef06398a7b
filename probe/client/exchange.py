"""One request from ready to recorded: Prepared --send--> Answer --read--> RequestRecord.

What takes time is kept apart from what is timed. A Prepared only has to be sent; an Answer has been received and
is read later, in portions (stream.py), so that other streams get their turns in between.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import httpx

from probe.client.response_buffer import ResponseBuffer
from probe.client.stream_parser import StreamReader, Transcript, error_message, judge
from probe.core.clock import Clock
from probe.core.request import Outcome, RequestRecord, RequestSpec, TokenEvents, Traffic
from probe.core.text import one_line

# How an exchange ended that did not come to its end, and why.
Ended = tuple[Outcome, str | None]

_STATUS_OUTCOMES = {
    401: Outcome.UNAUTHORIZED,
    403: Outcome.UNAUTHORIZED,
    404: Outcome.NOT_FOUND,
    429: Outcome.REJECTED,
}
_OK, _BAD_REQUEST, _SERVER_ERROR = 200, 400, 500
# How much of a stream is read before others get a turn: some 0.2 ms.
_PORTION = 64


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and where its answer goes. `secret`: the key that is sent along, which a server may repeat."""

    request: httpx.Request
    received: ResponseBuffer
    secret: bytes = b""

    def hide(self, data: bytes) -> bytes:
        """The bytes without our key."""
        return data.replace(self.secret, b"(hidden)") if self.secret else data

    def safe(self, text: str) -> str:
        """The text on one line, cut, and without our key."""
        return one_line(self.hide(text.encode("utf-8", "replace")))

    def refusal(self) -> Ended:
        """The outcome of an answer whose status is not 200."""
        received = self.received
        status, location = received.status or 0, received.header(b"location")
        outcome = _STATUS_OUTCOMES.get(status, Outcome.SERVER_ERROR if status >= _SERVER_ERROR else Outcome.BAD_REQUEST)
        if status < _BAD_REQUEST and location:
            return outcome, f"HTTP {status} redirects to {self.safe(location)!r}; give the final address"
        words = error_message(self.hide(received.body))
        return outcome, f"HTTP {status}: {words}" if words else f"HTTP {status}"


@dataclass(slots=True)
class PreparedRequest:
    """A request that only has to be sent, once; its prompt is in the exchange alone.

    `exchange` is None where it cannot be made: `refused` says why.
    """

    target: str
    model: str
    traffic: Traffic
    spec: RequestSpec
    clock: Clock
    exchange: Exchange | None
    refused: Ended | None
    carry_out: Callable[[Exchange], Awaitable[Ended | None]]

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        """Its record, were it cancelled now, while it is in flight."""
        return aborted(
            target=self.target,
            model=self.model,
            traffic=self.traffic,
            spec=self.spec,
            scheduled_ns=scheduled_ns,
            clock=self.clock,
            reads=self.reads,
        )

    @property
    def reads(self) -> int:
        """How often something of the answer's body has arrived so far."""
        return len(self.exchange.received.reads) if self.exchange is not None else 0

    async def send(self, scheduled_ns: int) -> "Response":
        """Sends it, due at `scheduled_ns`, and waits for the end. Raises nothing but CancelledError."""
        exchange, clock = self.exchange, self.clock
        sent_ns = done_ns = clock.monotonic_ns()
        ended = self.refused
        if exchange is not None:
            ended = await self.carry_out(exchange)
            received = exchange.received
            reads = received.reads
            sent_ns = min(sent_ns + received.write_lag_ns, reads[0][0] if reads else clock.monotonic_ns())
            # The end is when its last bytes came, and not when this task got its turn.
            done_ns = reads[-1][0] if reads and received.complete else clock.monotonic_ns()
        return Response(self, scheduled_ns, sent_ns, done_ns, clock.wall_s(), ended)


@dataclass(frozen=True, slots=True)
class Response:
    """A request whose exchange is over, not yet read. `ended`: how it failed, where it did."""

    prepared: PreparedRequest
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    done_wall_s: float
    ended: Ended | None

    @property
    def looks_good(self) -> bool:
        """Whether it ended as a stream should. That it holds what was asked for, only reading it shows."""
        exchange = self.prepared.exchange
        return self.ended is None and exchange is not None and exchange.received.ends_with(b"data: [DONE]\n\n")

    def read(self) -> Iterator[RequestRecord | None]:
        """None after each portion, and at last the record."""
        prepared, ended, said = self.prepared, self.ended, None
        exchange = prepared.exchange
        received = exchange.received if exchange is not None else ResponseBuffer(0, 0)
        if exchange is not None and received.status == _OK:
            reader = StreamReader(prepared.spec.api, exchange.hide)
            for first in range(0, len(received.reads), _PORTION):
                reader.read(received.reads[first : first + _PORTION])
                yield None
            said = reader.transcript(received.reads[-1] if received.reads else None)
            ended = ended or _judge(prepared.spec, received, said)
        outcome, detail = ended or (exchange.refusal() if exchange is not None else (Outcome.UNREACHABLE, None))
        if detail and exchange is not None:
            detail = exchange.safe(detail)
        yield RequestRecord(
            target=prepared.target,
            model=prepared.model,
            traffic=prepared.traffic,
            spec=prepared.spec,
            scheduled_ns=self.scheduled_ns,
            sent_ns=self.sent_ns,
            done_ns=self.done_ns,
            done_wall_s=self.done_wall_s,
            outcome=outcome,
            detail=one_line(detail) if detail else None,
            http_status=received.status,
            events=said.events if said else TokenEvents(),
            reads=len(received.reads),
            prompt_tokens=(said.prompt_tokens or 0) if said else 0,
            output_tokens=(said.output_tokens or 0) if said else 0,
            finish_reason=said.finish_reason if said else None,
        )

    def record(self) -> RequestRecord:
        """The record, at once."""
        *_, last = self.read()
        if last is None:
            raise AssertionError("the last portion is the record")
        return last


def aborted(
    *, target: str, model: str, traffic: Traffic, spec: RequestSpec, scheduled_ns: int, clock: Clock, reads: int = 0
) -> RequestRecord:
    """The record of a request that we cancel now, while it is in flight."""
    return RequestRecord(
        target=target,
        model=model,
        traffic=traffic,
        spec=spec,
        scheduled_ns=scheduled_ns,
        sent_ns=scheduled_ns,
        done_ns=clock.monotonic_ns(),
        done_wall_s=clock.wall_s(),
        outcome=Outcome.ABORTED,
        detail="cancelled while in flight",
        reads=reads,
    )


def _judge(spec: RequestSpec, received: ResponseBuffer, said: Transcript) -> Ended:
    kind = received.header(b"content-type")
    if "event-stream" not in kind and not said.done:
        return (
            Outcome.BROKEN_STREAM,
            f"the answer is {kind.split(';')[0][:60] or 'no content type'!r}, expected an event stream",
        )
    return judge(spec, said)

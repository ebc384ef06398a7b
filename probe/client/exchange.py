"""One request: PreparedRequest --send--> Response --read--> RequestRecord.

Expensive work is kept out of the timed part. A PreparedRequest only has to be sent; a Response has been received and
is parsed later in portions (stream_parser.py), so that other streams are served in between.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from probe.client.api_json import error_message, error_of, not_streamed
from probe.client.api_request import FORMS, PLAIN_REQUESTS, RequestShape
from probe.client.compression import unpack
from probe.client.judgement import Judgement, Transcript, judge
from probe.client.refusal import Refusal
from probe.client.response_buffer import Read, ResponseBuffer, portions
from probe.client.result_body import ResultReader
from probe.client.stream_parser import ChunkReader, StreamReader, unchanged
from probe.client.typed_events import TypedEventReader
from probe.core.clock import Clock
from probe.core.redactor import Redactor
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, TokenEvents, TraceContext, Traffic, WireTimes
from probe.core.text import LIMIT, one_line
from probe.core.time_limits import out_of_time

# The outcome of an exchange that did not complete, and its detail.
Ended = Judgement

_OK, _BAD_REQUEST = 200, 400
_WORDS_BYTES = 16 * 1024  # of a refusal


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the buffer for its response. `redactor` hides the secrets sent with it."""

    request: httpx.Request
    received: ResponseBuffer
    redactor: Redactor = field(default_factory=Redactor)
    headers: Mapping[str, str] = field(default_factory=dict)  # the client's, as they were when it was prepared
    limit_s: float = math.inf  # of the whole answer

    def safe(self, text: str) -> str:
        """Return the text on one line, shortened, and without secrets."""
        return one_line(self.redactor.hide_text(text))

    def refusal(self) -> Ended:
        """Return the outcome of a response with a status other than 200."""
        received = self.received
        status, location = received.status or 0, received.header(b"location")
        outcome = self.refused.outcome
        if status < _BAD_REQUEST and location:
            return outcome, f"HTTP {status} redirects to {self.safe(location)!r}; give the final address"
        reason = received.packed or error_message(received.body, self.redactor.hide)
        return outcome, f"HTTP {status}: {reason}" if reason else f"HTTP {status}"

    @property
    def refused(self) -> Refusal:
        """Return a response with a status other than 200 as a refusal."""
        received = self.received
        return Refusal(
            received.status or 0,
            received.body[:_WORDS_BYTES].decode("utf-8", "replace"),
            received.header(b"retry-after").strip(),
            is_marked=received.header(b"x-envoy-overloaded") == "true",
        )


# A worker looks at all its answers in flight at once, and a fast server may have said megabytes in each. So one is
# parsed by pieces, to its first token only, and of a stream without any so much at each look.
_PIECE, _A_LOOK = 4096, 2**16


class FirstToken:
    """Looks for the first token of an answer in flight: each byte is parsed once, few after that token."""

    def __init__(self, api: Api) -> None:
        self._reader = answer_reader(api) if api.generates else None
        self._parsed = self._within = 0  # whole reads, and bytes of the next one

    def has_come(self, received: ResponseBuffer) -> bool:
        """Return whether the answer so far has a token, or is none that could have one."""
        reader = self._reader
        if reader is None or received.status != _OK:
            return True
        left = _A_LOOK
        while left > 0 and not reader.events and self._parsed < len(received.reads):
            at_ns, since_ns, data = received.reads[self._parsed]
            piece = data[self._within : self._within + _PIECE]
            reader.read([(at_ns, since_ns, piece)])
            left -= len(piece)
            self._within += len(piece)
            if self._within >= len(data):
                self._parsed, self._within = self._parsed + 1, 0
        return reader.events > 0


@dataclass(slots=True)
class PreparedRequest:
    """A request that only has to be sent, once; only the exchange holds its prompt.

    `exchange` is None if the request cannot be made; `refused` is then the reason. `aliases`: see Client.prepare.
    """

    target: str
    model: str
    traffic: Traffic
    spec: RequestSpec
    aliases: frozenset[str] | None
    clock: Clock
    exchange: Exchange | None
    refused: Ended | None
    carry_out: Callable[[Exchange], Awaitable[Ended | None]]
    shape: RequestShape = PLAIN_REQUESTS
    trace: TraceContext | None = None
    _first_token: FirstToken | None = None

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        """Return the record this request would get if cancelled now."""
        return aborted(
            target=self.target,
            model=self.model,
            traffic=self.traffic,
            spec=self.spec,
            scheduled_ns=scheduled_ns,
            clock=self.clock,
            reads=self.reads,
            wire=_wire_times(self.exchange.received, scheduled_ns) if self.exchange is not None else None,
        )

    @property
    def reads(self) -> int:
        """Return the number of reads of the response's body so far; 0 until one of them has a token.

        A comment, which some gateways send to keep the connection open, or the role of a message is none.
        """
        if self.exchange is None or not self.exchange.received.reads:
            return 0
        self._first_token = self._first_token or FirstToken(self.spec.api)
        received = self.exchange.received
        return len(received.reads) if self._first_token.has_come(received) else 0

    async def send(self, scheduled_ns: int) -> "Response":
        """Send the request, due at `scheduled_ns`, and wait for its end. Raises only CancelledError."""
        exchange, clock = self.exchange, self.clock
        sent_ns = done_ns = clock.monotonic_ns()
        ended = self.refused
        if exchange is not None:
            ended = await self.carry_out(exchange)
            received = exchange.received
            reads = received.reads
            sent_ns = min(sent_ns + received.write_lag_ns, reads[0][0] if reads else clock.monotonic_ns())
            # It ended when its last bytes arrived, not when this task ran again.
            done_ns = reads[-1][0] if reads and received.is_complete else clock.monotonic_ns()
        return Response(self, scheduled_ns, sent_ns, done_ns, clock.wall_s(), ended)


@dataclass(frozen=True, slots=True)
class Response:
    """A finished exchange, not yet parsed. `ended`: the failure, if it failed."""

    prepared: PreparedRequest
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    done_wall_s: float
    ended: Ended | None

    @property
    def looks_good(self) -> bool:
        """Return whether the stream ended as it should. Only parsing shows whether it holds what was requested."""
        exchange = self.prepared.exchange
        end = FORMS[self.prepared.spec.api].end
        return self.ended is None and exchange is not None and exchange.received.ends_with(end)

    @property
    def held(self) -> int:
        """Return the memory that the unparsed response takes, in bytes."""
        exchange = self.prepared.exchange
        return exchange.received.held if exchange is not None else 0

    def read(self) -> Iterator[RequestRecord | None]:
        """Parse the response. Yield None after each portion, and finally the record."""
        prepared, transcript, answered_as = self.prepared, None, None
        exchange = prepared.exchange
        received = exchange.received if exchange is not None else ResponseBuffer()
        unpack(received)
        if exchange is not None and received.status == _OK and received.packed is None:
            reader = answer_reader(
                prepared.spec.api,
                exchange.redactor.hide,
                keeps_text=prepared.spec.expects is not None,
                most=prepared.spec.output_tokens,
            )
            for portion in portions(received.reads):
                reader.read(portion)
                yield None
                if received.cut is not None and reader.events >= prepared.spec.output_tokens:
                    break  # it failed, and the rest is more than was asked for
            transcript = reader.transcript(received.reads[-1] if received.reads else None)
            if prepared.spec.api.generates and transcript == Transcript():
                transcript = _without_events(exchange)
            transcript = transcript.completed(prepared.spec, prepared.shape)
            answered_as = self._answered_as(exchange, transcript)
        outcome, detail = self._judged(transcript, answered_as)
        is_overload = outcome is Outcome.REJECTED and exchange is not None and _is_overload(exchange, transcript)
        received.release()
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
            events=_events(transcript, received),
            reads=len(received.reads),
            prompt_tokens=(transcript.prompt_tokens or 0) if transcript else 0,
            output_tokens=(transcript.output_tokens or 0) if transcript else 0,
            finish_reason=transcript.finish_reason if transcript else None,
            answered_as=answered_as,
            server_times=transcript.server_times if transcript else None,
            wire=_wire_times(received, self.sent_ns),
            trace=prepared.trace,
            is_overload=is_overload,
            is_refused=received.is_refused,
        )

    def _judged(self, transcript: Transcript | None, answered_as: str | None) -> Judgement:
        """Return the outcome and its detail, with the key of the configuration that would avoid an error."""
        prepared, exchange, ended = self.prepared, self.prepared.exchange, self.ended
        if exchange is None:
            return ended or (Outcome.UNREACHABLE, None)
        error = transcript is not None and transcript.error is not None
        if transcript is not None and (ended is None or error):  # the server's words say more than how the answer ended
            ended = judge(
                prepared.spec,
                transcript,
                prepared.shape,
                content_type=exchange.safe(exchange.received.header(b"content-type")),
                model=prepared.model,
                answered_as=answered_as,
                aliases=prepared.aliases,
            )
        elif transcript is not None and ended is not None and ended[0] is Outcome.TIMEOUT:
            ended = self._without_end(transcript, ended)
        elif ended is None:
            received = exchange.received
            is_packed = received.status == _OK and received.packed is not None
            ended, error = (Outcome.BROKEN_STREAM, received.packed) if is_packed else exchange.refusal(), True
        outcome, detail = ended
        hint = prepared.shape.hint(prepared.spec.api, detail or "") if error else ""
        return outcome, one_line(detail or "", LIMIT - len(hint)) + hint if error else detail

    def _without_end(self, transcript: Transcript, ended: Ended) -> Ended:
        """Return the end of an answer at a time limit: one with more tokens than were asked for would never end."""
        asked, outcome = self.prepared.spec.output_tokens, ended[0]
        if (transcript.output_tokens or sum(transcript.events.tokens)) <= asked:
            return ended
        return outcome, out_of_time(f"more than the {asked} tokens asked for, and no end", "")

    def _answered_as(self, exchange: Exchange, transcript: Transcript) -> str | None:
        """Return the name of the model that answered, or None if it is the one that was asked for.

        `transformers serve` adds the revision: of the model NAME it answers as NAME@main.
        """
        model, asked = transcript.model, self.prepared.model
        is_same = not model or model == asked or model.startswith(f"{asked}@")
        return None if is_same else exchange.safe(model or "")

    def record(self) -> RequestRecord:
        """Parse the whole response and return the record."""
        *_, last = self.read()
        if last is None:
            raise AssertionError("the last portion is the record")
        return last


def _is_overload(exchange: Exchange, transcript: Transcript | None) -> bool:
    return (transcript.refusal if transcript is not None else exchange.refused).is_overload


def _without_events(exchange: Exchange) -> Transcript:
    """Return the transcript of a body in which no event was found: an error, a page, or another kind of answer."""
    body, hide = exchange.received.body, exchange.redactor.hide
    error = error_of(body, hide)
    if error is not None:
        return Transcript(error=error.words, error_status=error.status)
    return Transcript(instead=not_streamed(body, hide))


def _events(transcript: Transcript | None, received: ResponseBuffer) -> TokenEvents:
    """Return the events; if the answer was cut for lack of memory, only the first and the last ones.

    These give its tokens and its time to the first one. All of them would fill the controller's memory instead.
    """
    if transcript is None:
        return TokenEvents()
    return transcript.events.ends() if received.is_cut_for_others else transcript.events


def _wire_times(received: ResponseBuffer, sent_ns: int) -> WireTimes | None:
    if not received.head_ns:
        return None
    first_ns = received.reads[0][0] if received.reads else None
    return WireTimes(
        max(received.written_ns - sent_ns, 0),
        received.head_ns - sent_ns if received.head_ns != first_ns else None,
        first_ns - sent_ns if first_ns is not None else None,
    )


def aborted(
    *,
    target: str,
    model: str,
    traffic: Traffic,
    spec: RequestSpec,
    scheduled_ns: int,
    clock: Clock,
    reads: int = 0,
    wire: WireTimes | None = None,
) -> RequestRecord:
    """Return the record of a request that is cancelled now, while in flight."""
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
        wire=wire,
    )


def answer_reader(
    api: Api, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False, most: int | None = None
) -> StreamReader | ResultReader:
    """Return the parser of an answer of this API. `hide`, `keeps_text`, `most`: see StreamReader."""
    if not api.generates:
        return ResultReader(api, hide)
    if api in (Api.RESPONSES, Api.MESSAGES):
        return TypedEventReader(hide, keeps_text=keeps_text, most=most)
    return ChunkReader(hide, keeps_text=keeps_text, most=most, chat=api is Api.CHAT)


def read_answer(reads: Sequence[Read], api: Api) -> Transcript:
    """Parse a whole response at once."""
    reader = answer_reader(api)
    reader.read(reads)
    return reader.transcript(reads[-1] if reads else None)

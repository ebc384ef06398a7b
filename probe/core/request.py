"""A request and its record of raw timestamps, from which all latencies are derived."""

import secrets
from array import array
from dataclasses import dataclass, field, replace
from enum import StrEnum

# The model's label before the server has reported its model.
UNKNOWN_MODEL = "unknown"


class Traffic(StrEnum):
    """Why a request was sent."""

    CANARY = "canary"
    CAPACITY = "capacity"
    ONDEMAND = "ondemand"
    ANSWER = "answer"  # a question with a known answer, asked after a canary


class Api(StrEnum):
    """The API that a request uses."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"

    @property
    def generates(self) -> bool:
        """Return whether answers are tokens, in a stream; else they are numbers, at once."""
        return _APIS[self].generates

    @property
    def takes_ids(self) -> bool:
        """Return whether a prompt can be token ids, so that its length is exact; else it is text."""
        return _APIS[self].takes_ids

    @property
    def has_template(self) -> bool:
        """Return whether the server puts the prompt into a chat template, which adds tokens."""
        return _APIS[self].has_template

    @property
    def operation(self) -> str:
        """Return the operation's name in OpenTelemetry's conventions for generative AI."""
        return _APIS[self].operation


@dataclass(frozen=True, slots=True)
class _ApiFacts:
    operation: str
    generates: bool = True
    takes_ids: bool = False
    has_template: bool = False


_APIS = {
    Api.COMPLETIONS: _ApiFacts("text_completion", takes_ids=True),
    Api.CHAT: _ApiFacts("chat", has_template=True),
    Api.RESPONSES: _ApiFacts("chat", has_template=True),
    Api.MESSAGES: _ApiFacts("chat", has_template=True),
    Api.EMBEDDINGS: _ApiFacts("embeddings", generates=False, takes_ids=True),
    Api.RERANK: _ApiFacts("rerank", generates=False),
    Api.SCORE: _ApiFacts("score", generates=False),
}


class Omittable(StrEnum):
    """A field that a request can do without. Its answer is then judged by what came."""

    IGNORE_EOS = "ignore_eos"
    STREAM_OPTIONS = "stream_options"
    CONTINUOUS_USAGE_STATS = "continuous_usage_stats"
    TEMPERATURE = "temperature"


class Outcome(StrEnum):
    """The result of a request. Each value is a label of `kneewatch_requests_total`, so there are few."""

    OK = "ok"
    UNREACHABLE = "unreachable"  # no connection, or it broke before the answer
    CERTIFICATE = "certificate"  # the TLS handshake ended at a certificate, the server's or Kneewatch's own
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"  # 401, 403
    NOT_FOUND = "not_found"  # 404: wrong path, or the model is not served
    REJECTED = "rejected"  # 429, or a 503 by its words: the server is up, and limits its load
    BAD_REQUEST = "bad_request"  # other 4xx, and redirects
    SERVER_ERROR = "server_error"  # 5xx, or an error event inside the stream
    BROKEN_STREAM = "broken_stream"  # 200, then not a complete event stream
    WRONG_ANSWER = "wrong_answer"  # a complete stream of another length or model than requested
    CORRUPT = "corrupt"  # the text or the numbers are wrong: the answer to a known question, a vector of zeros
    # The client's own delay may explain a missed latency or a missing answer, or this machine could not send it.
    CLIENT_BOUND = "client_bound"
    ABORTED = "aborted"  # cancelled by Kneewatch (guard, budget or shutdown), or the server fell asleep


# Outcomes that do not count against availability.
UP = (Outcome.OK, Outcome.CLIENT_BOUND)
# Outcomes that show no failure of the server.
NO_FAILURES = (*UP, Outcome.ABORTED)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request to send. `prompt` is token ids if the API takes them, and else text.

    `prompt_tokens` is exact for token ids and approximate for text, where the server's template and tokenizer decide.
    The record has the server's count.

    `expects`: a regular expression that the answer's text has to match. Such an answer ends where the model ends it;
    `output_tokens` is its limit. `shared_tokens`: how many at the beginning of the prompt earlier prompts may have had.
    """

    workload: str
    api: Api
    prompt: tuple[int, ...] | str
    prompt_tokens: int
    output_tokens: int
    expects: str | None = None
    shared_tokens: int = 0

    def without_prompt(self) -> "RequestSpec":
        """Return the request without its prompt, for a record."""
        return replace(self, prompt=())


@dataclass(frozen=True, slots=True)
class TokenEvents:
    """The token events of a stream, in order, as parallel arrays because a step has millions of them.

    An answer without tokens, such as an embedding, has one event without any: its end.

    `first_visible`: index of the first event with visible text. Earlier tokens are special ones, hidden reasoning, or
    parts of one character. `first_answer`: of the first one that is no reasoning. `unplaced`: how many tokens no
    event showed; the events have them, and they may have been before the first or after the last one.
    """

    at_ns: "array[int]" = field(default_factory=lambda: array("q"))
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))  # upper bound of the delay in at_ns
    tokens: "array[int]" = field(default_factory=lambda: array("i"))  # the server's count since the previous event
    first_visible: int | None = None
    first_answer: int | None = None
    unplaced: int = 0

    def __len__(self) -> int:
        return len(self.at_ns)

    def ends(self) -> "TokenEvents":
        """Return the first and the last event only; the last has the tokens of all between them."""
        if len(self) <= 2:  # noqa: PLR2004 - there are no others
            return self
        tokens = array("i", (self.tokens[0], sum(self.tokens) - self.tokens[0]))
        first_visible = 0 if self.first_visible == 0 else None
        every = len(self) - 1
        return TokenEvents(self.at_ns[::every], self.late_ns[::every], tokens, first_visible, unplaced=self.unplaced)


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """How long a request waited in the engine, and then took to its first token, by the server's own account."""

    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class WireTimes:
    """When the steps of an exchange were, in nanoseconds after the sending began.

    `written_ns`: the request was written on a connection that was there; 0: unknown, as through a proxy. `head_ns`: the
    response's head; None if it came together with the body. `first_read_ns`: the first bytes of the body, if any came.
    """

    written_ns: int
    head_ns: int | None = None
    first_read_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that a request is a span of, in hexadecimal digits (W3C Trace Context)."""

    trace_id: str
    span_id: str

    @classmethod
    def new(cls) -> "TraceContext":
        """Return a trace that begins with this request."""
        return cls(secrets.token_hex(16), secrets.token_hex(8))

    @property
    def traceparent(self) -> str:
        """Return the header that tells the server; its last part says that the trace is recorded."""
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The record of one request: raw timestamps, from which latency.py derives latencies.

    `spec` has no prompt, because records are kept and prompts are long. `held_ns`: how long it waited for one fewer in
    flight, after it was due. `is_overload`: the server refused it for having too much to do, by its own words, and not
    by the limit of a key.
    """

    target: str
    model: str
    traffic: Traffic
    spec: RequestSpec
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    done_wall_s: float  # for display; never used for intervals
    outcome: Outcome
    detail: str | None = None  # one line for people, if the outcome is not OK
    http_status: int | None = None
    events: TokenEvents = field(default_factory=TokenEvents)
    reads: int = 0  # network reads the body arrived in
    prompt_tokens: int = 0  # from the usage that the server reports
    output_tokens: int = 0
    finish_reason: str | None = None
    answered_as: str | None = None  # the model that answered, if it named another one than was asked for
    server_times: ServerTimes | None = None  # if the server reports them in its answers
    wire: WireTimes | None = None  # None: no response came
    trace: TraceContext | None = None  # if the server was told one
    held_ns: int = 0
    is_overload: bool = False
    is_refused: bool = False  # the server's machine refused the connection, or its name is not known

    @property
    def is_up(self) -> bool | None:
        """Return whether the request shows that the server answers correctly; None: says nothing about it."""
        is_unanswered = self.outcome is Outcome.CLIENT_BOUND and self.finish_reason is None
        return None if is_unanswered or self.outcome is Outcome.ABORTED else self.outcome in UP


# Outcomes without work for the server, unless tokens came first.
_REFUSED = (
    Outcome.UNREACHABLE,
    Outcome.CERTIFICATE,
    Outcome.UNAUTHORIZED,
    Outcome.NOT_FOUND,
    Outcome.BAD_REQUEST,
    Outcome.REJECTED,
)


def tokens_spent(record: RequestRecord) -> tuple[int, int]:
    """Return the prompt and output tokens that a request cost the server, at most.

    The server reports no count for a failed request: a cancelled one may have run to its end, a refused one cost
    nothing.
    """
    if record.prompt_tokens or record.output_tokens:
        return record.prompt_tokens, record.output_tokens
    if record.outcome in _REFUSED and not record.events.tokens:
        return 0, 0
    if record.outcome is Outcome.ABORTED:
        return record.spec.prompt_tokens, record.spec.output_tokens
    return record.spec.prompt_tokens, sum(record.events.tokens)

"""A request and what happened to it: raw timestamps, from which everything else is derived."""

from array import array
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Traffic(StrEnum):
    """Why a request was sent."""

    CANARY = "canary"
    CAPACITY = "capacity"
    ONDEMAND = "ondemand"


class Api(StrEnum):
    """Which of the server's streaming interfaces a request uses."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Outcome(StrEnum):
    """How a request ended. Few values: each is a label in `kneewatch_requests_total`."""

    OK = "ok"
    UNREACHABLE = "unreachable"  # no connection, or it broke before an answer
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"  # 401, 403
    NOT_FOUND = "not_found"  # 404: wrong path, or the model is not served
    REJECTED = "rejected"  # 429: the server defends itself
    BAD_REQUEST = "bad_request"  # other 4xx, and redirects
    SERVER_ERROR = "server_error"  # 5xx, or an error event inside the stream
    BROKEN_STREAM = "broken_stream"  # 200, then not a complete event stream
    WRONG_ANSWER = "wrong_answer"  # a complete stream that a validator refuses
    CLIENT_BOUND = "client_bound"  # answered; a miss that may be our own lateness, and judges no latency
    ABORTED = "aborted"  # cancelled by us: guard, budget or shutdown


# Outcomes of requests that the server answered as it should.
UP = (Outcome.OK, Outcome.CLIENT_BOUND)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request to send. `prompt` is token ids for completions and text for chat.

    `prompt_tokens` is exact for completions and about right for chat, where the server's
    template and tokenizer decide; the record holds what the server counted.
    """

    workload: str
    api: Api
    prompt: tuple[int, ...] | str
    prompt_tokens: int
    output_tokens: int

    def without_prompt(self) -> "RequestSpec":
        """The same request, for a record."""
        return replace(self, prompt=())


@dataclass(frozen=True, slots=True)
class TokenEvents:
    """The events of a stream that carried tokens, in order, as arrays of one length: a step has millions.

    `first_visible`: index of the first one with something to read. Before it there may be tokens that are the
    beginning of a character.
    """

    at_ns: "array[int]" = field(default_factory=lambda: array("q"))
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))  # by how much at_ns may be too late, at most
    tokens: "array[int]" = field(default_factory=lambda: array("i"))  # as the server counted since the one before
    first_visible: int | None = None

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What happened to one request: raw stamps. Latencies are derived in latency.py.

    `spec` is what was asked for, but for the prompt: records are kept, and prompts are long.
    """

    target: str
    model: str
    traffic: Traffic
    spec: RequestSpec
    scheduled_ns: int
    sent_ns: int
    done_ns: int
    done_wall_s: float  # for people and pages; never subtracted
    outcome: Outcome
    detail: str | None = None  # one line, for people, where the outcome is not OK
    http_status: int | None = None
    events: TokenEvents = field(default_factory=TokenEvents)
    reads: int = 0  # network reads the body arrived in
    prompt_tokens: int = 0  # as the server's usage counts them
    output_tokens: int = 0
    finish_reason: str | None = None

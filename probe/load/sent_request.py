"""The requests of a step on their way: prepared before they are due (RequestStock: preparing a long prompt takes
milliseconds, and would make it late), sent (SentRequest), and answered, to be parsed when there is time
(UnreadResponses). A worker reports the sent ones to its controller as numbers.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from probe.core.request import Outcome, RequestRecord, RequestSpec

# How many numbers `pack` takes for a request: due time, prompt tokens, output tokens, reads so far.
PACKED = 4


class UnreadResponse(Protocol):
    """A response that has arrived and is parsed when there is time."""

    @property
    def looks_good(self) -> bool: ...

    @property
    def held(self) -> int:
        """Return the memory that it takes, in bytes."""
        ...

    def read(self) -> Iterator[RequestRecord | None]:
        """Parse the response. Yield None after each portion, and finally the record."""
        ...


class SendableRequest(Protocol):
    """A request that only has to be sent."""

    @property
    def spec(self) -> RequestSpec: ...

    def send(self, scheduled_ns: int) -> Awaitable[UnreadResponse]:
        """Send the request, due at `scheduled_ns`, and wait for its end."""
        ...

    def aborted(self, scheduled_ns: int) -> RequestRecord:
        """Return the record this request would get if cancelled now."""
        ...

    @property
    def reads(self) -> int:
        """Return the number of reads of the response's body so far."""
        ...


@dataclass(slots=True)
class SentRequest:
    """A request that has been sent, and its response once it has arrived.

    `held_ns`: how long it waited for one fewer in flight, after it was due.
    """

    request: SendableRequest
    due_ns: int
    held_ns: int = 0
    response: UnreadResponse | None = None
    was_ok: asyncio.Future[bool] | None = None  # set while its sender waits for the parsed outcome

    def aborted(self) -> RequestRecord:
        """Return the record this request would get if cancelled now."""
        return self._held(self.request.aborted(self.due_ns))

    @property
    def held(self) -> int:
        """Return the memory that the response takes until it is parsed, in bytes."""
        return self.response.held if self.response is not None else 0

    def read(self) -> Iterator[RequestRecord | None]:
        """Parse the response. Yield None after each portion, and finally the record."""
        for record in self.response.read() if self.response is not None else ():
            yield record and self._held(record)

    def _held(self, record: RequestRecord) -> RequestRecord:
        return replace(record, held_ns=self.held_ns) if self.held_ns else record


def pack(sent: Iterable[SentRequest]) -> "array[int]":
    """Return requests as numbers, PACKED for each."""
    numbers = array("q")
    for one in sent:
        spec = one.request.spec
        numbers.extend((one.due_ns, spec.prompt_tokens, spec.output_tokens, one.request.reads))
    return numbers


def unpack(numbers: "array[int]") -> Iterator[tuple[int, int, int, int]]:
    """Yield due time, prompt tokens, output tokens and reads of each packed request."""
    for i in range(0, len(numbers), PACKED):
        due_ns, prompt_tokens, output_tokens, reads = numbers[i : i + PACKED]
        yield due_ns, prompt_tokens, output_tokens, reads


def move_due_times(numbers: "array[int]", by_ns: int) -> "array[int]":
    """Return packed requests that are due that much later."""
    moved = array("q", numbers)
    for i in range(0, len(moved), PACKED):
        moved[i] += by_ns
    return moved


# Prepared prompts take memory: about 6 bytes a token.
_MAX_TOKENS = 4_000_000


class RequestStock:
    """At most `size` prepared requests, and `total` over the whole step."""

    def __init__(self, source: Iterator[SendableRequest], size: int, total: int | None) -> None:
        self._source = source
        self._size = size
        self._total = total
        self._prepared: deque[SendableRequest] = deque()
        self._tokens = self._made = 0

    @property
    def has_room(self) -> bool:
        """Return whether another request should be prepared."""
        if self._total is not None and self._made >= self._total:
            return False
        return len(self._prepared) < self._size and self._tokens < _MAX_TOKENS

    def prepare_one(self) -> None:
        """Prepare one more request."""
        self._made += 1
        self._prepared.append(next(self._source))
        self._tokens += self._prepared[-1].spec.prompt_tokens

    def take(self) -> SendableRequest:
        """Return the next request. Prepare it now if none is."""
        if not self._prepared:
            self.prepare_one()
        request = self._prepared.popleft()
        self._tokens -= request.spec.prompt_tokens
        return request


# The most memory of responses that wait to be parsed. Beyond it memory matters more than a late stamp, and each turn
# parses as many as needed to stay below, but lets the worker report and hear of a stop.
_MAX_HELD = 32 * 2**20
_MAX_TURN_S = 0.05
_REQUEST = 32 * 1024  # without its response: the body of a prompt of 4000 tokens


class UnreadResponses:
    """A queue in the order of arrival. `on_record` receives each record once it is parsed."""

    def __init__(self, on_record: Callable[[RequestRecord], None]) -> None:
        self.waiting: deque[SentRequest] = deque()
        self._on_record = on_record
        self._held = 0
        self._reading: Iterator[RequestRecord | None] | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the responses take too much memory to accept more."""
        return self._held > _MAX_HELD

    def add(self, sent: SentRequest) -> None:
        """Add a request with its response."""
        self.waiting.append(sent)
        self._held += _REQUEST + sent.held

    def read_portion(self) -> bool:
        """Parse some more. Return False if no response waits."""
        if not self.waiting:
            return False
        until_s = perf_counter() + _MAX_TURN_S
        self._read_one_portion()
        while self.is_full and perf_counter() < until_s:
            self._read_one_portion()
        return True

    def _read_one_portion(self) -> None:
        sent = self.waiting[0]
        if self._reading is None:
            self._reading = sent.read()
        record = next(self._reading, None)
        if record is not None:
            self._reading = None
            self.waiting.popleft()
            self._held -= _REQUEST + sent.held
            self._on_record(record)
            if sent.was_ok is not None and not sent.was_ok.done():
                sent.was_ok.set_result(record.outcome is Outcome.OK)

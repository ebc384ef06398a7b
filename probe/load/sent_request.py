"""A request that a step has sent and has no record of yet; a worker reports these to its controller as numbers."""

import asyncio
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from probe.core.request import RequestRecord
from probe.load.sendable_request import SendableRequest, UnreadResponse

# How many numbers `pack` takes for a request: due time, prompt tokens, output tokens, reads so far.
PACKED = 4


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

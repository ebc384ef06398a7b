"""Responses that have arrived and wait to be parsed, in small portions between the turns of the event loop."""

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

from probe.core.request import Outcome, RequestRecord
from probe.load.sent_request import SentRequest

# The most memory of responses that wait to be parsed. Beyond it memory matters more than a late stamp, and each turn
# parses as many as needed to stay below, but lets the worker report and hear of a stop.
_MAX_HELD = 32 * 2**20
_MAX_TURN_S = 0.05
_REQUEST = 32 * 1024  # beside its response: the body of a prompt of 4000 tokens


class UnreadResponses:
    """A queue in the order of arrival. `on_record` receives each record once it is parsed."""

    def __init__(self, on_record: Callable[[RequestRecord], None]) -> None:
        self.waiting: deque[SentRequest] = deque()
        self._on_record = on_record
        self._held = 0
        self._reading: Iterator[RequestRecord | None] | None = None

    @property
    def is_full(self) -> bool:
        """Return whether they take so much memory that no more should come."""
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

"""The request that a step sends, and its response, as the step uses them (client/exchange.py has the real ones)."""

from collections.abc import Awaitable, Iterator
from typing import Protocol

from probe.core.request import RequestRecord, RequestSpec


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

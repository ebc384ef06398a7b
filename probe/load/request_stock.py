"""Requests prepared before they are due: preparing a long prompt takes milliseconds, and would make it late."""

from collections import deque
from collections.abc import Iterator

from probe.load.sendable_request import SendableRequest

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

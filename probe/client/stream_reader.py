"""Parses a streamed response after it has arrived: stamped reads of a body in, a Transcript out. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another. A long stream is parsed in portions.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence

from probe.client.api_json import ANSWER
from probe.client.response_buffer import Read
from probe.client.sse import EventSplitter
from probe.client.transcript import Transcript
from probe.core.request import ServerTimes, TokenEvents
from probe.core.text import one_line

MAX_TOKENS = 10_000_000  # no context is longer; a larger count is an error of the server


def unchanged(data: bytes) -> bytes:
    """Return the data: for responses without secrets."""
    return data


class StreamReader(ABC):
    """A parser of one stream, a portion at a time. It never raises: errors are in the transcript.

    An event carries tokens when the server's running usage count grows, or, from a server that sends no running
    count, when it has content (then counted as one token). `hide` removes secrets from text of the response.
    """

    def __init__(self, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False) -> None:
        """`keeps_text`: whether the transcript has the text: the answer's, or that of a reasoning without an answer."""
        self._hide = hide
        self._keeps_text = keeps_text
        self._answer: list[str] = []
        self._reasoning: list[str] = []
        self._splitter = EventSplitter()
        self._at_ns, self._late_ns, self._tokens = array("q"), array("q"), array("i")
        self._first_visible: int | None = None
        self._first_answer: int | None = None
        self._prompt: int | None = None
        self._output: int | None = None
        self._finish: str | None = None
        self._model: str | None = None
        self._server_times: ServerTimes | None = None
        self._counted = 0
        self._ended = self._done = False
        self._error: str | None = None
        self._malformed: str | None = None

    @abstractmethod
    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        """Parse one event; nothing once the stream has ended."""

    def read(self, reads: Sequence[Read]) -> None:
        """Parse the next reads of the body."""
        for at_ns, since_ns, data in reads:
            for event in self._splitter.feed(data):
                self._take(event, at_ns, at_ns - since_ns)

    @property
    def events(self) -> int:
        """Return the number of events with tokens so far."""
        return len(self._at_ns)

    def transcript(self, last: Read | None) -> Transcript:
        """Return the transcript; `last` is the last read of the stream."""
        for event in self._splitter.finish():
            self._take(event, last[0] if last else 0, last[0] - last[1] if last else 0)
        return Transcript(
            TokenEvents(self._at_ns, self._late_ns, self._tokens, self._first_visible, self._first_answer),
            self._prompt,
            self._output,
            self._finish,
            self._done,
            self._error,
            self._malformed,
            "".join(self._answer) if "".join(self._answer).strip() else "".join(self._reasoning),
            self._model,
            self._server_times,
        )

    def _keep(self, answer: str | None, reasoning: str | None = None) -> None:
        if self._keeps_text:
            self._answer.append(answer or "")
            self._reasoning.append(reasoning or "")

    def _end_reason(self, reason: str) -> None:
        """Keep why the answer ended, in the server's word."""
        self._finish = self._safe(reason.encode("utf-8", "replace"), 40)

    def _count(
        self,
        event: bytes,
        counts: tuple[int, int] | None,
        at_ns: int,
        late_ns: int,
        *,
        content: str,
        has_choice: bool,
    ) -> None:
        """Count an event: `counts`, prompt and output tokens so far; `has_choice`: whether it can carry tokens."""
        if counts is not None:
            if not (0 <= counts[0] <= MAX_TOKENS and 0 <= counts[1] <= MAX_TOKENS):
                self._give_up(event)
                return
            self._prompt, self._output = counts
        if not has_choice:
            return
        grown = max(counts[1] - self._counted, 0) if counts is not None else int(bool(content))
        if grown > 0 or content:
            if content and self._first_visible is None:
                self._first_visible = len(self._at_ns)
            if content == ANSWER and self._first_answer is None:
                self._first_answer = len(self._at_ns)
            self._add_event(at_ns, late_ns, grown)

    def _add_event(self, at_ns: int, late_ns: int, tokens: int) -> None:
        self._at_ns.append(at_ns)
        self._late_ns.append(late_ns)
        self._tokens.append(tokens)
        self._counted += tokens

    def _give_up(self, event: bytes) -> None:
        self._malformed, self._ended = self._safe(event), True

    def _safe(self, data: bytes, limit: int = 200) -> str:
        return one_line(self._hide(data), limit)

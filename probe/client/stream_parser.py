"""Parses a streamed response after it has arrived: stamped reads of a body in, a Transcript out. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another. A long stream is parsed in portions.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from probe.client.api_json import (
    ANSWER,
    MESSAGE,
    REASONING,
    content_of,
    error_in,
    first_choice,
    parse_object,
    text_in,
    usage_in,
)
from probe.client.response_buffer import Read
from probe.client.server_times import server_times
from probe.client.sse import EventSplitter
from probe.client.transcript import Transcript
from probe.core.foreign_json import check_json
from probe.core.request import Api, ServerTimes, TokenEvents
from probe.core.text import one_line

_MAX_TOKENS = 10_000_000  # no context is longer; a larger count is an error of the server
# A token's event has some 300 bytes. Up to this size, what it unfolds to is bounded by its length.
_SHORT = 8192


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    """A chunk as the API describes it. Anything else is parsed by `json`, which is slower but accepts more."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None
    detail: msgspec.Raw | None = None
    object: str | None = None
    model: str | None = None
    metrics: msgspec.Raw = msgspec.Raw()  # in a union with None it accepts None only


_decode = msgspec.json.Decoder(_Chunk).decode


def _unchanged(data: bytes) -> bytes:
    return data


class StreamReader:
    """A parser of one response, a portion at a time. It never raises: errors are in the transcript.

    An event carries tokens when the server's running usage count grows, or, from a server that sends no running
    count, when it has content (then counted as one token). `hide` removes secrets from text of the response.
    """

    def __init__(self, api: Api, hide: Callable[[bytes], bytes] = _unchanged, *, keeps_text: bool = False) -> None:
        """`keeps_text`: whether the transcript has the text: the answer's, or that of a reasoning without an answer."""
        self._chat = api is Api.CHAT
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

    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        if self._ended:
            return
        if event == b"[DONE]":
            self._done = self._ended = True
            return
        try:
            if len(event) > _SHORT:
                check_json(event, MESSAGE)
            chunk = _decode(event)
        except (ValueError, RecursionError):  # msgspec's errors, of the limits, and of UTF-8
            self._take_unusual(event, at_ns, late_ns)
            return
        if chunk.error is not None or chunk.detail is not None or chunk.object == "error":
            self._take_unusual(event, at_ns, late_ns)
            return
        self._model = self._model or chunk.model
        self._server_times = server_times(chunk.metrics) or self._server_times
        content, has_choice = "", False
        if chunk.choices:
            choice, has_choice = chunk.choices[0], True
            if choice.finish_reason is not None:
                self._finish = self._safe(choice.finish_reason.encode("utf-8", "replace"), 40)
            if not self._chat:
                content = ANSWER if choice.text else ""
                self._keep(choice.text)
            elif (delta := choice.delta) is not None:
                reasoning = delta.reasoning or delta.reasoning_content
                content = ANSWER if delta.content or delta.tool_calls else REASONING if reasoning else ""
                self._keep(delta.content, reasoning)
        usage = chunk.usage
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else None
        self._count(event, counts, at_ns, late_ns, content=content, has_choice=has_choice)

    def _keep(self, answer: str | None, reasoning: str | None = None) -> None:
        if self._keeps_text:
            self._answer.append(answer or "")
            self._reasoning.append(reasoning or "")

    def _take_unusual(self, event: bytes, at_ns: int, late_ns: int) -> None:
        """Parse an event that is no regular chunk: an error, a field of another type, or no JSON."""
        chunk = parse_object(event)
        if chunk is None:
            self._give_up(event)
            return
        if (error := error_in(chunk, self._hide)) is not None:
            self._error, self._ended = error, True
            return
        choice = first_choice(chunk)
        counts = None
        if choice is not None and isinstance(reason := choice.get("finish_reason"), str):
            self._finish = self._safe(reason.encode("utf-8", "replace"), 40)
        if isinstance(chunk.get("usage"), dict):
            counts = usage_in(chunk["usage"])
            if counts is None:
                self._give_up(event)
                return
        content = content_of(choice, chat=self._chat) if choice is not None else ""
        if choice is not None:
            self._keep(*text_in(choice, chat=self._chat))
        self._count(event, counts, at_ns, late_ns, content=content, has_choice=choice is not None)

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
        if counts is not None:
            if not (0 <= counts[0] <= _MAX_TOKENS and 0 <= counts[1] <= _MAX_TOKENS):
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
            self._at_ns.append(at_ns)
            self._late_ns.append(late_ns)
            self._tokens.append(grown)
            self._counted += grown

    def _give_up(self, event: bytes) -> None:
        self._malformed, self._ended = self._safe(event), True

    def _safe(self, data: bytes, limit: int = 200) -> str:
        return one_line(self._hide(data), limit)


def read_stream(reads: Sequence[Read], api: Api) -> Transcript:
    """Parse a whole response at once."""
    reader = StreamReader(api)
    reader.read(reads)
    return reader.transcript(reads[-1] if reads else None)

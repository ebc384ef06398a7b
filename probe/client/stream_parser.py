"""Parses a stream of completions or chat after it has arrived: stamped reads of a body in, a Transcript out. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another. A long stream is parsed in portions.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from probe.client.api_json import (
    ANSWER,
    MAX_TOKENS,
    MESSAGE,
    REASONING,
    ServerError,
    content_of,
    error_in,
    error_of,
    first_choice,
    parse_object,
    text_in,
    usage_in,
)
from probe.client.judgement import Transcript
from probe.client.response_buffer import Read
from probe.client.sse import DONE, EventSplitter
from probe.core.foreign_json import check_json
from probe.core.request import ServerTimes, TokenEvents
from probe.core.text import one_line

_MAX_MS = 86_400_000.0  # a day; no request takes as long


class _Metrics(msgspec.Struct):
    """`time_to_first_token_ms` begins when the request is scheduled (0.32, build_per_request_timing_metrics)."""

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


_decode_metrics = msgspec.json.Decoder(_Metrics).decode


def server_times(metrics: msgspec.Raw) -> ServerTimes | None:
    """Return the times, or None if they are not all there, or cannot be."""
    if not metrics:
        return None
    try:
        found = _decode_metrics(metrics)
    except (ValueError, RecursionError):
        return None
    queue_ms, prefill_ms = found.queue_time_ms, found.time_to_first_token_ms
    if queue_ms is None or prefill_ms is None or not (0 <= queue_ms <= _MAX_MS and 0 <= prefill_ms <= _MAX_MS):
        return None
    return ServerTimes(queue_ms * 1e-3, prefill_ms * 1e-3)


_NO_COUNTS = (None, None)
# A finish reason in the words of completions.
_REASONS = {"max_tokens": "length", "max_output_tokens": "length", "length": "length"}


def unchanged(data: bytes) -> bytes:
    """Return the data: for responses without secrets."""
    return data


class StreamReader(ABC):
    """A parser of one stream, a portion at a time. It never raises: errors are in the transcript.

    An event carries tokens when the server's running usage count grows, or, from a server that sends no running
    count, when it has content (then counted as one token). `hide` removes secrets from text of the response.
    """

    def __init__(self, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False) -> None:
        """Take `keeps_text`: the transcript has the answer's text, or the reasoning if there is no answer."""
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
        self._error: ServerError | None = None
        self._malformed: str | None = None

    @abstractmethod
    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        """Parse one event; nothing once the stream has ended."""

    def read(self, reads: Sequence[Read]) -> None:
        """Parse the next reads of the body."""
        for at_ns, since_ns, data in reads:
            for event in self._splitter.feed(data):
                self._take(event, at_ns, at_ns - since_ns)
            if self._splitter.failure is not None:
                self._take_failure(self._splitter.failure)

    @property
    def events(self) -> int:
        """Return the number of events with tokens so far."""
        return len(self._at_ns)

    def transcript(self, last: Read | None) -> Transcript:
        """Return the transcript; `last` is the last read of the stream."""
        for event in self._splitter.finish():
            if event.startswith(DONE) or parse_object(event) is not None:  # else it was cut off
                self._take(event, last[0] if last else 0, last[0] - last[1] if last else 0)
        if self._splitter.failure is not None:
            self._take_failure(self._splitter.failure)
        if not self._ended and self._splitter.stray is not None:
            self._error = error_of(self._splitter.stray, self._hide)
        error = self._error
        return Transcript(
            TokenEvents(self._at_ns, self._late_ns, self._tokens, self._first_visible, self._first_answer),
            self._prompt,
            self._output,
            self._finish,
            self._done,
            error.words if error is not None else None,
            self._malformed,
            "".join(self._answer) if "".join(self._answer).strip() else "".join(self._reasoning),
            self._model,
            self._server_times,
            error_status=error.status if error is not None else None,
        )

    def _take_failure(self, data: bytes) -> None:
        """Keep the error of an event of the type `error`, whose data may be any text."""
        if not self._ended:
            self._error = error_of(data, self._hide) or ServerError(self._safe(data) or "event: error")
            self._ended = True

    def _keep(self, answer: str | None, reasoning: str | None = None) -> None:
        if self._keeps_text:
            self._answer.append(answer or "")
            self._reasoning.append(reasoning or "")

    def _end_reason(self, reason: str) -> None:
        """Keep why the answer ended, in the server's word. Some servers send an empty one with each event."""
        if reason:
            self._finish = _REASONS.get(reason.lower()) or self._safe(reason.encode("utf-8", "replace"), 40)

    def _count(
        self,
        counts: tuple[int | None, int | None],
        at_ns: int,
        late_ns: int,
        *,
        content: str,
        has_choice: bool,
    ) -> None:
        """Count an event: `counts`, prompt and output tokens so far; `has_choice`: whether it can carry tokens."""
        prompt, output = counts
        if prompt is not None and 0 <= prompt <= MAX_TOKENS and (prompt or self._prompt is None):
            self._prompt = prompt
        if output is not None and 0 <= output <= MAX_TOKENS:
            self._output = output
        else:
            output = None
        if not has_choice:
            return
        grown = max(output - self._counted, 0) if output is not None else int(bool(content))
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


# A token's event has some 300 bytes. Up to this size, its length bounds its unfolded size.
_SHORT = 8192


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None  # Moonshot has it here
    error: msgspec.Raw | None = None


class _Chunk(msgspec.Struct):
    """A chunk as the API describes it. Anything else is parsed by `json`, which is slower but accepts more."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw | None = None
    detail: msgspec.Raw | None = None
    object: str | None = None
    model: str | None = None
    metrics: msgspec.Raw = msgspec.Raw()  # in a union with None it accepts None only


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChunkReader(StreamReader):
    """A parser of a stream of completions or chat."""

    def __init__(
        self, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False, chat: bool = False
    ) -> None:
        super().__init__(hide, keeps_text=keeps_text)
        self._chat = chat

    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        if self._ended:
            return
        if event.startswith(DONE):  # as OpenAI's clients do: blanks may follow
            self._done = self._ended = True
            return
        try:
            if len(event) > _SHORT:
                check_json(event, MESSAGE)
            chunk = _decode_chunk(event)
        except (ValueError, RecursionError):  # msgspec's errors, of the limits, and of UTF-8
            self._take_unusual(event, at_ns, late_ns)
            return
        choice = chunk.choices[0] if chunk.choices else None
        if _may_be_error(chunk, choice):
            self._take_unusual(event, at_ns, late_ns)
            return
        self._model = self._model or chunk.model
        self._server_times = server_times(chunk.metrics) or self._server_times
        content, usage = "", chunk.usage
        if choice is not None:
            usage = usage or choice.usage
            if choice.finish_reason is not None:
                self._end_reason(choice.finish_reason)
            if not self._chat:
                content = ANSWER if choice.text else ""
                self._keep(choice.text)
            elif (delta := choice.delta) is not None:
                reasoning = delta.reasoning or delta.reasoning_content
                content = ANSWER if delta.content or delta.tool_calls else REASONING if reasoning else ""
                self._keep(delta.content, reasoning)
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else _NO_COUNTS
        self._count(counts, at_ns, late_ns, content=content, has_choice=choice is not None)

    def _take_unusual(self, event: bytes, at_ns: int, late_ns: int) -> None:
        """Parse an event that is no regular chunk: an error, a field of another type, or no JSON."""
        chunk = parse_object(event)
        if chunk is None:
            self._give_up(event)
            return
        choice = first_choice(chunk)
        within = {"error": choice.get("error")} if choice is not None else {}
        if (error := error_in(chunk, self._hide) or error_in(within, self._hide)) is not None:
            self._error, self._ended = error, True
            return
        if self._model is None and isinstance(model := chunk.get("model"), str):
            self._model = model
        usage, content = chunk.get("usage"), ""
        if choice is not None:
            usage = usage or choice.get("usage")
            if isinstance(reason := choice.get("finish_reason"), str):
                self._end_reason(reason)
            content = content_of(choice, chat=self._chat)
            self._keep(*text_in(choice, chat=self._chat))
        self._count(usage_in(usage), at_ns, late_ns, content=content, has_choice=choice is not None)


def _may_be_error(chunk: _Chunk, choice: _Choice | None) -> bool:
    """Return whether a chunk has a field of an error, or none of an answer."""
    if chunk.error is not None or chunk.detail is not None or chunk.object == "error":
        return True
    return (choice is not None and choice.error is not None) or (chunk.choices is None and chunk.usage is None)

"""Parses a stream of completions or chat after it has arrived: stamped reads of a body in, a Transcript out. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another. A long stream is parsed in portions.
"""

from abc import ABC, abstractmethod
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
    is_empty_text,
    parse_object,
    text_in,
    usage_in,
)
from probe.client.judgement import Transcript
from probe.client.response_buffer import Read
from probe.client.sse import DONE, EventSplitter
from probe.client.token_count import COUNTED, EMPTY, LAST, NO_TOKEN, TokenCount
from probe.core.foreign_json import check_json
from probe.core.request import ServerTimes
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

    token_count.py says which events carry tokens. `hide` removes secrets from text of the response.
    """

    def __init__(
        self, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False, most: int | None = None
    ) -> None:
        """Take `keeps_text`: the transcript has the answer's text, or the reasoning if there is no answer.

        `most`: as many tokens as an answer without a usage can have.
        """
        self._most = most
        self._hide = hide
        self._keeps_text = keeps_text
        self._answer: list[str] = []
        self._reasoning: list[str] = []
        self._splitter = EventSplitter()
        self._tokens = TokenCount()
        self._prompt: int | None = None
        self._output: int | None = None
        self._finish: str | None = None
        self._model: str | None = None
        self._server_times: ServerTimes | None = None
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
        return len(self._tokens)

    def transcript(self, last: Read | None) -> Transcript:
        """Return the transcript; `last` is the last read of the stream."""
        for event in self._splitter.finish():
            if event.startswith(DONE) or parse_object(event) is not None:  # else it was cut off
                self._take(event, last[0] if last else 0, last[0] - last[1] if last else 0)
        if self._splitter.failure is not None:
            self._take_failure(self._splitter.failure)
        if not self._ended and self._splitter.stray is not None:
            self._error = error_of(self._splitter.stray, self._hide)
        error, output = self._error, self._output
        if not output and self.events:  # a usage of zeros before the tokens, and none after them
            output = None
        return Transcript(
            self._tokens.finish(output, self._most),
            self._prompt,
            output,
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
        self, counts: tuple[int | None, int | None], at_ns: int, late_ns: int, *, content: str, kind: int
    ) -> None:
        """Count an event: `counts`, prompt and output tokens so far; `kind`: what it may be without content."""
        prompt, output = counts
        if prompt is not None and 0 <= prompt <= MAX_TOKENS and (prompt or self._prompt is None):
            self._prompt = prompt
        is_counted = output is not None and 0 <= output <= MAX_TOKENS
        if is_counted and (output or not len(self._tokens)):  # 0 after tokens: gateways that count none
            self._output = output
        else:
            output = None
        self._tokens.add(at_ns, late_ns, content, output, kind)

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
    thinking: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None
    function_call: Any = None  # of servers older than tool calls
    role: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None  # Moonshot has it here
    error: msgspec.Raw | None = None
    reasoning: str | None = None  # of completions
    reasoning_content: str | None = None


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
        self,
        hide: Callable[[bytes], bytes] = unchanged,
        *,
        keeps_text: bool = False,
        most: int | None = None,
        chat: bool = False,
    ) -> None:
        super().__init__(hide, keeps_text=keeps_text, most=most)
        self._chat = chat
        self._has_role = False  # which comes before all tokens, and in some servers' answers with each of them

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
        if (
            chunk.error is not None
            or chunk.detail is not None
            or chunk.object == "error"
            or (choice is None and chunk.choices is None and chunk.usage is None)  # a bare message may be one
            or (choice is not None and choice.error is not None)
        ):
            self._take_unusual(event, at_ns, late_ns)
            return
        self._model = self._model or chunk.model
        self._server_times = server_times(chunk.metrics) or self._server_times
        content, kind, usage = "", NO_TOKEN, chunk.usage
        if choice is not None:
            usage = usage or choice.usage
            content, kind = self._take_choice(choice)
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else _NO_COUNTS
        self._count(counts, at_ns, late_ns, content=content, kind=kind)

    def _take_choice(self, choice: _Choice) -> tuple[str, int]:
        """Return what a choice shows, and what it may be without that."""
        if not self._chat:
            reasoning = choice.reasoning or choice.reasoning_content
            content = ANSWER if choice.text else REASONING if reasoning else ""
            kind = EMPTY if choice.text == "" else COUNTED
            self._keep(choice.text, reasoning)
        elif (delta := choice.delta) is not None:
            reasoning = delta.reasoning or delta.reasoning_content or delta.thinking
            has_answer = delta.content or delta.tool_calls or delta.refusal or delta.function_call
            content = ANSWER if has_answer else REASONING if reasoning else ""
            kind = EMPTY if delta.content == "" and (delta.role is None or self._has_role) else COUNTED
            self._has_role |= delta.role is not None
            self._keep(delta.content, reasoning)
        else:
            content, kind = "", COUNTED
        return content, self._place(kind, choice.finish_reason)

    def _place(self, kind: int, reason: str | None) -> int:
        """Return what an event may be without content, by why the answer ends, or has ended."""
        if reason:  # some servers send an empty one with each event
            self._end_reason(reason)
            return LAST
        return kind if self._finish is None else NO_TOKEN

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
        if isinstance(metrics := chunk.get("metrics"), dict):
            self._server_times = server_times(msgspec.Raw(msgspec.json.encode(metrics))) or self._server_times
        usage, content, kind = chunk.get("usage"), "", NO_TOKEN
        if choice is not None:
            usage = usage or choice.get("usage")
            content = content_of(choice, chat=self._chat)
            is_empty = is_empty_text(choice, chat=self._chat, may_have_role=self._has_role)
            kind, self._has_role = EMPTY if is_empty else COUNTED, True
            self._keep(*text_in(choice, chat=self._chat))
            reason = choice.get("finish_reason")
            kind = self._place(kind, reason if isinstance(reason, str) else None)
        self._count(usage_in(usage), at_ns, late_ns, content=content, kind=kind)

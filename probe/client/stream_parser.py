"""Parses a streamed response after it has arrived: stamped reads of a body in, a Transcript out. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another. A long stream is parsed in portions.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from probe.client.response_buffer import Read
from probe.client.sse import EventSplitter
from probe.core.request import Api, Outcome, RequestSpec, TokenEvents
from probe.core.text import one_line

_MAX_TOKENS = 10_000_000  # no context is longer; a larger count is an error of the server


@dataclass(frozen=True, slots=True)
class Transcript:
    """The content of one stream. Token counts are those of the server; None if it sent none."""

    events: TokenEvents = field(default_factory=TokenEvents)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False  # the closing [DONE] arrived
    error: str | None = None  # an error event inside the stream
    malformed: str | None = None  # an event that does not follow the API


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


_decode = msgspec.json.Decoder(_Chunk).decode


def _unchanged(data: bytes) -> bytes:
    return data


class StreamReader:
    """A parser of one response, a portion at a time. It never raises: errors are in the transcript.

    An event carries tokens when the server's running usage count grows, or, from a server that sends no running
    count, when it has content (then counted as one token). `hide` removes secrets from text of the response.
    """

    def __init__(self, api: Api, hide: Callable[[bytes], bytes] = _unchanged) -> None:
        self._chat = api is Api.CHAT
        self._hide = hide
        self._splitter = EventSplitter()
        self._at_ns, self._late_ns, self._tokens = array("q"), array("q"), array("i")
        self._first_visible: int | None = None
        self._prompt: int | None = None
        self._output: int | None = None
        self._finish: str | None = None
        self._counted = 0
        self._ended = self._done = False
        self._error: str | None = None
        self._malformed: str | None = None

    def read(self, reads: Sequence[Read]) -> None:
        """Parse the next reads of the body."""
        for at_ns, since_ns, data in reads:
            for event in self._splitter.feed(data):
                self._take(event, at_ns, at_ns - since_ns)

    def transcript(self, last: Read | None) -> Transcript:
        """Return the transcript; `last` is the last read of the stream."""
        for event in self._splitter.finish():
            self._take(event, last[0] if last else 0, last[0] - last[1] if last else 0)
        return Transcript(
            TokenEvents(self._at_ns, self._late_ns, self._tokens, self._first_visible),
            self._prompt,
            self._output,
            self._finish,
            self._done,
            self._error,
            self._malformed,
        )

    def _take(self, event: bytes, at_ns: int, late_ns: int) -> None:
        if self._ended:
            return
        if event == b"[DONE]":
            self._done = self._ended = True
            return
        try:
            chunk = _decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._take_unusual(event, at_ns, late_ns)
            return
        if chunk.error is not None or chunk.detail is not None or chunk.object == "error":
            self._take_unusual(event, at_ns, late_ns)
            return
        visible = has_choice = False
        if chunk.choices:
            choice, has_choice = chunk.choices[0], True
            if choice.finish_reason is not None:
                self._finish = self._words(choice.finish_reason.encode("utf-8", "replace"), 40)
            if not self._chat:
                visible = bool(choice.text)
            elif (delta := choice.delta) is not None:
                visible = bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
        usage = chunk.usage
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else None
        self._count(event, counts, at_ns, late_ns, visible=visible, has_choice=has_choice)

    def _take_unusual(self, event: bytes, at_ns: int, late_ns: int) -> None:
        """Parse an event that is no regular chunk: an error, a field of another type, or no JSON."""
        chunk = _object(event)
        if chunk is None:
            self._give_up(event)
            return
        if (error := _error(chunk, self._hide)) is not None:
            self._error, self._ended = error, True
            return
        choice = _first_choice(chunk)
        counts = None
        if choice is not None and isinstance(reason := choice.get("finish_reason"), str):
            self._finish = self._words(reason.encode("utf-8", "replace"), 40)
        if isinstance(chunk.get("usage"), dict):
            counts = _usage(chunk["usage"])
            if counts is None:
                self._give_up(event)
                return
        visible = choice is not None and _has_content(choice, chat=self._chat)
        self._count(event, counts, at_ns, late_ns, visible=visible, has_choice=choice is not None)

    def _count(
        self,
        event: bytes,
        counts: tuple[int, int] | None,
        at_ns: int,
        late_ns: int,
        *,
        visible: bool,
        has_choice: bool,
    ) -> None:
        if counts is not None:
            if not (0 <= counts[0] <= _MAX_TOKENS and 0 <= counts[1] <= _MAX_TOKENS):
                self._give_up(event)
                return
            self._prompt, self._output = counts
        if not has_choice:
            return
        grown = max(counts[1] - self._counted, 0) if counts is not None else int(visible)
        if grown > 0 or visible:
            if visible and self._first_visible is None:
                self._first_visible = len(self._at_ns)
            self._at_ns.append(at_ns)
            self._late_ns.append(late_ns)
            self._tokens.append(grown)
            self._counted += grown

    def _give_up(self, event: bytes) -> None:
        self._malformed, self._ended = self._words(event), True

    def _words(self, data: bytes, limit: int = 200) -> str:
        return one_line(self._hide(data), limit)


def read_stream(reads: Sequence[Read], api: Api) -> Transcript:
    """Parse a whole response at once."""
    reader = StreamReader(api)
    reader.read(reads)
    return reader.transcript(reads[-1] if reads else None)


def judge(spec: RequestSpec, answer: Transcript) -> tuple[Outcome, str | None]:  # noqa: PLR0911 - a list of checks
    """Return the outcome of a response, with a line of explanation unless it is what was requested.

    A canary that got fewer tokens than it requested would report a latency for work not done.
    """
    if answer.error is not None:
        return Outcome.SERVER_ERROR, f"error inside the stream: {answer.error}"
    if answer.malformed is not None:
        return Outcome.BROKEN_STREAM, f"an event is not an API chunk: {answer.malformed}"
    if not answer.done:
        return Outcome.BROKEN_STREAM, f"the stream ended without [DONE] after {len(answer.events)} token events"
    if answer.events.first_visible is None:
        return Outcome.WRONG_ANSWER, "the stream held no content"
    if answer.output_tokens is None or answer.prompt_tokens is None:
        return Outcome.WRONG_ANSWER, "the server sent no usage; it has to honour stream_options.include_usage"
    if answer.output_tokens != spec.output_tokens:
        return Outcome.WRONG_ANSWER, f"{answer.output_tokens} output tokens, {spec.output_tokens} were asked for"
    if (carried := sum(answer.events.tokens)) > answer.output_tokens:
        return Outcome.WRONG_ANSWER, f"the events carried {carried} tokens, the usage says {answer.output_tokens}"
    if answer.finish_reason != "length":
        return Outcome.WRONG_ANSWER, f"finish reason {answer.finish_reason!r}, expected 'length' (ignore_eos is set)"
    if spec.api is Api.COMPLETIONS and answer.prompt_tokens != spec.prompt_tokens:
        return Outcome.WRONG_ANSWER, f"the server counted {answer.prompt_tokens} prompt tokens of {spec.prompt_tokens}"
    return Outcome.OK, None


def error_message(body: bytes) -> str:
    """Return the server's message from an error body on one line, or the start of the body if there is none."""
    chunk = _object(body)
    words = _error(chunk, _unchanged) if chunk is not None else None
    return words or one_line(body)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error(chunk: Mapping[str, Any], hide: Callable[[bytes], bytes]) -> str | None:
    """Return the error message, or None.

    vLLM nests `{"error": {"message"}}`, its API-key check sends `{"error": "..."}`, FastAPI sends `detail`.
    """
    error = chunk.get("error") or chunk.get("detail") or (chunk.get("object") == "error" and chunk.get("message"))
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(hide(str(message or error).encode("utf-8", "replace")))


def _first_choice(chunk: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _usage(usage: Mapping[str, object]) -> tuple[int, int] | None:
    """Return prompt and output tokens, or None if they are not integers."""
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    return (prompt, output) if type(prompt) is int and type(output) is int else None


def _has_content(choice: Mapping[str, Any], *, chat: bool) -> bool:
    if not chat:
        return bool(choice.get("text"))
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))

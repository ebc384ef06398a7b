"""Parses the chunks of a stream of completions or chat, and chooses the parser of a stream by its API. Pure."""

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
from probe.client.result_body import ResultReader
from probe.client.server_times import server_times
from probe.client.stream_reader import StreamReader, unchanged
from probe.client.transcript import Transcript
from probe.client.typed_events import TypedEventReader
from probe.core.foreign_json import check_json
from probe.core.request import Api

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
                self._end_reason(choice.finish_reason)
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
            self._end_reason(reason)
        if isinstance(chunk.get("usage"), dict):
            counts = usage_in(chunk["usage"])
            if counts is None:
                self._give_up(event)
                return
        content = content_of(choice, chat=self._chat) if choice is not None else ""
        if choice is not None:
            self._keep(*text_in(choice, chat=self._chat))
        self._count(event, counts, at_ns, late_ns, content=content, has_choice=choice is not None)


def stream_reader(
    api: Api, hide: Callable[[bytes], bytes] = unchanged, *, keeps_text: bool = False
) -> StreamReader | ResultReader:
    """Return the parser of an answer of this API. `hide`, `keeps_text`: see StreamReader."""
    if not api.generates:
        return ResultReader(api, hide)
    if api in (Api.RESPONSES, Api.MESSAGES):
        return TypedEventReader(hide, keeps_text=keeps_text)
    return ChunkReader(hide, keeps_text=keeps_text, chat=api is Api.CHAT)


def read_stream(reads: Sequence[Read], api: Api) -> Transcript:
    """Parse a whole response at once."""
    reader = stream_reader(api)
    reader.read(reads)
    return reader.transcript(reads[-1] if reads else None)

"""A streamed answer, read after the fact: events of the OpenAI API to a Transcript. Pure.

Kept out of the receive path on purpose: while tokens arrive, the client only stamps and stores bytes,
so parsing one stream cannot delay the timestamps of another.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probe.client.sse import Event
from probe.records import Api, Outcome, RequestSpec, TokenEvent
from probe.words import one_line

_MAX_TOKENS = 10_000_000  # no context is longer; a count beyond it is a fault and not a figure


@dataclass(frozen=True, slots=True)
class Transcript:
    """What one stream said. Token counts are the server's own; None where it gave none."""

    events: tuple[TokenEvent, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False  # the closing [DONE] arrived
    error: str | None = None  # an error event inside the stream
    malformed: str | None = None  # an event that is not what the API promises


def transcript(events: Iterable[Event], api: Api) -> Transcript:
    """Reads the events of one answer. Never raises: what is wrong is in the result.

    An event carries tokens when the server's running usage count grows, or, from a server that sends
    no running count, when it has content (then counted as one token).
    """
    tokens: list[TokenEvent] = []
    prompt = output = finish = None
    counted = 0
    for event in events:
        if event.data == b"[DONE]":
            return Transcript(tuple(tokens), prompt, output, finish, done=True)
        chunk = _object(event.data)
        if chunk is None:
            return Transcript(tuple(tokens), prompt, output, finish, malformed=one_line(event.data))
        if (error := _error(chunk)) is not None:
            return Transcript(tuple(tokens), prompt, output, finish, error=error)
        choice = _first_choice(chunk)
        if choice is not None:
            reason = choice.get("finish_reason")
            finish = one_line(reason, 40) if isinstance(reason, str) else finish
        usage = None
        if isinstance(chunk.get("usage"), dict):
            usage = _usage(chunk["usage"])
            if usage is None:
                return Transcript(tuple(tokens), prompt, output, finish, malformed=one_line(event.data))
            prompt, output = usage
        if choice is None:
            continue
        visible = _has_content(choice, api)
        grown = usage[1] - counted if usage is not None else int(visible)
        if grown > 0 or visible:
            tokens.append(TokenEvent(event.at_ns, max(grown, 0), visible))
            counted += max(grown, 0)
    return Transcript(tuple(tokens), prompt, output, finish)


def judge(spec: RequestSpec, answer: Transcript) -> tuple[Outcome, str | None]:  # noqa: PLR0911 - a list of checks
    """Whether the answer is the one asked for; if not, which outcome and a line that says why.

    A canary that got fewer tokens than it asked for would report a latency for work not done.
    """
    if answer.error is not None:
        return Outcome.SERVER_ERROR, f"error inside the stream: {answer.error}"
    if answer.malformed is not None:
        return Outcome.BROKEN_STREAM, f"an event is not an API chunk: {answer.malformed}"
    if not answer.done:
        return Outcome.BROKEN_STREAM, f"the stream ended without [DONE] after {len(answer.events)} token events"
    if not any(event.visible for event in answer.events):
        return Outcome.WRONG_ANSWER, "the stream held no content"
    if answer.output_tokens is None or answer.prompt_tokens is None:
        return Outcome.WRONG_ANSWER, "the server sent no usage; it has to honour stream_options.include_usage"
    if answer.output_tokens != spec.output_tokens:
        return Outcome.WRONG_ANSWER, f"{answer.output_tokens} output tokens, {spec.output_tokens} were asked for"
    if (carried := sum(event.tokens for event in answer.events)) > answer.output_tokens:
        return Outcome.WRONG_ANSWER, f"the events carried {carried} tokens, the usage says {answer.output_tokens}"
    if answer.finish_reason != "length":
        return Outcome.WRONG_ANSWER, f"finish reason {answer.finish_reason!r}, expected 'length' (ignore_eos is set)"
    if spec.api is Api.COMPLETIONS and answer.prompt_tokens != spec.prompt_tokens:
        return Outcome.WRONG_ANSWER, f"the server counted {answer.prompt_tokens} prompt tokens of {spec.prompt_tokens}"
    return Outcome.OK, None


def error_message(body: bytes) -> str:
    """The server's own words out of an error body, on one line; the start of the body where it has none."""
    chunk = _object(body)
    words = _error(chunk) if chunk is not None else None
    return words or one_line(body)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error(chunk: Mapping[str, Any]) -> str | None:
    """vLLM nests `{"error": {"message"}}`, its API-key check says `{"error": "..."}`, FastAPI `detail`."""
    error = chunk.get("error") or chunk.get("detail") or (chunk.get("object") == "error" and chunk.get("message"))
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(str(message or error))


def _first_choice(chunk: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _usage(usage: Mapping[str, object]) -> tuple[int, int] | None:
    """Prompt and output tokens; None where a server cannot mean what it says."""
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if type(prompt) is not int or type(output) is not int:
        return None
    return (prompt, output) if 0 <= prompt <= _MAX_TOKENS and 0 <= output <= _MAX_TOKENS else None


def _has_content(choice: Mapping[str, Any], api: Api) -> bool:
    if api is Api.COMPLETIONS:
        return bool(choice.get("text"))
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))

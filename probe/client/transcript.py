"""The content of a streamed response, and the judgement whether it is what was requested. Pure."""

from dataclasses import dataclass, field

from probe.client.answer_text import corruption
from probe.core.request import Api, Outcome, RequestSpec, TokenEvents


@dataclass(frozen=True, slots=True)
class Transcript:
    """The content of one stream. Token counts are those of the server; None if it sent none."""

    events: TokenEvents = field(default_factory=TokenEvents)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False  # the closing [DONE] arrived
    error: str | None = None  # an error event inside the stream
    malformed: str | None = None  # an event that does not follow the API
    text: str = ""  # kept only if it is judged
    model: str | None = None  # the model that answered, by its own account


def judge(spec: RequestSpec, answer: Transcript) -> tuple[Outcome, str | None]:  # noqa: PLR0911 - a list of checks
    """Return the outcome of a response, with a line of explanation unless it is what was requested.

    A canary that got fewer tokens than it requested would report a latency for work not done.
    """
    if (ended := _broken(answer)) is not None:
        return ended
    if spec.expects is not None and answer.output_tokens:
        is_cut = answer.finish_reason == "length"
        wrong = corruption(answer.text, spec.expects, answer.output_tokens, is_cut=is_cut)
        return (Outcome.CORRUPT, wrong) if wrong is not None else (Outcome.OK, None)
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


def _broken(answer: Transcript) -> tuple[Outcome, str] | None:
    """Return the outcome of a response that has not come to its end, or None."""
    if answer.error is not None:
        return Outcome.SERVER_ERROR, f"error inside the stream: {answer.error}"
    if answer.malformed is not None:
        return Outcome.BROKEN_STREAM, f"an event is not an API chunk: {answer.malformed}"
    if not answer.is_done:
        return Outcome.BROKEN_STREAM, f"the stream ended without [DONE] after {len(answer.events)} token events"
    return None

"""The content of a streamed response, and the judgement whether it is what was requested. Pure."""

from dataclasses import dataclass, field, replace

from probe.client.answer_text import corruption
from probe.client.api_request import PLAIN_REQUESTS, RequestShape, omit_hint
from probe.core.request import Api, Omittable, Outcome, RequestSpec, ServerTimes, TokenEvents


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of an answer: how many results, the length of the first vector, and why they are corrupt, if so."""

    results: int
    length: int
    corrupt: str | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The content of one stream. Token counts are those of the server; None if it sent none."""

    events: TokenEvents = field(default_factory=TokenEvents)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False  # the closing [DONE], or the last event of its API, arrived
    error: str | None = None  # an error event inside the stream
    malformed: str | None = None  # an event that does not follow the API
    text: str = ""  # kept only if it is judged
    model: str | None = None  # the model that answered, by its own account
    server_times: ServerTimes | None = None
    numbers: Numbers | None = None  # of an answer that is no text

    def completed(self, spec: RequestSpec, shape: RequestShape) -> "Transcript":
        """Return the transcript of a request without `stream_options`: tokens by events, and the prompt as asked."""
        if Omittable.STREAM_OPTIONS not in shape.omitted or self.output_tokens is not None:
            return self
        return replace(self, prompt_tokens=spec.prompt_tokens, output_tokens=sum(self.events.tokens))


def judge(spec: RequestSpec, answer: Transcript, shape: RequestShape = PLAIN_REQUESTS) -> tuple[Outcome, str | None]:  # noqa: PLR0911 - a list of checks
    """Return the outcome of a response, with a line of explanation unless it is what was requested.

    A canary that got fewer tokens than it requested would report a latency for work not done. Without `ignore_eos` the
    model decides where its answer ends; without a usage its length is known by events only.
    """
    if (ended := _broken(spec, answer, shape)) is not None:
        return ended
    if spec.expects is not None and answer.output_tokens:
        is_cut = answer.finish_reason == "length"
        wrong = corruption(answer.text, spec.expects, answer.output_tokens, is_cut=is_cut)
        return (Outcome.CORRUPT, wrong) if wrong is not None else (Outcome.OK, None)
    if answer.events.first_visible is None:
        return Outcome.WRONG_ANSWER, "the stream held no content"
    if answer.output_tokens is None or answer.prompt_tokens is None:
        has_options = spec.api in (Api.COMPLETIONS, Api.CHAT)
        option = f" (stream_options.include_usage){omit_hint(Omittable.STREAM_OPTIONS)}" if has_options else ""
        return Outcome.WRONG_ANSWER, f"the server sent no usage{option}"
    if (wrong := _wrong_length(spec, answer, shape)) is not None:
        return Outcome.WRONG_ANSWER, wrong
    if (carried := sum(answer.events.tokens)) > answer.output_tokens:
        return Outcome.WRONG_ANSWER, f"the events carried {carried} tokens, the usage says {answer.output_tokens}"
    if answer.finish_reason != "length" and not _may_be_short(spec, shape):
        return Outcome.WRONG_ANSWER, f"finish reason {answer.finish_reason!r}, expected 'length' (ignore_eos is set)"
    if spec.api.takes_ids and not shape.is_text and answer.prompt_tokens != spec.prompt_tokens:
        return Outcome.WRONG_ANSWER, f"the server counted {answer.prompt_tokens} prompt tokens of {spec.prompt_tokens}"
    return Outcome.OK, None


def _wrong_length(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> str | None:
    """Return what is wrong with the number of output tokens, or None."""
    count, wanted = answer.output_tokens or 0, spec.output_tokens
    is_short = _may_be_short(spec, shape) or Omittable.STREAM_OPTIONS in shape.omitted
    if count == wanted or (count < wanted and is_short):
        return None
    hint = omit_hint(Omittable.IGNORE_EOS) if count < wanted and answer.finish_reason == "stop" else ""
    return f"{count} output tokens, {wanted} were asked for{hint}"


def _may_be_short(spec: RequestSpec, shape: RequestShape) -> bool:
    """Return whether the model decides where its answer ends: the Messages API has no `ignore_eos`."""
    return Omittable.IGNORE_EOS in shape.omitted or spec.api is Api.MESSAGES


def judge_name(asked: str, answered: str, aliases: frozenset[str] = frozenset()) -> tuple[Outcome, str | None]:
    """Return the outcome of an answer under another name than was asked for, with a line of explanation."""
    if answered in aliases:
        return Outcome.OK, None
    names = f"the model {answered!r} answered, {asked!r} was asked for"
    return Outcome.WRONG_ANSWER, f"{names}; fix model, or the routing"


_LAST_EVENTS = {Api.RESPONSES: "response.completed", Api.MESSAGES: "message_stop"}


def _broken(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> tuple[Outcome, str] | None:
    """Return the outcome of a response that has not come to its end, or None."""
    if answer.error is not None:
        return Outcome.SERVER_ERROR, f"error inside the stream: {answer.error}"
    if answer.malformed is not None:
        return Outcome.BROKEN_STREAM, f"an event is not an API chunk: {answer.malformed}"
    if not answer.is_done and (shape.expects_done or answer.finish_reason is None):
        hint = "; set request.expect_done: false if the server never sends it" if answer.finish_reason else ""
        last = _LAST_EVENTS.get(spec.api, "[DONE]")
        return Outcome.BROKEN_STREAM, f"the stream ended without {last} after {len(answer.events)} token events{hint}"
    return None

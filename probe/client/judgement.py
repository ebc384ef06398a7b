"""Judge an answer: `judge` by its content, `excused` by what Kneewatch's own delay explains. Pure.

In: a request and the Transcript of its answer. Out: an outcome, with a line of explanation unless it is OK. A canary
(`measure` of monitor/canary.py) asks both, then whether the model that answered has other names, then its question.

Text is judged only if the configuration asks a question (`canary.known_answer`). The text of other requests cannot be:
their prompts are random tokens and their answers go on after the model's end of text, so a healthy model repeats itself
there, writes only special tokens, or ends inside a character.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from probe.client.api_request import FORMS, PLAIN_REQUESTS, RequestShape, omit_hint
from probe.client.refusal import Refusal
from probe.core import latency
from probe.core import objectives as slo
from probe.core.objectives import Objectives
from probe.core.request import Api, Omittable, Outcome, RequestRecord, RequestSpec, ServerTimes, TokenEvents

# An outcome, and a line of explanation unless it is OK.
Judgement = tuple[Outcome, str | None]

# The answer to a question is short. No correct one is a piece of up to 16 characters eight times in a row.
_LONGEST_REPEATED, _REPEATS = 16, 8
_REPLACEMENT = "\ufffd"
# A longer answer is judged by its begin.
_MAX_CHARACTERS = 10_000
# The event loop stands still meanwhile.
_EXPRESSION_S = 0.02
_SLOW_EXPRESSION = (
    f"canary.known_answer.expect has not decided within {1000 * _EXPRESSION_S:g} ms; write it without repetition of"
    " what repeats, as in (a+)+"
)
# A failure may be the client's if it did not run just before: what arrived earlier was read once it ran again. The
# failure is known within this many hundredths of a second.
_LAST_SAMPLES = 10
# Finish reasons of an answer that the server gave up: vLLM's for a failed transfer of KV blocks, and for an abort as it
# pauses (vllm #57082); SGLang's, Dynamo's and gateways'; DeepSeek's, which is short of resources.
_FAILED = re.compile(r"error|abort|cancel|time.?d?.?out|fail|insufficient|interrupted|preempted", re.IGNORECASE)
# Those of a model that ends by itself. Others, such as a filter's, end an answer whatever was asked for.
_OWN_ENDS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "tool_use", "function_call")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of an answer: how many results, the length of the first vector, and why they are corrupt, if so."""

    results: int
    length: int
    corrupt: str | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The content of one answer. Token counts are the server's; None if it sent none."""

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
    error_status: int | None = None  # the HTTP status that the error states
    instead: str = ""  # what the body holds that is no event stream

    @property
    def refusal(self) -> Refusal:
        """Return the error as a refusal."""
        return Refusal.in_stream(self.error or "", self.error_status)

    def completed(self, spec: RequestSpec, shape: RequestShape) -> "Transcript":
        """Return the transcript of a request without `stream_options`: tokens by events, and the prompt as asked."""
        if Omittable.STREAM_OPTIONS not in shape.omitted or self.output_tokens is not None:
            return self
        return replace(self, prompt_tokens=spec.prompt_tokens, output_tokens=sum(self.events.tokens))


def judge(
    spec: RequestSpec,
    answer: Transcript,
    shape: RequestShape = PLAIN_REQUESTS,
    *,
    content_type: str = "text/event-stream",
    model: str = "",
    answered_as: str | None = None,
    aliases: frozenset[str] | None = None,
) -> Judgement:
    """Return the outcome of a response with status 200.

    `answered_as`: the model that answered, if it is not `model`. `aliases`: other names of `model`; None: the caller
    judges names.
    """
    if not spec.api.generates:
        outcome, detail = _judge_numbers(spec, answer, shape)
    elif "event-stream" not in content_type and not answer.is_done and answer.error is None:
        kind = content_type.partition(";")[0][:60] or "no content type"
        said = f": {answer.instead}" if answer.instead else ""
        outcome, detail = Outcome.BROKEN_STREAM, f"the answer is {kind!r}, expected an event stream{said}"
    else:
        outcome, detail = _judge_stream(spec, answer, shape)
    if outcome is Outcome.OK and answered_as is not None and aliases is not None:
        return judge_name(model, answered_as, aliases)
    return outcome, detail


def judge_name(asked: str, answered: str, aliases: frozenset[str] = frozenset()) -> Judgement:
    """Return the outcome of an answer under another name than was asked for, with a line of explanation."""
    if answered in aliases:
        return Outcome.OK, None
    names = f"the model {answered!r} answered, {asked!r} was asked for"
    return Outcome.WRONG_ANSWER, f"{names}; fix model, or the routing"


def excused(record: RequestRecord, lag: Sequence[float], objectives: Objectives | None = None) -> RequestRecord:
    """Return the record, as client-bound if Kneewatch's own delay may explain what is wrong with it.

    `lag`: samples (s) of how late the system ran this process meanwhile: it was stopped, or its virtual machine frozen.
    `objectives`: judge latencies too.
    """
    waking_s = max(lag, default=0.0)
    if objectives is not None and slo.may_be_client_delay(record, objectives, waking_s):
        late_ms = 1000 * (max(latency.ttft_error_s(record) or 0.0, latency.stall_error_s(record)) + waking_s)
        words = f"a latency missed its objective, but Kneewatch itself was up to {late_ms:.0f} ms late"
        return replace(record, outcome=Outcome.CLIENT_BOUND, detail=words)
    stopped_s = max(lag[-_LAST_SAMPLES:], default=0.0)
    if not slo.may_be_client_stop(record, stopped_s):
        return record
    words = f"{record.detail or record.outcome.value}, but Kneewatch itself did not run for {stopped_s:.1f} s"
    return replace(record, outcome=Outcome.CLIENT_BOUND, detail=words)


def _judge_stream(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> Judgement:  # noqa: PLR0911 - a list of checks
    """Judge tokens. A canary that got fewer than it requested would report a latency for work not done.

    Without `ignore_eos` the model decides where its answer ends; without a usage its length is known by events only.
    """
    if (ended := _broken(spec, answer, shape)) is not None:
        return ended
    if spec.expects is not None and answer.output_tokens:
        is_cut = answer.finish_reason == "length"
        try:
            wrong = corruption(answer.text, spec.expects, answer.output_tokens, is_cut=is_cut)
        except TimeoutError:
            return Outcome.CLIENT_BOUND, _SLOW_EXPRESSION
        return (Outcome.CORRUPT, wrong) if wrong is not None else (Outcome.OK, None)
    is_counted = Omittable.STREAM_OPTIONS not in shape.omitted
    if not answer.events or (answer.events.first_visible is None and not is_counted):
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
        return (
            Outcome.WRONG_ANSWER,
            f"finish reason {answer.finish_reason!r}, expected 'length' (ignore_eos is set){_end_hint(answer)}",
        )
    if spec.api.takes_ids and not shape.is_text and answer.prompt_tokens != spec.prompt_tokens:
        return Outcome.WRONG_ANSWER, f"the server counted {answer.prompt_tokens} prompt tokens of {spec.prompt_tokens}"
    return Outcome.OK, None


def _wrong_length(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> str | None:
    """Return what is wrong with the number of output tokens, or None."""
    count, wanted = answer.output_tokens or 0, spec.output_tokens
    is_short = _may_be_short(spec, shape) or Omittable.STREAM_OPTIONS in shape.omitted
    if count == wanted or (count < wanted and is_short):
        return None
    hint = _end_hint(answer) if sum(answer.events.tokens) <= count < wanted else ""
    return f"{count} output tokens, {wanted} were asked for{hint}"


def _end_hint(answer: Transcript) -> str:
    """Return how to accept an answer that ended by itself, as the end of a sentence."""
    is_own_end = answer.finish_reason is None or answer.finish_reason.lower() in _OWN_ENDS
    return omit_hint(Omittable.IGNORE_EOS) if is_own_end else ""


def _may_be_short(spec: RequestSpec, shape: RequestShape) -> bool:
    """Return whether the model decides where its answer ends: the Messages API has no `ignore_eos`."""
    return Omittable.IGNORE_EOS in shape.omitted or spec.api is Api.MESSAGES


def _broken(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> tuple[Outcome, str] | None:
    """Return the outcome of a response that has not come to its end, or None."""
    if answer.error is not None:
        return answer.refusal.outcome, f"error inside the stream: {answer.error}"
    if answer.malformed is not None:
        return Outcome.BROKEN_STREAM, f"an event is not an API chunk: {answer.malformed}"
    if answer.finish_reason is not None and _FAILED.search(answer.finish_reason):
        return Outcome.SERVER_ERROR, f"the server ended the answer with finish reason {answer.finish_reason!r}"
    if not answer.is_done and (shape.expects_done or answer.finish_reason is None):
        hint = "; set request.expect_done: false if the server never sends it" if answer.finish_reason else ""
        last = FORMS[spec.api].last_event
        said = f"; it holds: {answer.instead}" if answer.instead else hint
        return Outcome.BROKEN_STREAM, f"the stream ended without {last} after {len(answer.events)} token events{said}"
    return None


def _judge_numbers(spec: RequestSpec, answer: Transcript, shape: RequestShape) -> Judgement:
    """Judge numbers: a server that computes NaN or zeros answers 200."""
    found = answer.numbers
    if answer.error is not None:
        return answer.refusal.outcome, f"error in the answer: {answer.error}"
    if found is None:
        return Outcome.BROKEN_STREAM, f"the answer is not a result of {spec.api.value}: {answer.malformed}"
    corrupt = found.corrupt
    if found.results != 1:
        corrupt = f"{found.results} results, 1 was asked for"
    elif spec.api is Api.EMBEDDINGS and shape.vector_length not in (None, found.length):
        corrupt = f"the vector has {found.length} numbers, request.vector_length is {shape.vector_length}"
    if corrupt is not None:
        return Outcome.CORRUPT, corrupt
    if spec.api.takes_ids and not shape.is_text and answer.prompt_tokens not in (None, spec.prompt_tokens):
        return Outcome.WRONG_ANSWER, f"the server counted {answer.prompt_tokens} prompt tokens of {spec.prompt_tokens}"
    return Outcome.OK, None


def corruption(text: str, expects: str, tokens: int, *, is_cut: bool) -> str | None:
    """Return why the text is corrupt, or None. `tokens`: as the server counted; `is_cut`: at the limit of tokens.

    The text itself is not in the reason, because the reason is logged. Raises TimeoutError if the expression takes too
    long: nested repetition tries more ways than there are atoms.
    """
    import regex  # noqa: PLC0415 - the configuration has imported it

    text = text[:_MAX_CHARACTERS]
    if not text.strip():
        return f"the answer to the question has no text, and the server counted {tokens} tokens"
    # An answer that is cut may end inside a character.
    if _REPLACEMENT in (text.rstrip(_REPLACEMENT) if is_cut else text):
        return "the answer to the question contains U+FFFD, which stands for bytes that are not text"
    if (period := _period(text.strip())) is not None:
        return f"the answer to the question is {period} characters repeated over all of its {tokens} tokens"
    if regex.search(expects, text, timeout=_EXPRESSION_S) is None:
        cut = f", and was cut after {tokens} tokens" if is_cut else ""
        return f"the answer to the question does not match canary.known_answer.expect{cut}"
    return None


def _period(text: str) -> int | None:
    """Return the length of the few characters that the text repeats; None if it does not. The last ones may be cut.

    Not a regular expression: its time would grow with the square of the text.
    """
    for size in range(1, _LONGEST_REPEATED + 1):
        if len(text) > size * (_REPEATS - 1) and text[size:] == text[:-size]:
            return size
    return None

"""Requests to servers that do not take all fields of vLLM's API, and how their answers are judged."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile_server import DONE, STREAM_HEAD, Asked, Script, chunked, event, hostile, whole
from plain_records import spec

from probe.client.api_request import FORMS, PLAIN_REQUESTS, RequestShape, body_of
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.latency import tpot_s
from probe.core.request import Api, Omittable, Outcome, RequestRecord, RequestSpec, Traffic
from probe.mock_server import forms as mock_server

CLOCK = SystemClock()
SPEC = spec(8, 3)
# What Hugging Face's `transformers serve` takes; it answers 422 to any other field.
FEW_FIELDS = {"model", "prompt", "messages", "max_tokens", "temperature", "stream"}
OMITS = frozenset({Omittable.IGNORE_EOS, Omittable.STREAM_OPTIONS})


def test_an_api_has_a_row_in_the_client_the_mock_server_and_the_docs() -> None:
    assert FORMS.keys() == set(Api)
    assert {form.path for form in FORMS.values()} == {*mock_server.FORMS, *mock_server.RESULT_FORMS}
    page = (Path(__file__).parents[3] / "docs/engines.md").read_text()
    for api, form in FORMS.items():
        assert re.search(rf"^\|.*`{api.value}`.*`{form.path}`", page, re.MULTILINE), api


def picky(*texts: str, finish: str = "stop", usage: dict[str, int] | None = None) -> Any:
    """Return a server that refuses what it does not know, and streams these texts."""

    def answer(asked: Asked) -> Script:
        if unknown := set(asked.json()) - FEW_FIELDS:
            return [whole(422, {"detail": f"Unexpected fields in the request: {sorted(unknown)}"})]
        choices = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
        chunks = [event({"choices": [choice]}) for choice in choices]
        last = {"choices": [{"index": 0, "text": "", "finish_reason": finish}], **({"usage": usage} if usage else {})}
        paced: list[bytes | float] = [part for chunk in chunks for part in (chunked(chunk, end=False), 0.02)]
        return [STREAM_HEAD, *paced, chunked(event(last), DONE)]

    return answer


def asked_of(script: Any, shape: RequestShape, what: RequestSpec = SPEC) -> RequestRecord:
    async def main() -> RequestRecord:
        async with hostile(script) as server:
            where = Endpoint("a", server.base_url, verify=False, shape=shape)
            async with Client(where, CLOCK, 2.0) as to:
                return await to.send(what, "tiny", Traffic.CANARY, CLOCK.monotonic_ns())

    return asyncio.run(main())


@pytest.mark.fault(
    "SH1",
    "a server refuses `ignore_eos`, `stream_options` or token ids",
    area="Truth",
    users_see="the failed canary's line has the server's words and the key to set",
    stays="-",
)
def test_a_refused_field_is_named_with_the_key_that_omits_it() -> None:
    record = asked_of(picky("a"), PLAIN_REQUESTS)
    assert record.outcome is Outcome.BAD_REQUEST
    assert str(record.detail).startswith("HTTP 422: Unexpected fields in the request: ['ignore_eos', 'stream_options']")
    assert str(record.detail).endswith(
        "; set request.omit: [ignore_eos, stream_options] if the server does not know them"
    )


@pytest.mark.parametrize("texts", [("a", "b", "c"), ("a", "b")])
def test_without_these_fields_an_answer_is_judged_by_what_came(texts: Sequence[str]) -> None:
    record = asked_of(picky(*texts), RequestShape(omitted=OMITS))
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert (record.output_tokens, record.prompt_tokens) == (len(texts), SPEC.prompt_tokens), "by events, and as asked"
    assert tpot_s(record) is not None


def test_without_ignore_eos_alone_the_usage_counts() -> None:
    shape = RequestShape(omitted=frozenset({Omittable.IGNORE_EOS}))
    usage = {"prompt_tokens": 8, "completion_tokens": 2}

    def answer(asked: Asked) -> Script:
        assert asked.json()["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        first = {"choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}
        return [STREAM_HEAD + chunked(event(first), event({"choices": [], "usage": usage}), DONE)]

    record = asked_of(answer, shape)
    assert (record.outcome, record.output_tokens) == (Outcome.OK, 2)


@pytest.mark.fault(
    "SH2",
    "a server leaves out what it was not asked for: exact lengths, usage, `[DONE]`",
    area="Truth",
    users_see="nothing, where the target's `request` says so; else the canary fails and names the key",
    stays="an answer that is empty, too long or has no end still fails",
)
def test_what_is_asked_for_is_still_the_most_that_may_come() -> None:
    record = asked_of(picky("a", "b", "c", "d"), RequestShape(omitted=OMITS))
    assert (record.outcome, record.detail) == (Outcome.WRONG_ANSWER, "4 output tokens, 3 were asked for")
    assert asked_of(picky(), RequestShape(omitted=OMITS)).outcome is Outcome.WRONG_ANSWER


def test_an_answer_that_ends_early_or_without_usage_names_the_key() -> None:
    def answer(usage: dict[str, Any]) -> Script:
        choice = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], **usage}
        return [STREAM_HEAD + chunked(event(choice), DONE)]

    short = asked_of(answer({"usage": {"prompt_tokens": 8, "completion_tokens": 1}}), PLAIN_REQUESTS)
    assert short.detail == (
        "1 output tokens, 3 were asked for; set request.omit: [ignore_eos] if the server does not know it"
    )
    unused = asked_of(answer({}), PLAIN_REQUESTS)
    assert str(unused.detail).endswith("set request.omit: [stream_options] if the server does not know it")


@pytest.mark.fault("SH1")
def test_prompts_as_text_are_words_of_about_the_same_length() -> None:
    ids = body_of(SPEC, "m", PLAIN_REQUESTS)["prompt"]
    text = body_of(SPEC, "m", RequestShape(is_text=True))["prompt"]
    assert len(text.split()) == len(ids) == 8
    other = body_of(spec(9, 3), "m", RequestShape(is_text=True))["prompt"]
    assert text != other

    def answer(asked: Asked) -> Script:
        if not isinstance(asked.json()["prompt"], str):
            why = "Unmapped prompt format. Your prompt is neither a list of strings nor a string. prompt=[[1, 2"
            return [whole(500, {"error": {"message": f"litellm.APIConnectionError: {why}"}})]
        usage = {"prompt_tokens": 11, "completion_tokens": 3}
        last = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": usage}
        return [STREAM_HEAD + chunked(event(last), DONE)]

    refused = asked_of(answer, PLAIN_REQUESTS)
    assert refused.outcome is Outcome.SERVER_ERROR
    assert str(refused.detail).endswith("; set request.prompt: text if the server takes no token ids")
    assert not PLAIN_REQUESTS.hint(Api.CHAT, str(refused.detail)), "chat sends no ids"
    good = asked_of(answer, RequestShape(is_text=True))
    assert (good.outcome, good.prompt_tokens) == (Outcome.OK, 11)


def test_further_fields_are_merged_and_none_that_is_set_already() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "lora": "a"}
    body = body_of(spec(8, 3, Api.CHAT), "m", RequestShape(extra=extra))
    assert extra.items() <= body.items()
    warm = RequestShape(extra={"temperature": 0.7, "top_p": 0.9})
    assert body_of(spec(8, 3), "m", warm)["temperature"] == 0.7
    assert body_of(replace(spec(8, 3), expects="Paris"), "m", warm)["temperature"] == 0
    assert body.keys() == body_of(spec(8, 3, Api.CHAT), "m", PLAIN_REQUESTS).keys() | extra.keys()


def test_a_usage_that_counts_at_the_end_only_can_be_asked_for() -> None:
    omitted = frozenset({Omittable.CONTINUOUS_USAGE_STATS, Omittable.TEMPERATURE})
    body = body_of(SPEC, "m", RequestShape(omitted=omitted))
    assert body["stream_options"] == {"include_usage": True}
    assert "temperature" not in body


@pytest.mark.parametrize("finish", ["length", None])
@pytest.mark.fault("SH2")
def test_a_server_that_never_sends_done_can_be_watched(finish: str | None) -> None:
    """Hugging Face's `transformers serve` ends its streams with the reason and the usage."""
    usage = {"prompt_tokens": 8, "completion_tokens": 3}
    last = {"choices": [{"index": 0, "text": "x", "finish_reason": finish}], "usage": usage}
    script = [STREAM_HEAD + chunked(event(last))]
    strict, lenient = asked_of(script, PLAIN_REQUESTS), asked_of(script, RequestShape(expects_done=False))
    assert strict.outcome is Outcome.BROKEN_STREAM
    hint = "; set request.expect_done: false if the server never sends it"
    assert strict.detail == "the stream ended without [DONE] after 1 token events" + (hint if finish else "")
    assert lenient.outcome is (Outcome.OK if finish else Outcome.BROKEN_STREAM)


@pytest.mark.parametrize("api", [api for api in Api if api.generates])
def test_only_chat_has_another_name_for_its_limit(api: Api) -> None:
    usual = body_of(spec(4, 3, api), "m", PLAIN_REQUESTS)
    other = body_of(spec(4, 3, api), "m", RequestShape(chat_limit="max_completion_tokens"))
    if api is Api.CHAT:
        usual["max_completion_tokens"] = usual.pop("max_tokens")
    assert other == usual


@pytest.mark.parametrize(
    ("refusal", "is_named"),
    [
        ("HTTP 500: Your prompt is neither a list of strings nor a string.", True),
        ("HTTP 422: body.input.str: Input should be a valid string", True),
        ("HTTP 422: data did not match any variant of untagged enum Prompt", True),
        ("HTTP 422: body.user: Input should be a valid string", False),
        ("HTTP 500: Internal Server Error", False),
    ],
)
def test_only_a_refusal_of_the_prompt_asks_for_text(refusal: str, is_named: bool) -> None:  # noqa: FBT001 - a parameter
    for api in (Api.COMPLETIONS, Api.EMBEDDINGS):
        assert ("request.prompt: text" in PLAIN_REQUESTS.hint(api, refusal)) is is_named
        assert not RequestShape(is_text=True).hint(api, refusal)

"""A streamed answer, read after the fact; among others the transcripts recorded from vLLM 0.32."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import spec

from probe.client.api_json import error_message
from probe.client.exchange import read_answer
from probe.client.judgement import Transcript, judge
from probe.client.response_buffer import Read
from probe.core.request import Api, Outcome, ServerTimes, TokenEvents

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm-0.32"
OK = (Outcome.OK, None)


def recorded(name: str) -> tuple[str, list[Read]]:
    """Return head and body of a recorded answer; each chunk of the chunked body is one read."""
    answer = (GOLDEN / f"{name}.txt").read_text().split("-" * 40 + "\n")[1]
    head, _, body = answer.partition("\n\n")
    chunks = re.findall(r"(?m)^[0-9a-f]+\n((?:event: .*\n)?data: .*\n\n)\n", body)
    return head, [(i, i, chunk.encode()) for i, chunk in enumerate(chunks)]


def said(name: str, api: Api) -> Transcript:
    return read_answer(recorded(name)[1], api)


def chunk(text: str | None = "x", finish: str | None = None, usage: object = None, **others: Any) -> dict[str, Any]:
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}]
    return {"choices": choices, **({} if usage is None else {"usage": usage}), **others}


def delta(finish: str | None = None, usage: object = None, **content: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": content, "finish_reason": finish}
    return {"choices": [choice], **({} if usage is None else {"usage": usage})}


def usage(output: Any, prompt: Any = 8) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output}


def read(*chunks: Any, api: Api = Api.COMPLETIONS, done: bool = True) -> Transcript:
    data = [c if isinstance(c, bytes) else json.dumps(c).encode() for c in chunks] + [b"[DONE]"] * done
    return read_answer([(i, i, b"data: " + d + b"\n\n") for i, d in enumerate(data)], api)


def counts(answer: Transcript) -> list[tuple[int, int, bool]]:
    events = answer.events
    visible = range(len(events) if events.first_visible is None else events.first_visible, len(events))
    return [(at, tokens, i in visible) for i, (at, tokens) in enumerate(zip(events.at_ns, events.tokens, strict=True))]


# --- What the real server says -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["completions-stream", "completions-stream-usage", "completions-stream-continuous"])
def test_a_recorded_completion_has_three_tokens(name: str) -> None:
    answer = said(name, Api.COMPLETIONS)
    assert counts(answer) == [(0, 1, True), (1, 1, True), (2, 1, True)]
    assert (answer.is_done, answer.finish_reason, answer.error, answer.malformed) == (True, "length", None, None)
    asked_for_usage = name != "completions-stream"
    assert (answer.prompt_tokens, answer.output_tokens) == ((8, 3) if asked_for_usage else (None, None))
    verdict = judge(spec(8, 3), answer)
    assert verdict == OK if asked_for_usage else verdict[0] is Outcome.WRONG_ANSWER


@pytest.mark.parametrize("name", ["chat-stream", "chat-stream-usage", "chat-stream-continuous"])
def test_the_role_of_a_recorded_chat_is_no_token(name: str) -> None:
    answer = said(name, Api.CHAT)
    assert counts(answer) == [(1, 1, True), (2, 1, True), (3, 1, True)]
    assert answer.is_done
    assert (answer.prompt_tokens, answer.output_tokens) == ((14, 3) if name != "chat-stream" else (None, None))
    if name != "chat-stream":
        assert judge(spec(5, 3, Api.CHAT), answer) == OK


def test_one_recorded_token() -> None:
    assert counts(said("completions-one-token", Api.COMPLETIONS)) == [(0, 1, True)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("completions-unknown-model", "The model `nope` does not exist. Valid aliases: tiny."),
        ("completions-get", "Method Not Allowed"),
        ("not-found", "Not Found"),
        ("completions-not-an-object", "1 validation error: {'type': 'model_attributes_type'"),
    ],
)
def test_recorded_errors_are_said_in_the_servers_words(name: str, words: str) -> None:
    body = (GOLDEN / f"{name}.txt").read_text().split("-" * 40 + "\n")[1].partition("\n\n")[2]
    assert error_message(body.encode()).startswith(words)


# --- Counting tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        ([{"content": "a"}, {"content": "b"}], (0, 0)),
        ([{"reasoning": "hm"}, {"reasoning": "so"}, {"content": "a"}], (0, 2)),
        ([{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}], (0, 1)),
        ([{"reasoning": "hm"}, {"reasoning": "so"}], (0, None)),
        ([{"reasoning": ["hm"]}, {"content": ["a"]}], (0, 1)),  # of other types than the API says
    ],
)
def test_reasoning_is_a_first_token_and_no_first_answer(answers: list[dict[str, Any]], first: object) -> None:
    events = read(*(delta(**each) for each in answers), api=Api.CHAT).events
    assert (events.first_visible, events.first_answer) == first


def test_a_completion_is_all_answer() -> None:
    assert read(chunk("a"), chunk("b")).events.first_answer == 0


@pytest.mark.fault(
    "FA66",
    "A token count that falls, or that no server can mean",
    area="Foreign answers",
    users_see="the event counts no negative token; an impossible count is ignored",
    stays="series stay finite",
)
def test_a_count_that_falls_is_no_negative_token() -> None:
    answer = read(chunk("a", usage=usage(5)), chunk("b", usage=usage(2)), chunk("c", "length", usage(6)))
    assert list(answer.events.tokens) == [5, 0, 1]


def test_nothing_counts_after_done() -> None:
    answer = read(chunk("a", "length", usage(1)), b"[DONE]", chunk("b", usage=usage(2)), done=False)
    assert answer.is_done
    assert answer.output_tokens == 1


# --- Judging -------------------------------------------------------------------------------------------------


def complete(**others: Any) -> Transcript:
    good = read(chunk("a", usage=usage(1)), chunk("b", usage=usage(2)), chunk("c", "length", usage(3)))
    values = {name: getattr(good, name) for name in Transcript.__dataclass_fields__}
    return Transcript(**{**values, **others})


def test_the_answer_asked_for_is_ok() -> None:
    assert judge(spec(8, 3), complete()) == OK


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ({"error": "EngineDeadError"}, Outcome.SERVER_ERROR, "EngineDeadError"),
        ({"malformed": "<html>"}, Outcome.BROKEN_STREAM, "<html>"),
        ({"is_done": False}, Outcome.BROKEN_STREAM, "DONE"),
        ({"events": TokenEvents()}, Outcome.WRONG_ANSWER, "no content"),
        ({"output_tokens": None}, Outcome.WRONG_ANSWER, "include_usage"),
        ({"prompt_tokens": None}, Outcome.WRONG_ANSWER, "include_usage"),
        ({"output_tokens": 2}, Outcome.WRONG_ANSWER, "2 output tokens, 3 were asked for"),
        ({"output_tokens": 4}, Outcome.WRONG_ANSWER, "4 output tokens"),
        ({"finish_reason": "stop"}, Outcome.WRONG_ANSWER, "finish reason 'stop'"),
        ({"finish_reason": None}, Outcome.WRONG_ANSWER, "finish reason"),
        ({"prompt_tokens": 7}, Outcome.WRONG_ANSWER, "7 prompt tokens of 8"),
    ],
)
def test_anything_else_is_named(fault: dict[str, Any], outcome: Outcome, words: str) -> None:
    verdict, detail = judge(spec(8, 3), complete(**fault))
    assert verdict is outcome
    assert words in str(detail)


def test_the_length_of_a_chat_prompt_is_the_servers_business() -> None:
    assert judge(spec(8, 3, Api.CHAT), complete(prompt_tokens=31)) == OK


@pytest.mark.parametrize("prompt", [-5, True, 10**30])
@pytest.mark.fault("FA66")
def test_a_count_that_no_server_can_mean_is_refused(prompt: Any) -> None:
    """It would go into a counter: a negative one raises there, a huge one is there for ever."""
    answer = read(chunk("a", "length", usage(1, prompt)))
    assert judge(spec(8, 1, Api.CHAT), answer)[0] is not Outcome.OK
    assert answer.prompt_tokens is None or 0 <= answer.prompt_tokens < 10**9


def test_events_that_carry_more_tokens_than_the_answer_are_refused() -> None:
    answer = read(chunk("a", usage=usage(10**6)), chunk("b", "length", usage(2)))
    assert judge(spec(8, 2), answer)[0] is not Outcome.OK


def test_a_finish_reason_is_a_word() -> None:
    for strange in ({"a": 1}, ["length"], 5, True, "x" * 5000, "a\nb\x1b[31m"):
        answer = read({"choices": [{"text": "a", "finish_reason": strange}], "usage": usage(1)})
        _, detail = judge(spec(8, 1), answer)
        assert answer.finish_reason is None or isinstance(answer.finish_reason, str)
        assert len(str(detail)) < 400
        assert len(str(answer.finish_reason)) < 400


# --- Hostile content -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"<html>", b"null", b"5", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000, b"9" * 10_000, b"NaN", b"\x00"],
)
def test_an_event_that_is_not_an_object_is_malformed_and_ends_the_stream(data: bytes) -> None:
    answer = read(chunk("a"), data, chunk("b"))
    assert answer.malformed is not None
    assert len(answer.events) == 1
    assert judge(spec(), answer)[0] is Outcome.BROKEN_STREAM


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"error": {"message": "EngineCore died", "code": 500}}, "EngineCore died"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"error": {"code": 500}}, "500"),
        ({"error": ["a"]}, "a"),
        ({"error": 5}, "5"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"object": "error", "message": "old style"}, "old style"),
        ({"error": {"message": "two\nlines\x1b[31m\x00"}}, "two lines?[31m?"),
        ({"error": {"message": "\ud800 half a pair"}}, "half a pair"),
        ({"error": {"message": "right\u202eleft"}}, "right"),
    ],
)
def test_an_error_inside_the_stream_is_said_in_one_printable_line(event: dict[str, Any], words: str) -> None:
    for text in (read(chunk("a"), event).error, error_message(json.dumps(event).encode())):
        assert text is not None
        assert words in text
        assert text.isprintable()
        assert len(text) <= 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda deeper: st.lists(deeper, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "text", "delta", "content", "finish_reason", "usage", "prompt_tokens",
                         "completion_tokens", "error", "message", "detail", "object"]), deeper, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(JSON | st.binary(max_size=20), max_size=5), st.sampled_from(Api))
def test_no_answer_raises(chunks: list[Any], api: Api) -> None:
    answer = read(*chunks, api=api)
    outcome, detail = judge(spec(8, 3, api), answer)
    assert (outcome is Outcome.OK) == (detail is None)
    assert detail is None or (detail.isprintable() and len(detail) < 400)
    assert all(tokens >= 0 for tokens in answer.events.tokens)


@given(st.binary(max_size=2000))
def test_any_body_makes_one_short_printable_line(body: bytes) -> None:
    text = error_message(body)
    assert text == "" or text.isprintable()
    assert len(text) <= 200


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20))
def test_the_tokens_of_the_events_are_those_of_the_usage(sizes: list[int]) -> None:
    total, chunks = 0, []
    for i, size in enumerate(sizes):
        total += size
        chunks.append(chunk("x" * size, "length" if i == len(sizes) - 1 else None, usage(total)))
    answer = read(*chunks, chunk(None, usage=usage(total)))
    assert list(answer.events.tokens) == sizes
    assert judge(spec(8, total), answer) == OK


# --- The server's own times ----------------------------------------------------------------------------------

TIMES = {"time_to_first_token_ms": 40.5, "generation_time_ms": 20.0, "queue_time_ms": 7.25, "mean_itl_ms": 10.0}


def timed(metrics: object) -> Transcript:
    """Return an answer with that object in its last chunk, as of --enable-per-request-metrics."""
    return read(
        chunk("a", usage=usage(1)), chunk("b", "length", usage(2)), chunk(None, usage=usage(2), metrics=metrics)
    )


def test_the_servers_own_times_are_those_of_the_last_chunk() -> None:
    """vLLM's time_to_first_token_ms begins when the request is scheduled: it is the prefill."""
    assert timed(TIMES).server_times == ServerTimes(queue_s=0.00725, prefill_s=0.0405)


def test_the_servers_times_are_read_beside_fields_of_another_type() -> None:
    odd = {"usage": {"prompt_tokens": "8", "completion_tokens": "2"}, "metrics": TIMES}
    assert read(chunk(None, **odd)).server_times == ServerTimes(queue_s=0.00725, prefill_s=0.0405)


@pytest.mark.parametrize(
    "metrics",
    [
        None, {}, [], "fast", 3, {**TIMES, "queue_time_ms": None}, {**TIMES, "queue_time_ms": -1},
        {**TIMES, "queue_time_ms": "7"}, {**TIMES, "time_to_first_token_ms": 1e300},
        {**TIMES, "time_to_first_token_ms": [1]}, {"speculative_decoding": {"num_spec_steps": 3}},
    ],
)  # fmt: skip
@pytest.mark.fault(
    "PL3",
    "An answer with a request's times that cannot be, or of another type",
    area="Foreign answers",
    users_see="the canary without a split of its TTFT",
    stays="the canary counts as any other",
)
def test_times_that_cannot_be_are_none_and_do_no_harm(metrics: object) -> None:
    answer = timed(metrics)
    assert answer.server_times is None
    assert judge(spec(8, 2), answer) == OK

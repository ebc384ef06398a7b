"""Streams of the Responses and the Messages API: what is a token, when it came, and how an answer ends."""

import json
from typing import Any

import pytest
from plain_records import record, spec

from probe.client.exchange import answer_reader, read_answer
from probe.client.judgement import Transcript, judge
from probe.client.response_buffer import Read
from probe.core import latency
from probe.core.request import Api, Outcome, ServerTimes

MS = 1_000_000
BOTH = pytest.mark.parametrize("api", [Api.RESPONSES, Api.MESSAGES])
CREATED = {"type": "response.created", "response": {"model": "tiny", "status": "in_progress", "usage": None}}
STARTED = {"type": "message_start", "message": {"model": "tiny", "usage": {"input_tokens": 14, "output_tokens": 1}}}


def text(api: Api, words: str) -> dict[str, Any]:
    if api is Api.RESPONSES:
        return {"type": "response.output_text.delta", "delta": words}
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}}


def thought(api: Api, words: str) -> dict[str, Any]:
    if api is Api.RESPONSES:
        return {"type": "response.reasoning_text.delta", "delta": words}
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": words}}


def ending(api: Api, tokens: Any, *, prompt: Any = 14, is_cut: bool = True, **others: Any) -> list[dict[str, Any]]:
    """Return the last events: those with the usage, and the very last one."""
    usage = {"input_tokens": prompt, "output_tokens": tokens, **others}
    if api is Api.RESPONSES:
        why = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        said = {"model": "tiny", "usage": usage, **(why if is_cut else {"status": "completed"})}
        return [{"type": "response.completed", "response": said}]
    reason = "max_tokens" if is_cut else "end_turn"
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]


def begin(api: Api) -> dict[str, Any]:
    return CREATED if api is Api.RESPONSES else STARTED


def reads(*events: tuple[int, Any]) -> list[Read]:
    """Return events as reads, each with its time in milliseconds."""
    return [
        (at * MS, at * MS - 1, f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if isinstance(event, dict)
        else (at * MS, at * MS - 1, event)
        for at, event in events
    ]


def said(api: Api, *events: tuple[int, Any]) -> Transcript:
    return read_answer(reads(*events), api)


def tokens(answer: Transcript) -> list[tuple[int, int]]:
    return [(at // MS, count) for at, count in zip(answer.events.at_ns, answer.events.tokens, strict=True)]


@BOTH
@pytest.mark.fault(
    "TR20",
    "A stream sends events before its first token, as the Responses API does",
    area="Truth",
    users_see="TTFT is that of the first text",
    stays="-",
)
def test_the_events_before_the_text_are_no_tokens(api: Api) -> None:
    last = ending(api, 3)
    answer = said(
        api,
        (1, begin(api)),
        (90, text(api, "a")),
        (100, text(api, "b")),
        (110, text(api, "c")),
        *((111, e) for e in last),
    )
    assert tokens(answer) == [(90, 1), (100, 1), (110, 1)]
    assert answer.events.first_visible == answer.events.first_answer == 0
    assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (14, 3, "length")
    assert (answer.model, answer.is_done, answer.error, answer.malformed) == ("tiny", True, None, None)
    assert judge(spec(4, 3, api), answer) == (Outcome.OK, None)
    measured = record(events=answer.events, output_tokens=3, ttft_ms=0)
    assert latency.ttft_s(measured) == pytest.approx(0.090)
    assert latency.tpot_s(measured) == pytest.approx(0.010)
    assert list(latency.itl_s(measured)) == pytest.approx([0.010, 0.010])


@BOTH
def test_tokens_that_came_together_belong_to_the_events_that_were_there(api: Api) -> None:
    """A busy server sends two tokens in one event, and the usage at once after the last one."""
    last = ending(api, 4)
    answer = said(api, (90, text(api, "a")), (100, text(api, "b c")), (110, text(api, "d")), *((111, e) for e in last))
    assert tokens(answer) == [(90, 1), (100, 1), (110, 2)]


@BOTH
def test_the_end_of_the_text_is_a_token_without_text_that_took_a_step(api: Api) -> None:
    last = ending(api, 4, is_cut=False)
    answer = said(api, *((90 + 10 * i, text(api, "x")) for i in range(3)), *((120, e) for e in last))
    assert tokens(answer) == [(90, 1), (100, 1), (110, 1), (120, 1)]
    assert answer.finish_reason == "stop"
    verdict = judge(spec(4, 9, api), answer)
    if api is Api.MESSAGES:  # which has no ignore_eos
        assert verdict == (Outcome.OK, None)
    else:
        assert verdict[0] is Outcome.WRONG_ANSWER
        assert "4 output tokens, 9 were asked for; set request.omit: [ignore_eos]" in str(verdict[1])


@BOTH
@pytest.mark.parametrize(
    ("first_ms", "tokens", "counts", "tpot_s"),
    [
        (20, 16, [4, 4, 4, 4], 0.025),  # four a step: twelve hidden ones at 100 ms would have taken longer
        (1300, 16, [4, 4, 4, 4], None),  # twelve hidden ones, or four a step
        (100, 5, [1, 1, 1, 2], 0.1),  # one hidden, or two in an event
    ],
)
def test_tokens_that_may_have_been_hidden_before_the_text_shorten_no_tpot(
    api: Api, first_ms: int, tokens: int, counts: list[int], tpot_s: float | None
) -> None:
    shown = [(first_ms + 100 * i, text(api, "x")) for i in range(4)]
    answer = said(api, *shown, *((first_ms + 300, event) for event in ending(api, tokens)))
    assert list(answer.events.tokens) == counts
    measured = record(events=answer.events, output_tokens=tokens, ttft_ms=0)
    assert latency.tpot_s(measured) == (None if tpot_s is None else pytest.approx(tpot_s))


@BOTH
def test_an_answer_of_hidden_tokens_is_whole_where_the_server_counted_it(api: Api) -> None:
    answer = said(api, (1, begin(api)), *((90, event) for event in ending(api, 16)))
    assert tokens(answer) == [(90, 16)]
    assert judge(spec(8, 16, api), answer) == (Outcome.OK, None)


@BOTH
def test_more_tokens_than_asked_for_are_wrong(api: Api) -> None:
    answer = said(api, (90, text(api, "a")), *((111, e) for e in ending(api, 4)))
    assert judge(spec(4, 3, api), answer)[0] is Outcome.WRONG_ANSWER


@BOTH
def test_reasoning_is_a_first_token_and_no_first_answer(api: Api) -> None:
    answer = said(api, (1, thought(api, "hm")), (2, text(api, "a")), *((3, e) for e in ending(api, 2)))
    assert (answer.events.first_visible, answer.events.first_answer) == (0, 1)


@BOTH
def test_a_tools_arguments_are_tokens(api: Api) -> None:
    event = (
        {"type": "response.function_call_arguments.delta", "delta": "{"}
        if api is Api.RESPONSES
        else {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}
    )
    assert tokens(said(api, (1, event))) == [(1, 1)]


@BOTH
def test_empty_and_unknown_events_are_no_tokens(api: Api) -> None:
    odd: list[Any] = [{"type": "ping"}, {"type": "content_block_stop"}, {"type": "new"}, text(api, ""), b": alive\n\n"]
    answer = said(
        api, *((i, event) for i, event in enumerate(odd)), (9, text(api, "a")), *((9, e) for e in ending(api, 1))
    )
    assert tokens(answer) == [(9, 1)]
    assert answer.is_done


def test_a_cached_prompt_is_counted_whole() -> None:
    last = ending(Api.MESSAGES, 1, prompt=4, cache_read_input_tokens=10, cache_creation_input_tokens=None)
    assert said(Api.MESSAGES, (1, text(Api.MESSAGES, "a")), *((2, e) for e in last)).prompt_tokens == 14


def test_a_usage_without_the_prompt_keeps_the_first_ones() -> None:
    last = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 1}}
    answer = said(Api.MESSAGES, (1, STARTED), (2, text(Api.MESSAGES, "a")), (3, last), (4, {"type": "message_stop"}))
    assert (answer.prompt_tokens, answer.output_tokens) == (14, 1)


def test_the_servers_own_times_are_read() -> None:
    (last,) = ending(Api.RESPONSES, 1)
    last["response"]["metrics"] = {"queue_time_ms": 1.5, "time_to_first_token_ms": 20.0}
    assert said(Api.RESPONSES, (1, last)).server_times == ServerTimes(0.0015, 0.02)


@BOTH
def test_a_question_keeps_the_text_and_not_the_thoughts(api: Api) -> None:
    reader = answer_reader(api, keeps_text=True)
    reader.read(reads((1, thought(api, "hm")), (2, text(api, "Par")), (3, text(api, "is"))))
    assert reader.transcript(None).text == "Paris"


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (Api.MESSAGES, {"type": "error", "error": {"type": "internal_error", "message": "engine\ndied"}}),
        (Api.RESPONSES, {"type": "error", "code": "server_error", "message": "engine\ndied", "param": None}),
        (Api.RESPONSES, {"type": "response.failed", "response": {"error": {"message": "engine\ndied"}}}),
        (Api.RESPONSES, {"error": {"message": "engine\ndied"}, "type": None}),
    ],
)
def test_an_error_inside_the_stream_is_said_in_one_line(api: Api, event: dict[str, Any]) -> None:
    answer = read_answer([(1, 0, b"data: " + json.dumps(event).encode() + b"\n\n")], api)
    outcome, detail = judge(spec(4, 3, api), answer)
    assert outcome is Outcome.SERVER_ERROR
    assert "engine died" in str(detail)


@BOTH
def test_an_error_without_words_is_an_error(api: Api) -> None:
    assert judge(spec(4, 3, api), said(api, (1, b'data: {"type":"error"}\n\n')))[0] is Outcome.SERVER_ERROR


@BOTH
@pytest.mark.parametrize("event", [b"[1]", b"nope", b'{"a":1}', b'{"type":5}'])
def test_what_is_no_event_is_malformed_and_ends_the_stream(api: Api, event: bytes) -> None:
    answer = said(api, (1, b"data: " + event + b"\n\n"), (2, text(api, "a")))
    assert judge(spec(4, 3, api), answer)[0] is Outcome.BROKEN_STREAM
    assert tokens(answer) == []


@BOTH
@pytest.mark.parametrize(
    ("count", "means"), [(True, None), (-1, None), (1.5, None), (10**30, None), (None, None), ("3", 3), (3.0, 3)]
)
def test_a_count_that_no_server_can_mean_is_none(api: Api, count: object, means: int | None) -> None:
    first = {"type": "message_start", "message": {"model": "tiny", "usage": {"output_tokens": None}}}
    begins = [(1, first)] if api is Api.MESSAGES else []
    answer = said(api, *begins, (2, text(api, "a")), *((3, event) for event in ending(api, count, prompt=count)))
    assert (answer.prompt_tokens, answer.output_tokens) == (means, means)
    assert (answer.malformed, answer.is_done) == (None, True)


@BOTH
def test_a_stream_that_breaks_off_says_what_is_missing(api: Api) -> None:
    outcome, detail = judge(spec(4, 3, api), said(api, (1, text(api, "a"))))
    last = "response.completed" if api is Api.RESPONSES else "message_stop"
    assert (outcome, detail) == (Outcome.BROKEN_STREAM, f"the stream ended without {last} after 1 token events")


@BOTH
def test_a_stream_without_usage_names_no_option_that_the_api_lacks(api: Api) -> None:
    last = {"type": "response.completed", "response": {"status": "completed"}}
    answer = said(api, (1, text(api, "a")), (2, last if api is Api.RESPONSES else {"type": "message_stop"}))
    assert judge(spec(4, 3, api), answer) == (Outcome.WRONG_ANSWER, "the server sent no usage")

"""Which events carry tokens, and how many: by what streams of vLLM, gateways and other servers show and count.

Each case is an answer of one event every 10 ms. A part is (text, count): what the event shows, and its usage.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import MS, record, spec
from property_examples import examples

from probe.client.api_json import ANSWER
from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.client.exchange import answer_reader, read_answer
from probe.client.judgement import Transcript, judge
from probe.client.token_count import COUNTED, EMPTY, LAST, NO_TOKEN, TokenCount
from probe.core import latency
from probe.core.request import Api, Omittable, Outcome, RequestRecord

OK = (Outcome.OK, None)
ROLE = {"role": "assistant", "content": ""}
TOOL = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}


@dataclass(frozen=True)
class Part:
    """An event: text, or a delta of chat; its usage; `gap_ms` after the one before; with a choice, and why it ends."""

    shows: str | dict[str, Any] | None = "a"
    count: int | None = None
    gap_ms: int = 10
    finish: str | None = None
    has_choice: bool = True

    def event(self, api: Api) -> bytes:
        found: dict[str, Any] = {"choices": []}
        if self.has_choice:
            delta = self.shows if isinstance(self.shows, dict) else {"content": self.shows}
            own = {"delta": delta} if api is Api.CHAT else {"text": self.shows}
            found["choices"] = [{"index": 0, "finish_reason": self.finish, **own}]
        if self.count is not None:
            found["usage"] = {"prompt_tokens": 8, "completion_tokens": self.count}
        return b"data: " + json.dumps(found).encode() + b"\n\n"


def end(count: int | None) -> tuple[Part, Part]:
    """Return how OpenAI ends an answer: the reason, and then the usage, at once."""
    return Part(None, finish="length", gap_ms=0), Part(None, count, gap_ms=0, has_choice=False)


def said(parts: Sequence[Part], api: Api = Api.COMPLETIONS, most: int | None = None) -> Transcript:
    at_ms, reads = 90, []
    for part in parts:
        at_ms += part.gap_ms
        reads.append((at_ms * MS, at_ms * MS, part.event(api)))
    reader = answer_reader(api, most=most)
    reader.read([*reads, (at_ms * MS, at_ms * MS, b"data: [DONE]\n\n")])
    return reader.transcript(None)


def measured(answer: Transcript) -> RequestRecord:
    return record(events=answer.events, output_tokens=answer.output_tokens or sum(answer.events.tokens), ttft_ms=0)


def running(texts: Sequence[str], each: int = 1) -> list[Part]:
    """Return events with vLLM's running usage, so many tokens in each."""
    last = len(texts) - 1
    return [Part(text, each * (i + 1), finish="length" if i == last else None) for i, text in enumerate(texts)]


def silent(texts: Sequence[str]) -> list[Part]:
    """Return events without a usage."""
    return [Part(text) for text in texts]


HIDDEN = [""] * 12 + ["a"] * 4

Case = tuple[list[Part], list[int], int, int | None, float | None]
# The parts; the tokens of each event; times (ms) to the first token and to the first with text; TPOT, None: unknown.
CASES: dict[str, Case] = {
    # A running usage, as of vLLM: the tokens of each event are known.
    "all special": (running([""] * 16), [1] * 16, 100, None, 10),
    "the first special": (running(HIDDEN), [1] * 16, 100, 220, 10),
    "the last special": (running(["a"] * 15 + [""]), [1] * 16, 100, None, 10),
    "four a step": (running(["a"] * 4, each=4), [4] * 4, 100, None, 2.5),
    "four a step, the first ones special": (running(["", "", "a", "a"], each=4), [4] * 4, 100, 120, 2.5),
    "stream_interval of 5": (
        [Part("a", 1), *(Part("a", n, gap_ms=50) for n in (6, 11, 16))], [1, 5, 5, 5], 100, None, 10,
    ),
    "three tokens without an event": ([Part("a", 4), *(Part("a", 4 + i) for i in range(1, 13))], [4, *[1] * 12], 100,
                                      None, 10),
    "most tokens without an event": ([Part("a", 13), *(Part("a", n) for n in (14, 15, 16))], [13, 1, 1, 1], 100, None,
                                     None),
    "two events of one token": ([Part("a", 1), Part("b", 1), Part("c", 2), Part("d", 3)], [1, 0, 1, 1], 100, None, 15),
    "an empty event that is no token": (
        [Part("", 0), Part("a", 1, gap_ms=50), Part("a", 2), Part("", 2)], [1, 1], 150, None, 10,
    ),
    "usage in chunks of its own": (
        [part for n in range(1, 5) for part in (Part("a"), Part(None, 4 * n, gap_ms=0, has_choice=False))],
        [4] * 4, 100, None, 2.5,
    ),
    "usage in every second event": (
        [Part("a", None if n % 2 else n) for n in range(1, 17)], [1] * 16, 100, None, 10,
    ),
    "most tokens hidden after the text": (
        [*(Part("a", n) for n in range(1, 5)), Part(None, 16, gap_ms=120, has_choice=False)], [1, 1, 1, 13], 100, None,
        None,
    ),
    "most tokens hidden before the end": (
        [*(Part("a", n) for n in range(1, 5)), Part("", 16, gap_ms=120, finish="length")],
        [1, 1, 1, 1, 12], 100, None, 10,
    ),
    # A usage at the end: behind gateways, of SGLang, TGI, llama.cpp and Ollama without more.
    "one a step": ([*silent(["a"] * 16), *end(16)], [1] * 16, 100, None, 10),
    "usage with the last token": ([*silent(["a"] * 15), Part("a", 16, finish="length")], [1] * 16, 100, None, 10),
    "usage with the reason": ([*silent(["a"] * 16), Part("", 16, 0, "length")], [1] * 16, 100, None, 10),
    "a usage of zero until the end": ([*(Part("a", 0) for _ in range(16)), *end(16)], [1] * 16, 100, None, 10),
    "special ones have events": ([*silent(HIDDEN), *end(16)], [1] * 16, 100, 220, 10),
    "the end of the text has a step": (
        [*silent(["a"] * 15), Part("", finish="stop"), Part(None, 16, 0, has_choice=False)], [1] * 16, 100, None, 10,
    ),
    "a keep-alive before the first token": (
        [Part(""), *silent(["a"] * 16), *end(16)], [1] * 16, 110, None, 10,
    ),
    "four a step, spread": (
        [Part("a"), *(Part("a", gap_ms=40) for _ in range(15)), *end(64)], [4] * 16, 100, None, 700 / 63,
    ),
    "twelve before, or four a step": ([Part("a", gap_ms=250), *silent(["a"] * 3), *end(16)], [4] * 4, 340, None, None),
    "the usage after the reason, with an empty choice": (
        [*silent(["a"] * 8), Part("", finish="length", gap_ms=0), Part("", 16)], [2] * 8, 100, None, None,
    ),
    "the usage with an empty delta": ([*silent(["a"] * 8), Part({}, 8)], [1] * 8, 100, None, 10),
    "a token without an event": ([*silent(["a"] * 15), *end(16)], [1] * 14 + [2], 100, None, 10),
    "an answer in one event": ([Part("a" * 16), *end(16)], [16], 100, None, None),
}  # fmt: skip
APIS = pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT])


@APIS
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_token_is_counted_in_its_event(case: Case, api: Api) -> None:
    parts, tokens, ttft_ms, visible_ms, tpot_ms = case
    parts = [Part(ROLE, gap_ms=0), *parts] if api is Api.CHAT else parts
    answer = said(parts, api)
    assert list(answer.events.tokens) == tokens
    assert sum(tokens) == answer.output_tokens
    one = measured(answer)
    assert latency.ttft_s(one) == pytest.approx(ttft_ms / 1000)
    assert latency.first_visible_s(one) == (None if visible_ms is None else pytest.approx(visible_ms / 1000))
    assert latency.tpot_s(one) == (None if tpot_ms is None else pytest.approx(tpot_ms / 1000))


@APIS
@pytest.mark.fault(
    "TR22",
    "A healthy model answers a canary with special tokens only, which have no text",
    area="Truth",
    users_see="the canary is ok, with the latencies of its tokens",
    stays="the target is up",
)
@pytest.mark.parametrize(
    "parts",
    [running([""] * 16), [*silent([""] * 16), *end(16)], [Part("", 16, finish="length")]],
    ids=["running usage", "usage at the end", "no event but the last"],
)
def test_an_answer_without_text_is_whole_where_the_server_counted_it(parts: list[Part], api: Api) -> None:
    answer = said(parts, api)
    assert judge(spec(8, 16, api), answer) == OK
    assert sum(answer.events.tokens) == 16
    assert answer.events.first_visible is answer.events.first_answer is None


@pytest.mark.parametrize(
    ("parts", "shape", "words"),
    [
        ([*silent([""] * 15), *end(15)], PLAIN_REQUESTS, "15 output tokens, 16 were asked for"),
        (silent([""] * 16), PLAIN_REQUESTS, "no usage"),
        (silent([""] * 16), RequestShape(omitted=frozenset({Omittable.STREAM_OPTIONS})), "no content"),
        ([Part(None, 16, has_choice=False)], PLAIN_REQUESTS, "no content"),
    ],
)
def test_an_answer_without_text_that_nobody_counted_is_none(parts: list[Part], shape: RequestShape, words: str) -> None:
    answer = said(parts, most=16).completed(spec(8, 16), shape)
    outcome, detail = judge(spec(8, 16), answer, shape)
    assert outcome is Outcome.WRONG_ANSWER
    assert words in str(detail)


def test_without_any_usage_no_more_events_are_tokens_than_were_asked_for() -> None:
    """A gateway's keep-alive looks like a token without text."""
    assert list(said([Part(""), *silent(["a"] * 4)], most=4).events.at_ns) == [t * MS for t in (110, 120, 130, 140)]
    assert list(said([Part(""), *silent(["a"] * 3)], most=4).events.at_ns) == [t * MS for t in (100, 110, 120, 130)]


@pytest.mark.parametrize(
    "delta", [TOOL, {"refusal": "no"}, {"function_call": {"arguments": "{"}}, {"reasoning": "a"}, {"content": "a"}]
)
def test_whatever_a_delta_brings_is_a_token(delta: dict[str, Any]) -> None:
    answer = said([Part(ROLE, gap_ms=0), *(Part(delta) for _ in range(4)), *end(4)], Api.CHAT)
    assert (list(answer.events.tokens), answer.events.first_visible) == ([1, 1, 1, 1], 0)
    assert judge(spec(8, 4, Api.CHAT), answer) == OK


@pytest.mark.parametrize("delta", [ROLE, {"role": "assistant"}, {}, {"content": None}])
def test_a_chunk_of_a_role_is_a_token_only_if_the_usage_grew_with_it(delta: dict[str, Any]) -> None:
    tokens = [*silent(["a"] * 4), *end(8)]
    assert said([Part(delta), *tokens], Api.CHAT).events.at_ns[0] == 110 * MS
    assert said([Part(delta, 0), *tokens], Api.CHAT).events.at_ns[0] == 110 * MS
    assert said([Part(delta, 1), *tokens], Api.CHAT).events.at_ns[0] == 100 * MS


def test_a_role_in_each_chunk_is_of_no_matter() -> None:
    """As of Ollama, TGI and others."""
    chunks = [Part({"role": "assistant", "content": "a"}) for _ in range(4)]
    assert list(said([*chunks, *end(4)], Api.CHAT).events.tokens) == [1] * 4


def test_reasoning_in_completions_shows_and_is_no_answer() -> None:
    choices = [{"text": "", "reasoning": "hm"}] * 8 + [{"text": "a"}] * 8
    events = [json.dumps({"choices": [choice]}).encode() for choice in choices]
    answer = read_answer([(i, i, b"data: " + event + b"\n\n") for i, event in enumerate(events)], Api.COMPLETIONS)
    assert (len(answer.events), answer.events.first_visible, answer.events.first_answer) == (16, 0, 8)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Part], int, int]:
    """Generate an answer of one token each 20 ms, and the time (ms) of its first: some tokens have no event before the
    text, within it or after it, or one without text; a server counts at the end only, or in each event.
    """
    first_ms, counts_all, is_shown = draw(st.integers(1, 2000)), draw(st.booleans()), draw(st.booleans())
    before, after = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    steps = draw(st.lists(st.integers(1, 4), min_size=2, max_size=16))
    parts, at_ms, count = list[Part](), 90, 0
    for size, text in [(1, "")] * before + [(size, "a") for size in steps] + [(1, "")] * after:
        count += size
        if text or is_shown:
            due_ms = 90 + first_ms + 20 * (count - 1)
            parts.append(Part(text, count if counts_all else None, gap_ms=due_ms - at_ms))
            at_ms = due_ms
    end_ms = 90 + first_ms + 20 * (count - 1) - at_ms
    reason = draw(st.sampled_from([[], [Part(None, finish="length", gap_ms=end_ms)]]))
    return [*parts, *reason, Part(None, count, 0 if reason else end_ms, has_choice=False)], count, first_ms


@examples(150)
@given(answers())
def test_a_tpot_is_never_shorter_than_the_servers(answer: tuple[list[Part], int, int]) -> None:
    parts, count, _ = answer
    found = said(parts)
    assert sum(found.events.tokens) == found.output_tokens == count
    ends_ns = (90 + sum(part.gap_ms for part in parts)) * MS
    one = record(events=found.events, output_tokens=count, scheduled_ns=90 * MS, sent_ns=90 * MS, done_ns=ends_ns)
    tpot_s = latency.tpot_s(one)
    assert tpot_s is None or tpot_s >= 0.02 - 1e-9


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[str, int | None, int]]:
    """Generate what a server may send: any events, with usages that only grow, and the last one with a usage."""
    count, rows = 0, []
    for _ in range(draw(st.integers(0, 20))):
        count += draw(st.integers(0, 3))
        usage = draw(st.sampled_from([None, count]))
        rows.append((draw(st.sampled_from(["", ANSWER])), usage, draw(st.sampled_from([NO_TOKEN, COUNTED, EMPTY]))))
    return [*rows, ("", count + draw(st.integers(0, 3)), LAST)]


@examples(60)
@given(streams())
def test_no_token_is_lost_or_invented(rows: list[tuple[str, int | None, int]]) -> None:
    counter = TokenCount()
    for i, (shows, count, kind) in enumerate(rows):
        counter.add(10 * i, 1, shows, count, kind)
    total = rows[-1][1] or 0
    events = counter.finish(total, None)
    texts = [10 * i for i, (shows, _, _) in enumerate(rows) if shows]
    assert set(texts) <= set(events.at_ns), "an event with text is one with tokens"
    assert list(events.at_ns) == sorted(set(events.at_ns))
    assert len(events.at_ns) == len(events.late_ns) == len(events.tokens)
    assert all(tokens >= 0 for tokens in events.tokens)
    assert (events.first_visible is None) == (not texts)
    assert events.first_visible is None or events.at_ns[events.first_visible] == texts[0]
    uncounted = sum(bool(shows) and count is None for shows, count, _ in rows)
    if events and uncounted == 0:
        assert sum(events.tokens) == total
    assert sum(events.tokens) <= total + uncounted


def test_a_stream_of_many_empty_events_takes_time_in_proportion_to_them() -> None:
    counter = TokenCount()
    for i in range(20_000):
        counter.add(i, 0, "" if i % 2 else ANSWER, None, EMPTY)
    assert sum(counter.finish(10_000, None).tokens) == 10_000

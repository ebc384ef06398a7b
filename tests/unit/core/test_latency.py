"""Latencies from raw stamps."""

import itertools
from array import array
from dataclasses import replace

import pytest
from example_records import token_events
from hypothesis import given
from hypothesis import strategies as st
from plain_records import MS, failure, record

from probe.core.latency import (
    e2e_s,
    first_answer_s,
    first_visible_s,
    held_back_ratio,
    is_held_back,
    itl_s,
    schedule_lag_s,
    stall_s,
    tpot_s,
    ttft_parts_s,
    ttft_s,
)
from probe.core.request import Outcome, RequestRecord, ServerTimes


@st.composite
def streams(draw: st.DrawFn) -> RequestRecord:
    """Generate a request with any timestamps in order, any tokens per event, visible or not."""
    due = draw(st.integers(0, 10**15))
    lag = draw(st.integers(0, 10**9))
    gaps = draw(st.lists(st.integers(0, 10**9), max_size=12))
    stamps = list(itertools.accumulate(gaps, initial=due + lag))[1:]
    events = token_events((at, draw(st.integers(1, 4)), draw(st.booleans())) for at in stamps)
    outcome = draw(st.sampled_from(Outcome))
    return record(
        outcome=outcome,
        scheduled_ns=due,
        sent_ns=due + lag,
        done_ns=stamps[-1] if stamps else due,
        events=events,
        output_tokens=sum(events.tokens),
    )


def test_the_first_answer_token_comes_after_reasoning() -> None:
    """Where a stream has no reasoning, or nothing after it, there is none: it would be TTFT, or never."""
    thinks = record(ttft_ms=100, gap_ms=10, tokens=5)
    for first_answer, expected_s in ((3, 0.13), (0, None), (None, None)):
        answered = replace(thinks, events=replace(thinks.events, first_answer=first_answer))
        found = first_answer_s(answered)
        assert found == (None if expected_s is None else pytest.approx(expected_s))
        assert ttft_s(answered) == pytest.approx(0.1)


def test_ttft_counts_from_the_scheduled_send() -> None:
    """A late client makes schedule lag, never a better TTFT: no coordinated omission."""
    late = record(ttft_ms=700, lag_ms=500)
    assert ttft_s(late) == pytest.approx(0.7)
    assert schedule_lag_s(late) == pytest.approx(0.5)


def test_a_token_without_text_is_the_first_one() -> None:
    """As for the server. The first that a user sees comes later."""
    half = record(events=token_events([(50 * MS, 1, False), (90 * MS, 1, True)]))
    assert (ttft_s(half), first_visible_s(half)) == (pytest.approx(0.05), pytest.approx(0.09))
    hidden = record(events=token_events([(50 * MS, 1, False)]))
    assert (ttft_s(hidden), first_visible_s(hidden)) == (pytest.approx(0.05), None)
    assert first_visible_s(record()) is None, "it is TTFT"


@pytest.mark.parametrize("hidden", [0, 1, 6, 12, 15, 16])
@pytest.mark.parametrize("each", [1, 4])
def test_hidden_tokens_shorten_no_tpot(hidden: int, each: int) -> None:
    """Of 16 events with so many tokens, 20 ms a token, the first have no text. The first one may have several, too."""
    events = token_events((100 * MS + 20 * each * MS * i, each, i >= hidden) for i in range(16))
    answer = record(events=events, output_tokens=16 * each)
    assert ttft_s(answer) == pytest.approx(0.1)
    assert tpot_s(answer) == pytest.approx(0.02)


def unplaced(events: int, tokens: int, first_ms: int, gap_ms: int) -> RequestRecord:
    """Return an answer whose usage came at its end: the tokens are spread over its events."""
    counts = [tokens * (i + 1) // events - tokens * i // events for i in range(events)]
    spread = token_events(((first_ms + i * gap_ms) * MS, count, True) for i, count in enumerate(counts))
    return record(events=replace(spread, unplaced=tokens - events), output_tokens=tokens, ttft_ms=0)


@pytest.mark.parametrize(
    ("answer", "expected_s"),
    [
        (unplaced(16, 16, 100, 20), 0.02),
        (unplaced(15, 16, 120, 20), 0.02),  # one hidden, perhaps the first
        (unplaced(4, 16, 340, 20), None),  # 12 hidden at 20 ms each, or 4 tokens an event at 5 ms
        (unplaced(16, 64, 100, 80), 1.3 / 63),  # four an event: 48 hidden ones at 80 ms would have come before the send
        (unplaced(16, 64, 4000, 80), None),
        (unplaced(1, 16, 100, 20), None),
    ],
)
def test_a_tpot_that_hidden_tokens_may_shorten_is_unknown_or_never_too_short(
    answer: RequestRecord, expected_s: float | None
) -> None:
    assert tpot_s(answer) == (None if expected_s is None else pytest.approx(expected_s))


def test_values_of_a_plain_stream() -> None:
    plain = record(at_ms=1000, ttft_ms=100, gap_ms=10, tokens=5)
    assert ttft_s(plain) == pytest.approx(0.1)
    assert e2e_s(plain) == pytest.approx(0.14)
    assert tpot_s(plain) == pytest.approx(0.01)
    assert list(itl_s(plain)) == pytest.approx([0.01] * 4)


def test_an_event_with_several_tokens_is_one_gap_but_counts_in_tpot() -> None:
    events = token_events([(100 * MS, 1, True), (140 * MS, 4, True)])
    speculative = record(events=events, output_tokens=5)
    assert list(itl_s(speculative)) == pytest.approx([0.04])
    assert tpot_s(speculative) == pytest.approx(0.01)


def test_one_token_has_no_tpot_and_no_gap() -> None:
    one = record(tokens=1)
    assert tpot_s(one) is None
    assert list(itl_s(one)) == []
    assert e2e_s(one) == ttft_s(one)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_request_that_did_not_end_well_has_no_end(outcome: Outcome) -> None:
    cut = record(outcome=outcome, tokens=3)
    assert e2e_s(cut) is None
    assert tpot_s(cut) is None
    nothing = failure(outcome)
    assert (ttft_s(nothing), e2e_s(nothing), tpot_s(nothing), list(itl_s(nothing))) == (None, None, None, [])


@given(streams())
def test_invariants_of_any_stream(any_record: RequestRecord) -> None:
    first, last, mean, gaps = ttft_s(any_record), e2e_s(any_record), tpot_s(any_record), list(itl_s(any_record))
    assert all(gap > 0 for gap in gaps)
    if any_record.events and not is_held_back(any_record):
        at_ns = any_record.events.at_ns
        assert len(gaps) == len(set(at_ns)) - 1
        assert sum(gaps) == pytest.approx((at_ns[-1] - at_ns[0]) * 1e-9)
    assert first is None or first >= schedule_lag_s(any_record)
    assert (last is not None) == (any_record.outcome is Outcome.OK and bool(len(any_record.events)))
    if first is not None and last is not None:
        assert last >= first
    if mean is not None:
        assert first is not None
        assert last is not None
        assert any_record.output_tokens > 1
        events = any_record.events
        after = sum(tokens for at, tokens in zip(events.at_ns, events.tokens, strict=True) if at > events.at_ns[0])
        assert mean * after == pytest.approx(last - first, abs=1e-9)
        assert 0 <= mean <= last


@given(streams(), st.integers(0, 10**18))
def test_only_differences_count(any_record: RequestRecord, offset: int) -> None:
    """The clock's zero is arbitrary."""
    moved = record(
        outcome=any_record.outcome,
        scheduled_ns=any_record.scheduled_ns + offset,
        sent_ns=any_record.sent_ns + offset,
        done_ns=any_record.done_ns + offset,
        events=replace(any_record.events, at_ns=array("q", [at + offset for at in any_record.events.at_ns])),
        output_tokens=any_record.output_tokens,
    )
    for value in (ttft_s, e2e_s, tpot_s, schedule_lag_s):
        assert value(moved) == value(any_record)
    assert list(itl_s(moved)) == list(itl_s(any_record))


# Streams that are held back.


def _stream(*reads: int) -> RequestRecord:
    """Return a request with reads of so many tokens, 10 ms apart."""
    stamps = [(i + 1) * 10 * MS for i, count in enumerate(reads) for _ in range(count)]
    events = token_events((at, 1, True) for at in stamps)
    return record(scheduled_ns=0, sent_ns=0, done_ns=stamps[-1], events=events, output_tokens=len(stamps))


@pytest.mark.parametrize(
    ("reads", "ratio", "is_unknown"),
    [
        ([1] * 32, 0.0, False),
        ([2] + [1] * 30, 1 / 31, False),
        ([1, 31], 0.0, False),  # the tokens' time ends with the last one
        ([16, 16], 15 / 31, False),
        ([17, 15], 16 / 31, True),
        ([32], 1.0, True),
        ([2], 1.0, True),
    ],
)
def test_the_tpot_of_a_stream_that_came_with_its_first_token_is_unknown(
    reads: list[int], ratio: float, *, is_unknown: bool
) -> None:
    stream = _stream(*reads)
    assert held_back_ratio(stream) == pytest.approx(ratio)
    assert is_held_back(stream) == is_unknown
    assert (tpot_s(stream) is None) == is_unknown
    assert (list(itl_s(stream)) == [], stall_s(stream) is None) == (is_unknown, is_unknown)
    assert tpot_s(stream) is None or tpot_s(stream) == pytest.approx((len(reads) - 1) * 0.01 / sum(reads[1:]))
    assert ttft_s(stream) == 0.01
    assert e2e_s(stream) == len(reads) * 0.01


def test_one_event_with_all_tokens_is_held_back_and_a_single_token_is_not() -> None:
    whole = replace(_stream(1), events=token_events([(10 * MS, 32, True)]), output_tokens=32)
    assert (is_held_back(whole), tpot_s(whole)) == (True, None)
    assert (is_held_back(_stream(1)), held_back_ratio(_stream(1))) == (False, None)


def test_where_the_time_to_the_first_token_went() -> None:
    parts = ttft_parts_s(record(ttft_ms=100.0, server_times=ServerTimes(queue_s=0.02, prefill_s=0.05)))
    assert parts == {"queue": 0.02, "prefill": 0.05, "outside": pytest.approx(0.03)}


@pytest.mark.parametrize("times", [None, ServerTimes(queue_s=0.09, prefill_s=0.05)])
def test_an_account_that_is_missing_or_longer_than_the_wait_says_nothing(times: ServerTimes | None) -> None:
    assert ttft_parts_s(record(ttft_ms=100.0, server_times=times)) == {}
    assert ttft_parts_s(failure(server_times=ServerTimes(0.0, 0.0))) == {}
    assert ttft_parts_s(record(gap_ms=0, server_times=ServerTimes(0.0, 0.01))) == {}, "the time outside would be E2E"

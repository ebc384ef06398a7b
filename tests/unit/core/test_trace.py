"""Recorded traces: when their requests are due, and what their prompts have in common."""

from itertools import islice
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.request import Api, RequestSpec
from probe.core.token_length import MeasuredLength
from probe.core.trace import Trace, TraceRequest, trace_of, trace_requests, trace_workload

_REQUEST = st.builds(
    TraceRequest,
    prompt_tokens=st.integers(1, 60),
    output_tokens=st.integers(1, 9),
    at_s=st.floats(-1000, 1000),
    blocks=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    block_tokens=st.just(16),
)


def _sent(trace: Trace, count: int, *, salt: str = "salt", shard: tuple[int, int] = (0, 1)) -> list[RequestSpec]:
    return list(islice(trace_requests(trace, trace_workload(trace, "t", Api.COMPLETIONS), salt, shard), count))


def _timed(*times: float) -> Trace:
    return trace_of(TraceRequest(10, 5, at_s) for at_s in times)


@given(st.lists(_REQUEST, min_size=2, max_size=20), st.floats(0.1, 50), st.floats(1, 300))
def test_times_are_the_recorded_ones_at_that_speed(requests: list[TraceRequest], speed: float, seconds: float) -> None:
    trace = trace_of(requests)
    if not trace.seconds or len(requests) * speed * seconds / trace.seconds > 5000:
        return
    due = trace.due_s(speed, seconds)
    recorded = sorted(request.at_s or 0.0 for request in requests)
    assert list(due) == sorted(due)
    assert all(at_s < seconds for at_s in due)
    for i, at_s in enumerate(due):
        passes, place = divmod(i, len(requests))
        assert at_s * speed == pytest.approx(recorded[place] - recorded[0] + passes * trace.seconds, rel=1e-6, abs=1e-6)


def test_a_trace_begins_again_a_mean_gap_after_its_end() -> None:
    trace = _timed(100.0, 101.0, 104.0)
    assert trace.seconds == 6.0
    assert trace.due_s(1.0, 13.0) == (0.0, 1.0, 4.0, 6.0, 7.0, 10.0, 12.0)
    assert trace.due_s(2.0, 3.0) == (0.0, 0.5, 2.0)
    assert trace.tokens(7) == 7 * 15


@pytest.mark.parametrize(
    "trace", [_timed(3.0, 3.0), _timed(3.0), trace_of([TraceRequest(1, 1), TraceRequest(1, 1, 5.0)])]
)
def test_without_different_times_for_each_request_there_are_none(trace: Trace) -> None:
    assert trace.seconds is None
    with pytest.raises(ValueError, match="no times"):
        trace.due_s(1.0, 10.0)


@given(st.lists(_REQUEST, min_size=1, max_size=20))
def test_prompts_begin_alike_as_far_as_the_recorded_ones_did(requests: list[TraceRequest]) -> None:
    """In blocks of 16 tokens, wherever two of them had the same first blocks."""
    trace = trace_of(requests)
    ordered = sorted(requests, key=lambda request: request.at_s or 0.0)
    sent = _sent(trace, len(requests))
    for given_, kept, spec in zip(ordered, trace.requests, sent, strict=True):
        assert len(spec.prompt) == spec.prompt_tokens == given_.prompt_tokens
        assert (spec.output_tokens, kept.prompt_tokens) == (given_.output_tokens, given_.prompt_tokens)
    for one, first in zip(ordered, sent, strict=True):
        for other, second in zip(ordered, sent, strict=True):
            both = next((i for i, (a, b) in enumerate(zip(one.blocks, other.blocks)) if a != b), None)  # noqa: B905
            alike = 16 * (min(len(one.blocks), len(other.blocks)) if both is None else both)
            assert first.prompt[:alike][: len(second.prompt)] == second.prompt[:alike][: len(first.prompt)]
            if alike < min(one.prompt_tokens, other.prompt_tokens) - 8 and first is not second:
                assert first.prompt != second.prompt


def test_blocks_of_one_prompt_only_are_forgotten_and_the_others_numbered_anew() -> None:
    first, second = trace_of(
        [TraceRequest(90, 1, 0.0, (77, 78, 5), 30), TraceRequest(90, 1, 1.0, (77, 78, 9), 30)]
    ).requests
    assert (first.blocks, first.block_tokens, first.shared_tokens) == ((0, 1), 30, 60)
    assert second.blocks == (0, 1)
    (alone,) = trace_of([TraceRequest(90, 1, 0.0, (77, 78), 30)]).requests
    assert (alone.blocks, alone.shared_tokens) == ((), 0)


def test_workers_send_the_trace_together_and_no_pass_repeats_a_prompt() -> None:
    trace = trace_of([TraceRequest(40 + i, 3, float(i), (1, 2), 8) for i in range(5)])
    whole = _sent(trace, 12)
    parts = [_sent(trace, 4, shard=(index, 3)) for index in range(3)]
    together = [one for each in zip(*parts, strict=True) for one in each]
    assert [one.prompt_tokens for one in together] == [one.prompt_tokens for one in whole]
    assert len({tuple(one.prompt)[:16] for one in together[:5]}) == 1, "whichever worker sends them"
    assert len({tuple(one.prompt)[:16] for one in whole}) == 3, "the second and third pass begin otherwise"
    assert len({tuple(one.prompt) for one in whole}) == 12
    assert tuple(whole[0].prompt)[:16] != tuple(_sent(trace, 1, salt="other")[0].prompt)[:16]


def test_the_workload_of_a_trace_has_its_lengths_and_its_digest() -> None:
    requests = [TraceRequest(100 * i, 10 + i, float(i), (0,), 50) for i in range(1, 101)]
    trace = trace_of(requests)
    workload = trace_workload(trace, "t", Api.CHAT)
    assert isinstance(workload.prompt_tokens, MeasuredLength)
    assert workload.prompt_tokens.mean == pytest.approx(fmean(r.prompt_tokens for r in requests), rel=0.02)
    assert workload.shared_tokens == 50
    assert workload.trace == trace.digest == trace_of(requests).digest
    assert trace_of(requests[1:]).digest != trace.digest


def test_chat_sends_a_trace_as_text() -> None:
    trace = trace_of([TraceRequest(60, 1, 0.0, (1,), 30), TraceRequest(60, 1, 1.0, (1,), 30)])
    one, other = islice(trace_requests(trace, trace_workload(trace, "t", Api.CHAT), "salt"), 2)
    assert isinstance(one.prompt, str)
    assert isinstance(other.prompt, str)
    assert one.prompt.split()[:30] == other.prompt.split()[:30]
    assert len(one.prompt.split()) == 50, "the template adds about ten"

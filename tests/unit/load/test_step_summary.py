"""A step's records to its summary."""

import math
from array import array
from dataclasses import replace

import pytest
from example_records import token_events
from hypothesis import given
from hypothesis import strategies as st
from plain_records import MS, PROMISED, failure, poll, record, spec
from property_examples import examples

from probe.capacity.run.runner import covered_seconds, over_objective
from probe.core.objectives import ALL, AVAILABILITY, Objective, Objectives
from probe.core.reasons import CUT_SHORT, MIN_REQUESTS
from probe.core.request import Outcome, RequestRecord, tokens_spent
from probe.core.step import StepPlan, StepRun, StepSummary
from probe.load.step_summary import summarize

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
WINDOW = (0, 10_000 * MS)
PLAN = StepPlan(concurrency=4, seconds=10.0)


def summary(
    records: list[RequestRecord], promised: Objectives = PROMISED, lag: float = 0.0, *, is_cut_short: bool = False
) -> StepSummary:
    return summarize(StepRun(PLAN, tuple(records), WINDOW, (lag,), is_cut_short), promised)


def test_a_request_that_the_window_cuts_counts_by_its_share_of_time() -> None:
    """Neither the drain after the window nor the time it takes may move the rate."""
    inside = [record(at_ms=i * 100) for i in range(40)]
    cut = [record(at_ms=9_890, ttft_ms=100, gap_ms=20, tokens=4)] * 4
    after = [record(at_ms=9_990, ttft_ms=200)] * 5
    s = summary(inside + cut + after)
    assert s.seconds == pytest.approx(10.0)
    assert s.offered_rps == pytest.approx(4.9)
    assert s.output_tokens_per_second == pytest.approx((40 * 3 + 4) / 10)
    shares = 4 * 110 / 160 + 5 * 10 / 240
    assert s.throughput_rps == pytest.approx((40 + shares) / 10, rel=1e-3)
    assert s.goodput_rps == pytest.approx(s.throughput_rps)
    assert s.requests.ok == 49
    assert s.ttft_s.count == 49


def test_goodput_is_the_part_within_every_objective() -> None:
    s = summary([record()] * 30 + [record(ttft_ms=900)] * 10)
    assert s.throughput_rps == pytest.approx(4.0)
    assert s.goodput_rps == pytest.approx(3.0)


def test_a_failed_request_is_no_throughput_however_many_tokens_it_got() -> None:
    """A server that times out half of its requests at the last token has half the throughput."""
    s = summary([record()] * 20 + [record(outcome=Outcome.TIMEOUT)] * 20)
    assert s.offered_rps == pytest.approx(4.0)
    assert s.throughput_rps == pytest.approx(2.0)


def test_failures_are_shown_and_have_no_latency() -> None:
    s = summary([record()] * 30 + [failure()] * 8 + [failure(Outcome.ABORTED)] * 4)
    assert (s.requests.ok, s.requests.failed, s.requests.aborted) == (30, 8, 4)
    assert s.ttft_s.count == 30
    assert s.good_ratio[AVAILABILITY] == pytest.approx(30 / 38)
    assert s.broken == (AVAILABILITY,)
    assert s.valid


def test_too_few_requests_judge_nothing() -> None:
    s = summary([record(ttft_ms=9_000)] * (MIN_REQUESTS - 1) + [failure(Outcome.ABORTED)] * 50)
    assert (s.valid, s.reason, s.broken) == (False, "too_few_requests", ())
    assert summary([record()] * MIN_REQUESTS).valid


def test_a_step_cut_short_judges_nothing() -> None:
    s = summary([record(ttft_ms=900)] * 50, is_cut_short=True)
    assert (s.valid, s.reason, s.broken) == (False, CUT_SHORT.word, ())
    assert s.good_ratio["ttft"] == 0


def test_an_empty_step_is_a_summary_too() -> None:
    s = summary([])
    assert (s.valid, s.throughput_rps, s.good_ratio, s.ttft_s.p95) == (False, 0.0, {}, None)


def test_a_late_client_voids_the_step_that_missed_an_objective() -> None:
    """A stamp that may be 60 ms late cannot judge 500 ms to a tenth."""
    only_ttft = Objectives("o", ttft=Objective(0.95, 0.5))
    missed = [record()] * 40 + [record(ttft_ms=501)] * 10
    assert summary(missed, only_ttft, lag=0.049).broken == ("ttft",)
    s = summary(missed, only_ttft, lag=0.06)
    assert (s.valid, s.reason, s.is_late, s.broken) == (False, "client_bound", True, ())
    assert s.error_bound_s.ttft == 0.06


@pytest.mark.fault(
    "C26S",
    "Descriptors run out during a capacity run",
    area="Sockets",
    users_see="the step is invalid, `client_bound`",
    stays="no capacity is computed from it",
)
def test_a_request_that_this_machine_could_not_send_voids_the_step() -> None:
    unsent = replace(record(), outcome=Outcome.CLIENT_BOUND, finish_reason=None)
    s = summary([*[record()] * 50, unsent])
    assert (s.valid, s.reason, s.broken) == (False, "client_bound", ())
    assert over_objective(unsent, PROMISED) == []


def test_a_tpot_objective_is_as_strict_as_its_answer_is_short() -> None:
    only_tpot = Objectives("o", tpot=Objective(0.9, 0.05))
    assert not summary([record(tokens=2)] * 50, only_tpot, lag=0.01).valid
    assert summary([record(tokens=100)] * 50, only_tpot, lag=0.01).valid


def test_without_a_latency_objective_a_late_client_matters_not() -> None:
    assert summary([record()] * 50, Objectives("o", availability=0.9), lag=5.0).valid


def test_a_server_that_refuses_most_of_the_load_is_not_excused_by_our_lateness() -> None:
    """What was refused has no tokens: counted among the lengths of answers it would make any stamp too late."""
    only_tpot = Objectives("o", availability=0.9, tpot=Objective(0.9, 0.05))
    s = summary([record(tokens=100)] * 20 + [failure(Outcome.REJECTED)] * 30, only_tpot, lag=0.01)
    assert (s.valid, s.broken) == (True, (AVAILABILITY,))
    assert summary([failure(Outcome.REJECTED)] * 30, only_tpot, lag=0.01).broken == (AVAILABILITY,)


def test_requests_sent_after_another_worker_had_ended_are_not_judged() -> None:
    s = summary([record(at_ms=i * 100) for i in range(50)] + [record(at_ms=11_000, ttft_ms=5)] * 50)
    assert (s.requests.ok, s.ttft_s.count) == (50, 50)


def test_workers_that_never_ran_at_the_same_time_have_measured_nothing() -> None:
    s = summarize(StepRun(PLAN, (record(),) * 50, (9_000 * MS, 8_000 * MS), (0.0,), is_cut_short=False), PROMISED)
    assert (s.valid, s.reason) == (False, "too_few_requests")


@pytest.mark.parametrize(("stopped_s", "reason"), [(0.08, None), (0.2, "client_bound"), (5.0, "client_bound")])
@pytest.mark.fault(
    "D08s",
    "Kneewatch is stopped for seconds in the middle of a step",
    area="Time",
    users_see="the step is `client_bound`",
    stays="the capacity is computed without it",
)
def test_a_stop_is_forgiven_where_it_lasts_less_than_a_hundredth_of_the_step(
    stopped_s: float, reason: str | None
) -> None:
    """However long it lasts, it is one sample."""
    lags = (*[0.0] * 999, stopped_s)
    s = summarize(StepRun(PLAN, (record(),) * 50, WINDOW, lags, is_cut_short=False), PROMISED)
    assert s.reason == reason


def test_a_window_of_no_length_divides_by_no_zero() -> None:
    s = summarize(StepRun(PLAN, (record(),), (5, 5), (), is_cut_short=False), PROMISED)
    assert math.isfinite(s.throughput_rps)


def test_the_servers_worst_is_kept() -> None:
    polls = [poll(running=1, waiting=0, kv_cache_usage=0.5), poll(running=9, waiting=7, kv_cache_usage=0.2)]
    peaks = summarize(StepRun(PLAN, (), WINDOW, (), is_cut_short=False), PROMISED, polls=polls).server
    assert (peaks.running_peak, peaks.waiting_peak, peaks.kv_cache_usage_peak, peaks.preemptions) == (9, 7, 0.5, 0)


@pytest.mark.parametrize(
    ("queries", "hits", "ratio"),
    [
        ((100, 500), (80, 380), 0.75),
        ((100, 100), (80, 80), None),
        ((500, 100), (80, 0), None),
        ((None, 9), (None, 1), None),
    ],
)
def test_prefix_hits_are_those_of_the_step(
    queries: tuple[float | None, float], hits: tuple[float | None, float], ratio: float | None
) -> None:
    polls = [poll(prefix_cache_queries=q, prefix_cache_hits=h) for q, h in zip(queries, hits, strict=True)]
    found = summarize(StepRun(PLAN, (), WINDOW, (), is_cut_short=False), PROMISED, polls=polls).server
    assert found.prefix_hit_ratio == ratio


def test_peaks_that_the_server_does_not_report_are_not_zero() -> None:
    blind = poll(running=None, waiting=None, kv_cache_usage=None, preemptions=None)
    for polls in ([], [blind, blind]):
        peaks = summarize(StepRun(PLAN, (), WINDOW, (), is_cut_short=False), PROMISED, polls=polls).server
        assert (peaks.running_peak, peaks.waiting_peak, peaks.kv_cache_usage_peak, peaks.preemptions) == (None,) * 4


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_preemptions_grow_also_across_a_restart_of_the_server(counts: list[float]) -> None:
    polls = [poll(preemptions=count) for count in counts]
    peaks = summarize(StepRun(PLAN, (), WINDOW, (), is_cut_short=False), PROMISED, polls=polls).server
    assert peaks.preemptions is None if not counts else peaks.preemptions is not None and peaks.preemptions >= 0
    if counts == sorted(counts) and counts:
        assert peaks.preemptions == pytest.approx(counts[-1] - counts[0])


def _over_s(*records: RequestRecord) -> float:
    return covered_seconds(span for one in records for span in over_objective(one, PROMISED))


def test_time_over_an_objective_counts_once_however_many_requests_wait() -> None:
    # TTFT within 500 ms is promised: each of these is late for 100 ms, and the first three at about the same time.
    slow = [record(at_ms=at, ttft_ms=600) for at in (0, 10, 20, 1000, 5000)]
    assert _over_s(*slow, record()) == pytest.approx(0.120 + 0.1 + 0.1)
    assert _over_s() == 0.0
    assert _over_s(record()) == 0.0


def test_a_failed_request_is_over_an_objective_from_its_start_to_its_end() -> None:
    assert _over_s(failure(done_ns=700 * MS)) == pytest.approx(0.7)


def test_a_slow_request_is_over_an_objective_from_its_first_token_to_its_last() -> None:
    late = record(ttft_ms=100, gap_ms=900, tokens=3)
    assert _over_s(late) == pytest.approx(1.8, abs=0.01)


def test_a_cancelled_request_is_over_once_its_objectives_would_have_ended_it() -> None:
    asked = spec(output_tokens=11)
    allowed_ms = 500 + 10 * PROMISED.tpot.within_s * 1000 if PROMISED.tpot else 0
    hung = failure(Outcome.ABORTED, spec=asked, done_ns=round((allowed_ms + 300) * MS))
    assert _over_s(hung) == pytest.approx(0.3)
    assert _over_s(failure(Outcome.ABORTED, spec=asked, done_ns=200 * MS)) == 0.0


def _of_gaps(*gaps_ms: float, late_ms: float = 0.0) -> RequestRecord:
    stamps = [100.0]
    for gap_ms in gaps_ms:
        stamps.append(stamps[-1] + gap_ms)
    events = token_events(((round(at_ms * MS), 1, True) for at_ms in stamps), late_ns=round(late_ms * MS))
    return replace(record(tokens=len(stamps)), events=events, done_ns=round(stamps[-1] * MS))


def test_a_step_breaks_e2e_and_the_longest_gap() -> None:
    promised = Objectives("o", e2e=Objective(0.9, 0.5), itl=Objective(0.9, 0.1))
    assert summary([_of_gaps(90, 90)] * 50, promised).broken == ()
    assert summary([_of_gaps(90, 90)] * 44 + [_of_gaps(10, 10, 110)] * 6, promised).broken == ("itl",)
    assert summary([_of_gaps(90, 90)] * 44 + [_of_gaps(*[90] * 5)] * 6, promised).broken == ("e2e",)


def test_gaps_that_are_late_on_our_side_alone_break_no_itl() -> None:
    """A hundred gaps below the limit say little where one in a hundred was read late."""
    promised = Objectives("o", itl=Objective(0.9, 0.1))
    good, late = [_of_gaps(*[10] * 40)] * 40, _of_gaps(*[10] * 40, 105)
    misread = replace(late, events=replace(late.events, late_ns=array("q", [0] * 41 + [50 * MS])))
    assert summary(good + [misread] * 10, promised).reason == "client_bound"
    assert summary(good + [late] * 10, promised).broken == ("itl",)
    assert summary(good + [misread] * 4, promised).broken == (), "held with those misses, too"


def test_a_request_is_over_e2e_and_itl_for_what_exceeds_them() -> None:
    promised = Objectives("o", e2e=Objective(0.9, 0.5), itl=Objective(0.9, 0.1))
    (late,) = over_objective(_of_gaps(*[100] * 6), promised)
    assert late == (500 * MS, 700 * MS)
    (paused,) = over_objective(_of_gaps(10, 150, 10), promised)
    assert paused == (210 * MS, 260 * MS)
    hung = failure(Outcome.ABORTED, done_ns=800 * MS)
    assert over_objective(hung, promised) == [(500 * MS, 800 * MS)]
    assert over_objective(hung, replace(promised, e2e=None)) == []


def test_tokens_are_charged_also_for_what_failed() -> None:
    assert tokens_spent(record(tokens=3)) == (8, 3)
    assert tokens_spent(failure()) == (8, 0)
    assert tokens_spent(record(tokens=2, outcome=Outcome.BROKEN_STREAM)) == (8, 2)


def test_a_cancelled_request_costs_all_of_its_tokens() -> None:
    assert tokens_spent(failure(Outcome.ABORTED, spec=spec(output_tokens=5))) == (8, 5)


@pytest.mark.parametrize("outcome", [Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.REJECTED])
def test_a_refused_request_costs_no_tokens(outcome: Outcome) -> None:
    assert tokens_spent(failure(outcome)) == (0, 0)


def test_a_request_that_was_rejected_inside_its_stream_costs_what_came() -> None:
    assert tokens_spent(record(tokens=2, outcome=Outcome.REJECTED)) == (8, 2)


RECORDS = st.lists(
    st.builds(
        record,
        at_ms=st.floats(0, 12_000),
        ttft_ms=st.floats(100, 3000),
        gap_ms=st.floats(0, 100),
        tokens=st.integers(0, 4),
        lag_ms=st.floats(0, 100),
        outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.TIMEOUT, Outcome.ABORTED]),
    ),
    max_size=40,
)


@examples(50)
@given(RECORDS, st.floats(0, 0.2))
def test_invariants_of_any_step(records: list[RequestRecord], lag: float) -> None:
    s = summary(records, lag=lag)
    assert 0 <= s.goodput_rps <= s.throughput_rps * (1 + 1e-9)
    assert s.throughput_rps <= s.offered_rps * (1 + 1e-9)
    due = [r for r in records if WINDOW[0] <= r.scheduled_ns <= WINDOW[1]]
    assert s.requests.ok + s.requests.failed + s.requests.aborted == len(due)
    assert s.valid == (s.reason is None)
    assert s.valid or not s.broken
    assert set(s.broken) <= set(s.good_ratio)
    assert s.good_ratio.get(ALL, 0.0) <= s.good_ratio.get(AVAILABILITY, 1.0)
    again = summary(records[::-1], lag=lag)
    assert (again.ttft_s, again.broken, again.good_ratio) == (s.ttft_s, s.broken, s.good_ratio)


@pytest.mark.fault("D02r")
def test_a_step_of_answers_that_were_held_back_judges_no_tpot() -> None:
    streamed, held_back = [record(at_ms=i) for i in range(20)], [record(at_ms=i, gap_ms=0) for i in range(21)]
    most = summary(streamed + held_back)
    assert (most.valid, most.reason, most.broken) == (False, "held_back", ())
    half = summary(streamed + held_back[:20])
    assert (half.valid, half.tpot_s.p50) == (True, pytest.approx(0.01))
    assert summary(held_back, Objectives("x", ttft=Objective(0.95, 0.5))).valid, "nothing limits its TPOT"


def _spread(events: int, tokens: int, first_ms: int, at_ms: int) -> RequestRecord:
    """Return an answer whose usage came at its end: as many tokens in each event, 20 ms apart."""
    stamps = (((at_ms + first_ms + 20 * i) * MS, tokens // events, True) for i in range(events))
    counted = replace(token_events(stamps), unplaced=tokens - events)
    return record(at_ms=at_ms, ttft_ms=first_ms, events=counted, output_tokens=tokens)


def test_a_step_of_answers_that_do_not_show_their_tokens_counts_all_and_judges_no_tpot() -> None:
    hidden = summary([_spread(16, 64, 400, at_ms=i) for i in range(40)])
    assert (hidden.valid, hidden.reason, hidden.tpot_s.p50) == (False, "held_back", None)
    assert hidden.tokens_per_event == 4
    assert hidden.output_tokens_per_second == pytest.approx(64 * hidden.throughput_rps, rel=0.01)
    assert summary([_spread(16, 64, 20, at_ms=i) for i in range(40)]).tpot_s.p50 == pytest.approx(0.32 / 63)


def test_gaps_of_events_that_came_in_one_read_are_left_out() -> None:
    """A proxy that passes on three tokens at a time has a gap of three steps, and two that nobody knows."""
    events = token_events(((100 + 30 * i) * MS, 1, True) for i in range(8) for _ in range(3))
    found = summary([record(events=events, output_tokens=24) for _ in range(40)])
    assert (found.itl_s.p50, found.itl_s.mean) == (pytest.approx(0.03), pytest.approx(0.03))
    assert found.tpot_s.p50 == pytest.approx(0.01)


def test_what_the_answered_requests_asked_for_leaves_out_the_others() -> None:
    """Beside it stands what the server counted of the answered ones."""
    cut = replace(record(at_ms=0), outcome=Outcome.ABORTED, prompt_tokens=0, output_tokens=0)
    long = replace(cut, spec=replace(cut.spec, prompt_tokens=900, output_tokens=700))
    tokens = summary([record(at_ms=i) for i in range(4)] + [long] * 4).tokens
    assert (tokens.answered_prompts, tokens.answered_answers) == (cut.spec.prompt_tokens, cut.spec.output_tokens)
    assert tokens.prompts.mean == (cut.spec.prompt_tokens + 900) / 2
    nothing = summary([long]).tokens
    assert (nothing.answered_prompts, nothing.answered_answers) == (None, None)

"""Objectives applied to requests."""

from dataclasses import replace
from typing import get_type_hints

import pytest
from example_records import token_events
from hypothesis import given
from hypothesis import strategies as st
from plain_records import MS, PROMISED, failure, record
from simulated_servers import workload

from probe.capacity.model.twin import Prediction
from probe.capacity.run.runner import over_objective
from probe.capacity.search.pulses import Pulse, Room, is_safe
from probe.cli.options import configuration
from probe.cli.parameters import ObjectiveOptions
from probe.cli.tune_command import TuneOptions
from probe.core.objectives import (
    ALL,
    AVAILABILITY,
    LATENCIES,
    Latency,
    Objective,
    Objectives,
    broken,
    good_ratio,
    may_be_client_delay,
    met,
)
from probe.core.request import UP, Outcome, RequestRecord
from probe.core.step import StepPlan, StepRun
from probe.load.step_summary import summarize

RECORDS = st.lists(
    st.builds(
        record,
        ttft_ms=st.floats(0, 2000),
        gap_ms=st.floats(0, 200),
        tokens=st.integers(0, 5),
        outcome=st.sampled_from(Outcome),
    ),
    max_size=30,
)
PROMISES = st.builds(
    Objectives,
    name=st.just("any"),
    availability=st.none() | st.floats(0.01, 0.999),
    ttft=st.none() | st.builds(Objective, st.floats(0.01, 0.999), st.floats(0.001, 2)),
    tpot=st.none() | st.builds(Objective, st.floats(0.01, 0.999), st.floats(0.001, 0.2)),
    e2e=st.none() | st.builds(Objective, st.floats(0.01, 0.999), st.floats(0.001, 3)),
    itl=st.none() | st.builds(Objective, st.floats(0.01, 0.999), st.floats(0.001, 0.2)),
)
WHOLE = replace(PROMISED, e2e=Objective(0.9, 0.6), itl=Objective(0.9, 0.1))


def test_a_good_request_meets_everything() -> None:
    assert met(record(), PROMISED) == {AVAILABILITY: True, "ttft": True, "tpot": True, ALL: True}


def test_exactly_at_the_threshold_is_within() -> None:
    """As in a histogram bucket, whose bound is inclusive."""
    on_time = record(ttft_ms=500, gap_ms=50)
    assert met(on_time, PROMISED)["ttft"]
    assert not met(record(ttft_ms=500.001), PROMISED)["ttft"]


def stalled(*gaps_ms: float, late_ms: float = 0.0) -> RequestRecord:
    """Return a request whose first token comes after 100 ms, with these gaps. Its stamps may be late."""
    stamps = [100.0]
    for gap_ms in gaps_ms:
        stamps.append(stamps[-1] + gap_ms)
    events = token_events(((round(at_ms * MS), 1, True) for at_ms in stamps), late_ns=round(late_ms * MS))
    return replace(record(tokens=len(stamps)), events=events)


def test_e2e_judges_the_last_token() -> None:
    assert met(record(ttft_ms=400, gap_ms=19, tokens=11), WHOLE)["e2e"]
    late = met(record(ttft_ms=401, gap_ms=20, tokens=11), WHOLE)
    assert (late["ttft"], late["tpot"], late["e2e"], late[ALL]) == (True, True, False, False)
    assert "e2e" not in met(failure(), WHOLE)


def test_itl_judges_the_longest_gap_however_short_the_others_are() -> None:
    assert met(stalled(5, 100, 5), WHOLE)["itl"]
    paused = met(stalled(*[5] * 60, 101), WHOLE)
    assert (paused["tpot"], paused["itl"], paused[ALL]) == (True, False, False)


def test_one_token_has_no_gap_and_meets_itl() -> None:
    assert met(record(tokens=1), WHOLE)["itl"]


def test_a_gap_that_our_lateness_explains_is_excused() -> None:
    assert may_be_client_delay(stalled(5, 110, 5, late_ms=11), WHOLE, 0.0)
    assert not may_be_client_delay(stalled(5, 130, 5, late_ms=11), WHOLE, 0.0)
    assert may_be_client_delay(stalled(5, 130, 5), WHOLE, 0.031)
    last = record(ttft_ms=450, gap_ms=20, tokens=11, lag_ms=60)
    assert met(last, WHOLE)["e2e"] is False
    assert may_be_client_delay(last, WHOLE, 0.0)


def test_one_slow_latency_spoils_the_request() -> None:
    verdict = met(record(ttft_ms=501), PROMISED)
    assert verdict == {AVAILABILITY: True, "ttft": False, "tpot": True, ALL: False}


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (*UP, Outcome.ABORTED)])
def test_a_failure_spends_the_availability_budget_alone(outcome: Outcome) -> None:
    assert met(failure(outcome), PROMISED) == {AVAILABILITY: False, ALL: False}


def test_cancelled_requests_count_for_no_objective() -> None:
    assert met(failure(Outcome.ABORTED), PROMISED) == {}
    assert good_ratio([failure(Outcome.ABORTED)] * 5, PROMISED) == {}


def test_one_token_meets_tpot_and_no_token_does_not_meet_ttft() -> None:
    assert met(record(tokens=1), PROMISED)["tpot"]
    assert not met(record(tokens=0), PROMISED)["ttft"]


def test_nothing_promised_is_nothing_broken() -> None:
    nothing = Objectives(name="none")
    assert set(met(record(ttft_ms=1e6), nothing)) == {AVAILABILITY, ALL}
    assert broken({AVAILABILITY: 0.0, ALL: 0.0}, nothing) == ()


def test_ratios_are_of_the_requests_each_objective_judges() -> None:
    records = [record()] * 6 + [record(ttft_ms=900)] * 2 + [failure()] * 2 + [failure(Outcome.ABORTED)] * 10
    assert good_ratio(records, PROMISED) == {AVAILABILITY: 0.8, "ttft": 0.75, "tpot": 1.0, ALL: 0.6}


def test_the_worst_kind_is_named_first() -> None:
    assert broken({"tpot": 0.0, "ttft": 0.0, AVAILABILITY: 0.0}, PROMISED) == (AVAILABILITY, "ttft", "tpot")


def test_a_ratio_that_is_just_what_was_promised_holds() -> None:
    assert broken({AVAILABILITY: 0.99, "ttft": 0.95, "tpot": 0.9}, PROMISED) == ()
    assert broken({"ttft": 0.9499}, PROMISED) == ("ttft",)


@given(RECORDS, PROMISES)
def test_ratios_are_shares(records: list[RequestRecord], promised: Objectives) -> None:
    ratios = good_ratio(records, promised)
    assert all(0 <= ratio <= 1 for ratio in ratios.values())
    if any(r.outcome is not Outcome.ABORTED for r in records):
        judged = [r for r in records if r.outcome is not Outcome.ABORTED]
        assert ratios[AVAILABILITY] == sum(r.outcome in UP for r in judged) / len(judged)
        assert ratios.get(ALL, 0.0) <= ratios[AVAILABILITY]
    assert set(broken(ratios, promised)) <= {AVAILABILITY, *LATENCIES}


@given(RECORDS, PROMISES)
def test_the_order_of_requests_does_not_matter(records: list[RequestRecord], promised: Objectives) -> None:
    assert good_ratio(records, promised) == good_ratio(records[::-1], promised)


@given(RECORDS, PROMISES, st.floats(1, 10))
def test_a_laxer_threshold_is_met_at_least_as_often(
    records: list[RequestRecord], promised: Objectives, by: float
) -> None:
    def laxer(objective: Objective | None) -> Objective | None:
        return objective and Objective(objective.ratio, objective.within_s * by)

    lax = replace(promised, **{name: laxer(getattr(promised, name)) for name in LATENCIES})
    strict_ratios, lax_ratios = good_ratio(records, promised), good_ratio(records, lax)
    assert all(lax_ratios[name] >= ratio for name, ratio in strict_ratios.items())
    assert set(broken(lax_ratios, lax)) <= set(broken(strict_ratios, promised))


def test_client_bound_requests_count_for_availability_alone() -> None:
    assert met(record(outcome=Outcome.CLIENT_BOUND), PROMISED) == {AVAILABILITY: True}


@given(
    ttft_ms=st.floats(0, 2000),
    gap_ms=st.floats(0, 200),
    tokens=st.integers(1, 20),
    outcome=st.sampled_from(Outcome),
    lag_ms=st.floats(0, 300),
    waking_s=st.floats(0, 0.3),
    promised=PROMISES,
)
@pytest.mark.fault("ST1")
def test_only_a_miss_that_our_lateness_can_explain_is_excused(
    *,
    ttft_ms: float,
    gap_ms: float,
    tokens: int,
    outcome: Outcome,
    lag_ms: float,
    waking_s: float,
    promised: Objectives,
) -> None:
    one = record(ttft_ms=ttft_ms, gap_ms=gap_ms, tokens=tokens, outcome=outcome, lag_ms=lag_ms)
    excused = may_be_client_delay(one, promised, waking_s)
    if outcome is not Outcome.OK or met(one, promised)[ALL]:
        assert not excused
    elif promised.ttft is not None and (ttft_ms - lag_ms) * 1e-3 - waking_s > promised.ttft.within_s + 1e-9:
        assert not excused  # too slow, however late we were
    if excused:
        assert lag_ms * 1e-3 + waking_s > 0


@pytest.mark.fault("D02")
def test_a_stream_that_was_held_back_neither_meets_nor_misses_what_is_judged_by_gaps() -> None:
    """All tokens in one read: the time between them is unknown, and may have been within the objective or not."""
    assert met(record(gap_ms=0), PROMISED) == {AVAILABILITY: True, "ttft": True, ALL: True}
    assert met(record(gap_ms=0), WHOLE) == {AVAILABILITY: True, "ttft": True, "e2e": True, ALL: True}
    assert met(record(gap_ms=0, ttft_ms=501), PROMISED) == {AVAILABILITY: True, "ttft": False, ALL: False}
    assert good_ratio([record(gap_ms=0), record(gap_ms=51)], PROMISED)["tpot"] == 0.0
    assert not may_be_client_delay(record(gap_ms=0), PROMISED, 1.0)


@pytest.mark.parametrize("row", LATENCIES.values(), ids=list(LATENCIES))
def test_a_latency_is_known_wherever_its_row_is_not_read(row: Latency) -> None:
    """Options, keys, predictions, and what computes each latency in its own way: a run, a step and a pulse."""
    asked = configuration(None, "http://127.0.0.1:9", objectives=ObjectiveOptions(**{row.name: "1s"}))
    assert asked.objectives_of(asked.targets[0]).latencies()[row.name].within_s == 1.0
    for options in (ObjectiveOptions, TuneOptions):
        option = get_type_hints(options, include_extras=True).get(row.name)
        assert option is None or f"Default: {row.usual or 'none'}." in option.__metadata__[0].help
    assert f"{row.name}_p50_s" in Prediction.__dataclass_fields__

    strict = Objectives("strict", **{row.name: Objective(0.9, 1e-3)})
    assert list(over_objective(record(), strict))
    pulse, lengths = [Pulse(1, 0.05, 0.01)], workload(8, 3)
    assert [is_safe(1, pulse, lengths, each, Room()) for each in (Objectives("none"), strict)] == [True, False]
    run = StepRun(StepPlan(1, 15.0), (record(),) * 50, (0, 15_000 * MS), (0.0,), is_cut_short=False)
    summary = summarize(run, strict)
    assert summary.broken == (row.name,)
    assert row.of_step(summary).p50 == pytest.approx(row.of_request(record()))


def test_lateness_lengthens_a_tpot_by_its_share_of_the_tokens_that_it_counts() -> None:
    """Four tokens came with the first event: the other four took 60 ms each, or 49 ms without our 45 ms."""
    events = token_events([(100 * MS, 4, True), (340 * MS, 4, True)], late_ns=45 * MS)
    slow = record(events=events, output_tokens=8)
    tight = Objectives("o", tpot=Objective(0.95, 0.05))
    assert met(slow, tight)["tpot"] is False
    assert may_be_client_delay(slow, tight, 0.0)

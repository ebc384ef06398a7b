"""What a server's latencies are beside its twin's: factors, and what is left over."""

import math
from dataclasses import replace

import pytest
from example_records import CHAT, record, spec, step
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.model.replay import ReplayPrediction
from probe.capacity.search.search_step import SearchStep, tail_latencies
from probe.capacity.search.step_replay import _pooled, estimate_correction, unexplained_tail
from probe.core.step import Arrivals, Distribution, StepPlan, StepRun

RUN = StepRun(
    StepPlan(100, 10.0, loop="open", arrivals=Arrivals(rate_rps=10.0)), (), (0, 10**10), (), is_cut_short=False
)
AS_SEEN = ReplayPrediction(
    ttft_s=0.3, tpot_s=0.03, ttft_p50_s=0.1, tpot_p50_s=0.02, running=5.0, preemptions=0.0, scatter={}
)


def _step(rate_rps: float = 10.0, predicted: ReplayPrediction = AS_SEEN, scatter: float = 0.05) -> SearchStep:
    """Return a step with p95 latencies of 100 ms and 20 ms, or 300 ms and 30 ms."""
    seen = replace(
        step(),
        ttft_s=Distribution(count=4000, mean=0.12, p50=0.1, p95=0.3),
        tpot_s=Distribution(count=4000, mean=0.02, p50=0.02, p95=0.03),
    )
    by_chance = {"ttft_s": scatter, "tpot_s": scatter, "ttft_p50_s": 0.02, "tpot_p50_s": 0.005}
    twin = replace(predicted, scatter=by_chance)
    return SearchStep(rate_rps, seen, RUN, None, predicted=twin, tails={"ttft": 0.3, "tpot": 0.03})


def _twin(times: float, tail_times: float = 1.0) -> ReplayPrediction:
    """Return a twin that is faster by this factor, and more so in its tail."""
    return replace(
        AS_SEEN,
        ttft_p50_s=0.1 / times,
        tpot_p50_s=0.02 / times,
        ttft_s=0.3 / times / tail_times,
        tpot_s=0.03 / times / tail_times,
    )


def test_a_twin_that_is_right_is_not_corrected() -> None:
    assert estimate_correction([_step()], CHAT) == {"ttft": 1.0, "tpot": 1.0}
    assert unexplained_tail(_step(), {}, CHAT) == 0.0


def test_a_twin_that_is_too_fast_is_corrected_by_as_much() -> None:
    found = estimate_correction([_step(predicted=_twin(1.1))], CHAT)
    assert found["ttft"] == pytest.approx(1.1, abs=0.04)
    assert found["tpot"] == pytest.approx(1.1, abs=0.01)


def test_a_tail_that_is_off_by_more_than_the_median_is_corrected_too() -> None:
    found = estimate_correction([_step(predicted=_twin(1.0, 1.2))], CHAT)
    assert found["tpot"] == pytest.approx(1.2, abs=0.03)


def test_a_tail_that_chance_moves_as_much_corrects_nothing() -> None:
    found = estimate_correction([_step(predicted=_twin(1.0, 1.2), scatter=0.4)], CHAT)
    assert found["tpot"] == pytest.approx(1.0, abs=0.01)


def test_the_highest_load_counts_most() -> None:
    low, high = _step(5.0, _twin(1.0)), _step(10.0, _twin(1.2))
    assert estimate_correction([low, high], CHAT)["tpot"] > 1.12


def test_a_tail_that_no_factor_explains_is_left_over() -> None:
    """One tail says more, the other less than what both were corrected by."""
    step = _step(predicted=_twin(1.0, 1.5))
    assert unexplained_tail(step, {}, CHAT) == pytest.approx(math.log(1.5) - 0.054)
    assert unexplained_tail(step, {"ttft": 1.5, "tpot": 1.5}, CHAT) == 0.0


def test_a_correction_takes_no_more_than_chance_leaves_over() -> None:
    assert _pooled([(0.1, 0.001, 1.0)]) == pytest.approx(0.1, rel=1e-3)
    assert _pooled([(0.1, 0.2, 1.0)]) == 0.0
    assert 0 < _pooled([(0.1, 0.05, 1.0)]) < 0.1
    assert _pooled([(0.0, 0.1, 1.0)]) == 0.0
    assert _pooled([(0.1, 0.001, 3.0), (-0.1, 0.001, 1.0)]) == pytest.approx(0.05, rel=1e-2)


@given(st.lists(st.floats(0.01, 2.0), min_size=8, max_size=200))
def test_a_tail_is_the_percentile(waits: list[float]) -> None:
    asked = spec(output_tokens=2)
    records = tuple(record(ttft_s=wait, start_s=1 + i, asked=asked) for i, wait in enumerate(waits))
    found = tail_latencies(replace(RUN, records=records, window_ns=(0, 10**12)), CHAT)["ttft"]
    assert min(waits) * 0.999 <= found <= max(waits) * 1.001
    assert sum(wait > found * 1.001 for wait in waits) <= 0.05 * len(waits) + 1  # it may lie between two

"""Two measurements against one another: what is worse, what cannot be told, and what must not be compared."""

from dataclasses import replace

import pytest
from example_records import no_knee, result, step
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.trend.compare import (
    Comparison,
    best,
    change_of,
    compare,
    has_drifted,
    is_clear_loss,
    verdict_beside,
)
from probe.capacity.trend.measurement import (
    CAPACITY,
    HIGHER,
    LOWER,
    RATE,
    SECONDS,
    SHARE,
    ComparisonSection,
    Measurement,
    Value,
    of_result,
)
from probe.core.percentiles import distribution
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.step import Arrivals, Distribution, RequestCounts, SentTokens, StepPlan, TokenCounts

TOLERANCE = 0.05


def _side(name: str = "base", **values: Value) -> Measurement:
    return Measurement(
        name=name, kind="kneewatch", parts={"model": "m"}, sections={"concurrency 4": ComparisonSection(values)}
    )


def _verdict(before: Value, after: Value, tolerance: float = TOLERANCE) -> str:
    (row,) = compare(_side(x=before), _side("new", x=after), tolerance).rows
    return row.verdict


def _results(base: CapacityResult, new: CapacityResult) -> Comparison:
    return compare(of_result("a.json", base), of_result("b.json", new), TOLERANCE)


def _rate(value: float, lower: float | None = None, upper: float | None = None) -> Value:
    return Value(value, RATE, HIGHER, lower, upper)


# One metric.


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (_rate(40), _rate(38.1), "same"),
        (_rate(40), _rate(37.9), "worse"),
        (_rate(40), _rate(42.1), "better"),
        (Value(0.1, SECONDS, LOWER), Value(0.106, SECONDS, LOWER), "worse"),
        (Value(0.1, SECONDS, LOWER), Value(0.094, SECONDS, LOWER), "better"),
        (_rate(40, 38, 42), _rate(36, 34, 38), "unclear"),
        (_rate(40, 38, 42), _rate(36, 34, 37.9), "worse"),
        (_rate(40, 38, 42), _rate(44, 42.1, 46), "better"),
        (_rate(40, 39.9, 40.1), _rate(39, 38.9, 39.1), "same"),
        (_rate(40, 40, None), _rate(20, 20, None), "unclear"),
        (_rate(40, 40, None), _rate(20, 20, 30), "worse"),
        (_rate(40, 38, 42), _rate(30), "worse"),
        (Value(0.0, SHARE, LOWER), Value(0.04, SHARE, LOWER), "same"),
        (Value(0.0, SHARE, LOWER), Value(0.06, SHARE, LOWER), "worse"),
        (Value(4, "requests in flight", None), Value(1, "requests in flight", None), "-"),
    ],
)
def test_a_change_counts_beyond_the_tolerance_and_the_intervals(before: Value, after: Value, verdict: str) -> None:
    assert _verdict(before, after) == verdict


def test_a_tolerance_of_zero_leaves_it_to_the_intervals() -> None:
    assert _verdict(_rate(40, 39.9, 40.1), _rate(39.7, 39.6, 39.8), tolerance=0.0) == "worse"
    assert _verdict(_rate(40, 39, 41), _rate(39.7, 39, 41), tolerance=0.0) == "unclear"
    assert _verdict(_rate(40, 39, 41), _rate(40, 39, 41), tolerance=0.0) == "same"


VALUES = st.builds(_rate, st.floats(0.1, 100), st.none() | st.floats(0.01, 0.1), st.none() | st.floats(100, 200))


@given(VALUES, VALUES, st.sampled_from([0.0, 0.05]))
def test_a_comparison_reversed_reverses_its_verdict(one: Value, other: Value, tolerance: float) -> None:
    assert {_verdict(one, other, tolerance), _verdict(other, one, tolerance)} in (
        {"same"}, {"unclear"}, {"better", "worse"}, {"same", "better"}, {"same", "worse"}, {"same", "unclear"},
    )  # fmt: skip
    assert _verdict(one, one, tolerance) == "same"


# Results.


def test_a_result_is_the_same_as_itself_metric_by_metric() -> None:
    found = _results(result(), result())
    assert {row.verdict for row in found.rows} <= {"same", "-"}
    assert (found.has_regressed, found.problems, dict(found.differs)) == (False, (), {})
    metrics = [row.metric for row in found.rows if row.section == "concurrency 4"]
    assert metrics[:4] == ["throughput", "goodput", "output", "failed"]
    assert metrics[4:] == [f"{name} {p}" for name in ("TTFT", "TPOT", "ITL", "E2E") for p in ("p50", "p95", "p99")]


def test_a_lower_capacity_is_a_regression_where_the_bounds_lie_apart() -> None:
    def at(rps: float, upper: float) -> CapacityResult:
        return result(capacity=Capacity("verified", rps, rps * 0.95, upper, None, None))

    assert not _results(at(40.0, 42.0), at(39.0, 41.0)).has_regressed
    worse = _results(at(40.0, 42.0), at(30.0, 31.0))
    assert worse.has_regressed
    (capacity,) = (row for row in worse.rows if row.section == CAPACITY)
    assert capacity.change == pytest.approx(-0.25)


def test_a_knee_that_is_gone_is_a_regression() -> None:
    found = _results(result(), result(capacity=no_knee("the lowest step broke ttft"), stopped=Stopped("done")))
    assert found.has_regressed
    assert found.rows[0].new is None
    assert "b.json found no capacity: the lowest step broke ttft" in found.notes


def test_a_run_that_was_ended_before_it_found_anything_is_no_regression_and_not_comparable() -> None:
    found = _results(result(), result(capacity=no_knee(), stopped=Stopped("interrupt")))
    assert not [row for row in found.rows if row.section == CAPACITY]
    assert found.problems == (
        "b.json found no capacity, and does not show that there is none: no step was valid: too_few_requests",
    )


def test_a_run_whose_levels_were_not_judged_is_no_regression_and_not_comparable() -> None:
    late = result(steps=[replace(step(4), is_late=True)])
    assert not [row for row in _results(result(steps=[step(4)]), late).rows if row.section != CAPACITY]
    unjudged = result(steps=[step(4, reason="too_few_requests")], capacity=no_knee("too_few_requests"))
    found = _results(result(), replace(unjudged, stopped=Stopped("done")))
    assert found.rows == ()
    assert "b.json found no capacity, and does not show that there is none: too_few_requests" in found.problems


def test_steps_that_the_base_had_broken_already_judge_nothing() -> None:
    slow = Distribution(count=100, p50=9.0, p95=9.0, p99=9.0)
    base = result(steps=[step(4), step(8, broken=("ttft",))])
    new = result(steps=[step(4), replace(step(8, broken=("ttft",)), ttft_s=slow)])
    found = _results(base, new)
    assert not found.has_regressed
    assert any("concurrency 8 judges nothing" in note for note in found.notes)
    held = result(steps=[step(4), step(8)])
    assert _results(held, new).has_regressed


def test_a_new_step_that_holds_what_the_base_had_broken_is_better_and_nothing_of_it_is_worse() -> None:
    fast, slow = (Distribution(count=100, p50=each, p95=each, p99=each) for each in (0.1, 9.0))
    base = result(steps=[step(4), replace(step(8, broken=("ttft",)), ttft_s=slow, itl_s=fast)])
    found = _results(base, result(steps=[step(4), replace(step(8), ttft_s=fast, itl_s=slow)]))
    verdicts = {row.metric: row.verdict for row in found.rows if row.section == "concurrency 8"}
    assert (verdicts["TTFT p50"], verdicts["ITL p50"]) == ("better", "-")
    assert "concurrency 8 judges only what is better: a.json broke ttft there already" in found.notes


def test_void_steps_and_steps_of_one_side_are_named_and_not_compared() -> None:
    base, new = result(steps=[step(1), step(4), step(8)]), result(steps=[step(4, reason="client_bound"), step(8)])
    found = _results(base, new)
    assert {row.section for row in found.rows} == {CAPACITY, "concurrency 8"}
    assert "only in a.json: concurrency 1" in found.notes
    assert "concurrency 4 is void in b.json (client_bound)" in found.notes


def test_failures_count() -> None:
    failing = replace(step(4), requests=RequestCounts(ok=100, failed=20, aborted=0))
    assert _results(result(steps=[step(4)]), result(steps=[failing])).has_regressed


@pytest.mark.fault(
    "TR143",
    "Two results are compared in which no request was answered",
    area="Truth",
    users_see="not comparable, no request answered; exit 2",
    stays="two servers that answer nothing are not the same",
)
def test_two_levels_without_an_answer_say_nothing_of_each_other() -> None:
    dead = replace(step(4, broken=("availability",), rps=0.0), requests=RequestCounts(ok=0, failed=150, aborted=0))
    silent = result(steps=[dead], capacity=no_knee())
    found = _results(silent, silent)
    assert found.rows == ()
    assert any("concurrency 4, no request answered" in problem for problem in found.problems)
    alive = _results(result(steps=[step(4)]), result(steps=[dead], capacity=no_knee()))
    assert alive.has_regressed, "a server that no longer answers is worse"


def test_open_loops_are_distinguished_by_their_rate() -> None:
    open_loop = replace(step(4), plan=StepPlan(concurrency=64, seconds=10, arrivals=Arrivals(rate_rps=2.5)))
    assert list(of_result("a", result(steps=[open_loop])).sections)[-1] == "rate 2.5 (poisson)"


def _latencies(seconds: list[float]) -> CapacityResult:
    slow = distribution(seconds)
    return result(steps=[replace(step(4), ttft_s=slow, tpot_s=slow, e2e_s=slow, itl_s=slow)])


def test_a_percentile_that_too_few_requests_leave_open_is_unclear_and_the_median_decides() -> None:
    """Twenty requests, 3.7 times slower: their p95 has no upper end, so it is not judged, and not called the same."""
    fast = [0.1 + 0.001 * i for i in range(20)]
    found = _results(_latencies(fast), _latencies([3.72 * each for each in fast]))
    verdicts = {row.metric: row.verdict for row in found.rows if row.section == "concurrency 4"}
    assert (verdicts["TTFT p50"], verdicts["TTFT p95"], verdicts["TTFT p99"]) == ("worse", "unclear", "unclear")
    many = [0.1 + 0.001 * i for i in range(80)]
    found = _results(_latencies(many), _latencies([3.72 * each for each in many]))
    verdicts = {row.metric: row.verdict for row in found.rows if row.section == "concurrency 4"}
    assert (verdicts["TTFT p95"], verdicts["TTFT p99"]) == ("worse", "unclear")


# What must not be compared.


def test_a_cold_and_a_warm_prefix_are_comparable() -> None:
    def prefix(shared: int) -> CapacityResult:
        workload = {"name": f"prefix-{shared}", "prompt_tokens": 4096, "shared_tokens": shared}
        return replace(result(), context=replace(result().context, workload=workload))

    found = _results(prefix(0), prefix(3840))
    assert found.problems == ()
    assert found.differs == {"workload.shared_tokens": ("0", "3840")}


def test_another_version_or_model_is_what_a_comparison_is_for() -> None:
    one = result(model="llama")
    other = replace(result(model="llama-fp8"), context=replace(one.context, version="0.33.0", gpu="L40S"))
    found = _results(one, other)
    assert found.problems == ()
    assert found.differs == {
        "gpu": (None, "L40S"),
        "model": ("llama", "llama-fp8"),
        "version": ("unknown", "0.33.0"),
    }


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("workload", {"name": "short", "prompt_tokens": 9}, "workload.prompt_tokens is 8 in a.json and 9 in b.json"),
        ("workload", {"name": "short"}, "workload.prompt_tokens is 8 in a.json and not set in b.json"),
        ("objectives", {"ttft": {"within_s": 1.0}}, "objectives.ttft.within_s is not set in a.json and 1 in b.json"),
    ],
)
def test_another_workload_or_objective_is_not_comparable(part: str, value: dict[str, object], said: str) -> None:
    context = replace(result().context, **{part: value})  # type: ignore[arg-type]
    assert _results(result(), replace(result(), context=context)).problems == (said,)


def test_a_forecast_is_not_compared_with_a_measurement() -> None:
    forecast = result(capacity=Capacity("forecast", 10.0, 9.0, 11.0))
    assert _results(result(), forecast).problems == ("b.json is a forecast and a.json was measured",)
    assert _results(forecast, forecast).problems == ()


def test_nothing_in_common_is_not_comparable() -> None:
    base = result(steps=[step(1)], capacity=no_knee())
    new = result(steps=[step(2), step(4)], capacity=no_knee())
    assert _results(base, new).problems == (
        "no step was judged in both: a.json has concurrency 1 and b.json has concurrency 2; concurrency 4",
    )


def test_levels_of_too_few_requests_are_named_as_what_prevents_a_comparison() -> None:
    unjudged = result(steps=[step(4, reason="too_few_requests")], capacity=no_knee("too_few_requests"))
    (problem,) = _results(unjudged, result(steps=[step(4)], capacity=no_knee())).problems
    assert "a.json has concurrency 4, not judged (too_few_requests) and b.json has concurrency 4" in problem


def test_a_file_of_another_program_is_comparable_by_what_both_know() -> None:
    ours = of_result("a.json", result())
    theirs = replace(
        ours,
        name="b.json",
        kind="vllm bench serve",
        parts={"model": "n", "workload.api": "chat"},
        lengths={"prompt tokens": 128.0, "output tokens": 64.0},
    )
    found = compare(ours, theirs, TOLERANCE)
    assert found.problems == ()
    assert found.differs == {"model": ("m", "n")}
    longer = compare(ours, replace(theirs, lengths={"prompt tokens": 140.0}), TOLERANCE)
    assert longer.problems == ("prompt tokens are 128 on average in a.json and 140 in b.json",)


def test_lengths_are_those_of_the_answers_and_not_of_what_began_or_ended_in_a_short_step() -> None:
    edge = replace(step(4), prompt_tokens_per_second=0.9 * 128 * step(4).throughput_rps)
    counted = SentTokens(counted_prompts=TokenCounts(mean=128.0), counted_answers=TokenCounts(mean=64.0))
    lengths = of_result("a.json", result(steps=[replace(edge, tokens=counted)])).lengths
    assert lengths == pytest.approx({"prompt tokens": 128.0, "output tokens": 64.0})
    older = of_result("a.json", result(steps=[edge])).lengths
    assert older["prompt tokens"] == pytest.approx(0.9 * 128)


def _found(rps: float, half: float = 0.04, *, by: str = "done") -> CapacityResult:
    capacity = Capacity("verified", rps, lower=rps * (1 - half), upper=rps * (1 + half))
    return replace(result(capacity=capacity), stopped=Stopped(by))


def _none(by: str = "done", reason: str | None = None) -> CapacityResult:
    return replace(result(capacity=no_knee("it queued at the lightest load")), stopped=Stopped(by, reason))


def test_a_value_is_judged_by_its_interval_beside_the_base() -> None:
    for rps, verdict in ((13.0, "better"), (7.0, "worse"), (10.2, "same"), (10.7, "unclear")):
        assert verdict_beside([_found(10.0)], _found(rps), 0.05) == verdict


def test_a_value_has_to_beat_the_base_each_time() -> None:
    assert verdict_beside([_found(10.0), _found(10.4)], _found(13.0), 0.05) == "better"
    assert verdict_beside([_found(10.0), _found(10.4)], _found(11.0), 0.05) == "unclear"


def test_nothing_is_clear_where_the_machine_has_changed() -> None:
    bases = [_found(10.0), _found(12.0)]
    assert has_drifted(bases, 0.05)
    assert verdict_beside(bases, _found(20.0), 0.05) == "unclear"
    assert not has_drifted([_found(10.0), _found(10.4)], 0.05)
    assert has_drifted([_found(10.0), _none()], 0.05)


def test_a_value_that_holds_no_load_is_worse_and_one_that_was_interrupted_is_unclear() -> None:
    assert verdict_beside([_found(10.0)], _none("guard"), 0.05) == "worse"
    assert verdict_beside([_found(10.0)], _none("budget", "seconds"), 0.05) == "unclear"
    assert verdict_beside([_found(10.0)], _found(20.0, by="interrupt"), 0.05) == "unclear"


def test_a_run_that_ended_with_a_forecast_measured_nothing_that_decides() -> None:
    told = replace(_found(20.0), capacity=Capacity("forecast", 20.0, lower=19.0, upper=21.0))
    assert verdict_beside([_found(10.0)], told, 0.05) == "unclear"
    assert verdict_beside([told], _found(10.0), 0.05) == "unclear"


def test_a_lower_bound_above_the_base_is_better_and_one_below_it_is_unclear() -> None:
    above, below = (replace(_found(rps), capacity=Capacity("verified", rps, lower=rps * 0.95)) for rps in (13.0, 8.0))
    assert verdict_beside([_found(10.0)], above, 0.05) == "better"
    assert verdict_beside([_found(10.0)], below, 0.05) == "unclear"


def test_the_highest_of_the_better_values_is_chosen_and_none_without_one() -> None:
    results = {"8": _found(6.0), "32": _found(13.0), "64": _found(15.0), "128": _found(20.0)}
    verdicts = {"8": "worse", "32": "better", "64": "better", "128": "unclear"}
    assert best(verdicts, results) == "64"
    assert best({"8": "worse", "128": "unclear"}, results) is None


def test_a_prediction_is_a_clear_loss_if_its_whole_interval_is() -> None:
    assert [is_clear_loss(upper, 0.05) for upper in (-0.2, -0.04, 0.1, None)] == [True, False, False, False]


def test_a_change_has_the_ends_that_both_intervals_allow() -> None:
    change, lower, upper = change_of(_found(10.0), _found(15.0))
    assert (round(change or 0, 3), round(lower or 0, 3), round(upper or 0, 3)) == (0.5, 0.385, 0.625)
    assert change_of(_found(10.0), _none()) == (None, None, None)

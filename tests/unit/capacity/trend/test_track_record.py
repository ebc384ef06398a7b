"""Forecasts learn from their own record: bias, interval, and what one wild error may do."""

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from example_records import result
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.trend.track_record import (
    ForecastError,
    TrackRecord,
    correct,
    forecast_error,
    is_worth_saying,
    prior_forecast,
    track_record,
)
from probe.core.result import Capacity, CapacityResult, PriorForecast

MEASURED_HALF = 0.05
STATED = 0.1
FORECAST = Capacity("forecast", 10.0, 9.0, 11.0, output_tokens_per_second=1000.0, learnt_from=(2.0, 6.0))
VERIFIED = Capacity("verified", 8.0, 7.6, 8.4)

errors = st.builds(
    ForecastError,
    at_s=st.floats(0, 1e9),
    log_ratio=st.floats(-5, 5),
    half_width=st.floats(0.01, 0.35),
    measured_half_width=st.floats(0.0, 0.1),
)


def _error(log_ratio: float, half_width: float = STATED) -> ForecastError:
    return ForecastError(0.0, log_ratio, half_width, MEASURED_HALF)


def _missed(log_ratios: list[float], half_width: float = STATED) -> list[bool]:
    """Return which capacities lay outside of the corrected interval, each corrected by the record of those before."""
    record, missed = TrackRecord(), []
    for log_ratio in log_ratios:
        said = correct(Capacity("forecast", 1.0, 1 - half_width, 1 + half_width), record)
        truth = math.exp(-log_ratio)
        assert said.lower is not None
        assert said.upper is not None
        missed.append(not said.lower <= truth <= said.upper)
        record = record.add(_error(log_ratio, half_width))
    return missed


@pytest.mark.parametrize("scatter", [0.02, 0.06, 0.12], ids=["half of what is stated", "as stated", "twice"])
@pytest.mark.parametrize("drift", [0.0, 0.08])
@pytest.mark.parametrize("bias", [0.0, -0.15])
def test_nine_of_ten_corrected_intervals_hold_the_capacity_of_a_server_that_drifts(
    scatter: float, drift: float, bias: float
) -> None:
    chance = Random(0)
    log_ratios = [bias + drift * math.sin(night / 14) + chance.gauss(0, scatter) for night in range(500)]
    missed = _missed(log_ratios)[20:]
    share = sum(missed) / len(missed)
    assert share < 0.13
    assert share > 0.07 or 1.64 * scatter < MEASURED_HALF, "only the measurements' own interval may keep it wider"


def test_without_learning_a_bias_would_miss_most_of_them() -> None:
    chance = Random(0)
    assert sum(abs(math.exp(-chance.gauss(-0.15, 0.02)) - 1) > STATED for _ in range(100)) > 90
    chance = Random(0)
    assert sum(_missed([chance.gauss(-0.15, 0.02) for _ in range(100)])) < 15


@given(st.lists(errors, max_size=80), st.floats(0.01, 0.35))
def test_any_record_leaves_a_forecast_bounded_and_no_narrower_than_what_judged_it(
    known: list[ForecastError], stated: float
) -> None:
    record = track_record(known)
    said = correct(Capacity("forecast", 10.0, 10 * (1 - stated), 10 * (1 + stated)), record)
    assert said.requests_per_second is not None
    assert said.lower is not None
    assert said.upper is not None
    assert 0 <= said.lower < said.requests_per_second < said.upper
    half = said.upper / said.requests_per_second - 1
    floor = median(each.measured_half_width for each in known[-14:]) if known else 0.0
    assert 0.999 * floor <= half <= 1.001 * max(3 * stated, floor)
    most = max((abs(each.log_ratio) for each in known[-14:]), default=0.0)
    assert abs(math.log(said.requests_per_second / 10.0)) <= most + 1e-9


@given(st.lists(st.floats(-0.05, 0.05), max_size=30), st.sampled_from([-5.0, -1.0, 1.0, 5.0]))
def test_one_wild_error_moves_a_forecast_by_less_than_its_half_width(usual: list[float], wild: float) -> None:
    before = track_record([_error(each) for each in usual])
    after = before.add(_error(wild))
    assert abs(after.bias - before.bias) < STATED
    if before.alpha >= 0.1:
        assert after.factor < 1.2 * before.factor


def test_few_errors_move_a_forecast_hardly_and_many_all_the_way() -> None:
    moved = [-math.expm1(-track_record([_error(0.1)] * count).bias) for count in (0, 1, 3, 14, 60)]
    assert moved == pytest.approx([0.0, 0.025, 0.049, 0.079, 0.079], abs=0.001)


def test_a_forecast_that_is_always_twice_the_truth_is_corrected_beyond_its_own_interval() -> None:
    assert track_record([_error(math.log(2))] * 14).bias == pytest.approx(math.log(2) * 14 / 17)


def test_after_a_change_the_last_two_weeks_count() -> None:
    nights = [_error(0.1)] * 40 + [_error(-0.1)] * 14
    assert track_record(nights).bias == pytest.approx(-0.1 * 14 / 17)


def test_a_correction_keeps_the_forecast_from_before_it() -> None:
    said = correct(FORECAST, track_record([_error(0.2)] * 6))
    assert said.correction is not None
    assert said.correction.judged == 6
    assert said.correction.uncorrected == PriorForecast(10.0, pytest.approx(0.1))
    ratio = 1 + said.correction.ratio
    assert ratio == pytest.approx(math.exp(-0.2 * 6 / 9))
    assert said.requests_per_second == pytest.approx(10 * ratio)
    assert said.output_tokens_per_second == pytest.approx(1000 * ratio)
    assert (said.learnt_from, said.mode) == (FORECAST.learnt_from, "forecast")


def test_without_a_record_or_a_forecast_nothing_is_corrected() -> None:
    assert correct(FORECAST, TrackRecord()) is FORECAST
    withheld = Capacity("forecast", reason="not enough evidence")
    assert correct(withheld, track_record([_error(0.2)])) is withheld


def test_less_than_one_per_cent_is_not_worth_saying() -> None:
    assert not is_worth_saying(None)
    assert not is_worth_saying(correct(FORECAST, track_record([_error(0.02)])).correction)
    assert is_worth_saying(correct(FORECAST, track_record([_error(-0.1)])).correction)


def _run(capacity: Capacity = VERIFIED, forecast: Capacity = FORECAST, **values: object) -> CapacityResult:
    run = replace(result(capacity=capacity), **values)
    return replace(run, prior_forecast=prior_forecast(result(capacity=forecast), run))


def test_a_run_judges_the_forecast_from_before_it() -> None:
    error = forecast_error(_run())
    assert error is not None
    assert error.log_ratio == pytest.approx(math.log(10 / 8))
    assert (error.half_width, error.measured_half_width) == pytest.approx((0.1, 0.05))
    assert error.at_s == _run().ended_s


def test_a_corrected_forecast_is_judged_without_its_correction() -> None:
    """Else a bias that was found would be taken for gone, and come back."""
    corrected = correct(FORECAST, track_record([_error(0.2)] * 9))
    assert forecast_error(_run(forecast=corrected)) == forecast_error(_run())


@pytest.mark.parametrize(
    ("capacity", "forecast", "values"),
    [
        (replace(VERIFIED, upper=None), FORECAST, {}),
        (replace(VERIFIED, mode="forecast"), FORECAST, {}),
        (replace(VERIFIED, mode="empirical", lower=6.0), FORECAST, {}),
        (Capacity("verified", reason="withheld"), FORECAST, {}),
        (VERIFIED, Capacity("forecast", reason="not enough evidence"), {}),
        (VERIFIED, FORECAST, {"model": "another"}),
        (VERIFIED, FORECAST, {"confirms": "the one before"}),
    ],
    ids=["lower bound", "unverified", "too wide", "withheld", "no forecast", "other setup", "repeated"],
)
def test_a_run_that_cannot_judge_a_forecast_does_not(
    capacity: Capacity, forecast: Capacity, values: dict[str, object]
) -> None:
    assert forecast_error(_run(capacity, forecast, **values)) is None

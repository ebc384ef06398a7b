"""The choice among values of a setting: better only beyond both measurements of the base, else unclear."""

from dataclasses import replace

from example_records import no_knee, result

from probe.capacity.trend.tuning import best, change_of, has_drifted, is_clear_loss, verdict_beside
from probe.core.result import Capacity, CapacityResult, Stopped


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

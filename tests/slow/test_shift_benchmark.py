"""The figures that benchmarks/shift.py has to reach, on fewer cases. Its record has the whole."""

import pytest

from benchmarks.shift import bad_nights, decay, false_shifts, found, normal

USUAL = normal(0.03)


@pytest.mark.parametrize("noise", [USUAL, bad_nights(0.03)], ids=["log-normal", "bad nights"])
@pytest.mark.parametrize("baseline", [5, 28])
def test_at_most_one_false_shift_a_year(noise: object, baseline: int) -> None:
    assert false_shifts(40, noise, baseline=baseline)["all"] <= 1.0  # type: ignore[arg-type]


def test_ten_percent_less_is_found_within_four_runs() -> None:
    shares = found(400, USUAL, -0.1, baseline=28)["within_1_to_6_runs"]
    assert isinstance(shares, list)
    assert shares[3] >= 0.95


def test_a_slow_decay_is_always_said() -> None:
    said = decay(20, USUAL, 0.01)
    assert said["frozen"]["not_in_a_year"] == 0  # type: ignore[index]


def test_the_benchmark_can_fail() -> None:
    """Under noise of 12 % nothing finds a tenth less so soon; what did would cry wolf."""
    shares = found(100, normal(0.12), -0.1, baseline=28)["within_1_to_6_runs"]
    assert isinstance(shares, list)
    assert shares[3] < 0.95

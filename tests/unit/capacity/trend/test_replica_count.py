"""Replicas for a peak: enough at the lower end of the capacity, with the margin, and no more than that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.trend.replica_count import Demand, Price, good_share, replicas_for
from probe.core.objectives import Objective, Objectives
from probe.core.result import Capacity

MEASURED = Capacity("verified", 10.0, lower=9.0, upper=11.0, output_tokens_per_second=1280.0)
RATES = st.floats(0.01, 1000.0)


@given(RATES, RATES, st.floats(0.0, 0.9), st.integers(0, 5))
def test_without_the_spare_ones_the_rest_hold_the_peak_and_one_less_does_not(
    peak: float, least: float, margin: float, spare: int
) -> None:
    found = replicas_for(Demand(peak, margin, spare), Capacity("verified", 1.1 * least, lower=least, upper=1.2 * least))
    needed, each = found.count - spare, least * (1 - margin)
    assert needed * each >= peak * (1 - 1e-5)
    assert needed == 1 or (needed - 1) * each < peak
    assert found.fewest is not None
    assert 1 <= found.fewest - spare <= needed
    assert found.utilization <= found.utilization_without_spare <= found.most_utilization


def test_the_margin_is_a_share_of_each_replica_and_the_spare_ones_come_on_top() -> None:
    found = replicas_for(Demand(40.0, 0.2, 1), MEASURED)
    assert (found.count, found.fewest, found.is_at_most) == (7, 6, False)
    assert found.utilization == pytest.approx(40 / 70)
    assert found.utilization_without_spare == pytest.approx(40 / 60)
    assert found.most_utilization == pytest.approx(40 / 54)


def test_a_peak_that_fits_exactly_needs_no_replica_for_the_last_digit() -> None:
    exact = Capacity("verified", 10.0, lower=10.0, upper=10.0)
    assert replicas_for(Demand(40.0, 0.2, 0), exact).count == 5
    assert replicas_for(Demand(0.7 * 3 * 10.0, 0.3, 0), exact).count == 3


def test_a_lower_bound_says_at_most() -> None:
    least = replicas_for(Demand(40.0, 0.2, 1), Capacity("empirical", 10.0, lower=10.0))
    assert (least.count, least.fewest, least.is_at_most) == (6, None, True)


def test_the_price_of_a_million_good_tokens() -> None:
    # 2 GPUs at 3.6 an hour are 0.002 a second; 1000 tokens/s of which 800 are good.
    assert Price(3.6, 2).of_tokens(1, 1000.0, 0.8) == pytest.approx(0.002 / 800 * 1e6)
    assert Price(3.6, 2).of_tokens(3, 1000.0, 0.8) == pytest.approx(3 * Price(3.6, 2).of_tokens(1, 1000.0, 0.8))


def test_the_good_share_is_the_least_that_the_objectives_allow() -> None:
    objectives = Objectives("o", availability=0.999, ttft=Objective(0.95, 0.5), tpot=Objective(0.9, 0.05))
    assert good_share(objectives) == 0.9
    assert good_share(Objectives("none")) == 1.0

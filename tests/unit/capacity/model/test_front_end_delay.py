"""The front end, from how much later than the engine's our first tokens came."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.capacity.model.front_end_delay import DelaySample, FrontEndEstimate, candidate_front_ends, most_likely
from probe.simulator.cost import FrontEnd

NOTHING = FrontEndEstimate(FrontEnd(), 0.0)
RATES = (10.0, 20.0, 30.0, 45.0, 60.0)


def md1(rate_rps: float, service_s: float) -> float:
    """Return the mean time in a queue of requests of one length (M/D/1): service and wait."""
    return service_s + rate_rps * service_s**2 / (2 * (1 - rate_rps * service_s))


def front_of(seen: list[DelaySample], negligible_s: float) -> FrontEndEstimate:
    return most_likely(candidate_front_ends(seen, negligible_s))


def delays(service_s: float, added_s: float, noise_s: float, seed: int = 0) -> list[DelaySample]:
    source = random.Random(seed)
    return [
        DelaySample(
            rate, added_s + (md1(rate, service_s) if service_s else 0.0) + source.gauss(0, noise_s), 100, noise_s
        )
        for rate in RATES
    ]


@pytest.mark.parametrize("added_s", [0.0, 0.003])
@pytest.mark.parametrize("seed", range(10))
def test_a_queue_is_found_by_how_it_grows(added_s: float, seed: int) -> None:
    found = front_of(delays(0.012, added_s, 0.001, seed), 0.001)
    assert found.front_end.per_request_s == pytest.approx(0.012, rel=0.15)
    assert found.added_s == pytest.approx(added_s, abs=0.003)


def test_a_constant_is_no_queue() -> None:
    found = front_of(delays(0.0, 0.005, 0.0), 0.001)
    assert found == FrontEndEstimate(FrontEnd(), pytest.approx(0.005))


def test_at_one_rate_a_queue_looks_like_a_constant_and_is_taken_for_one() -> None:
    assert front_of([DelaySample(20.0, 0.05, 100, 0.001)], 0.001) == FrontEndEstimate(FrontEnd(), pytest.approx(0.05))


@pytest.mark.slow
def test_a_constant_with_noise_is_most_often_no_queue_and_never_a_long_one() -> None:
    found = [front_of(delays(0.0, 0.005, 0.0005, seed), 0.001) for seed in range(60)]
    assert sum(one.front_end == FrontEnd() for one in found) > 30
    assert max(one.front_end.per_request_s for one in found) < 0.0065


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_nothing(seed: int) -> None:
    assert front_of(delays(0.0, 0.0, 0.001, seed), 0.0) == NOTHING


def test_a_negligible_delay_counts_as_none() -> None:
    assert front_of(delays(0.0, 0.005, 0.0), 0.006) == NOTHING
    assert front_of(delays(0.0, 0.005, 0.0), math.inf) == NOTHING


def test_without_delays_there_is_nothing() -> None:
    assert front_of([], 0.0) == NOTHING


@pytest.mark.parametrize(
    "odd",
    [
        DelaySample(0.0, 0.01, 10, 0.001),
        DelaySample(-1.0, 0.01, 10, 0.001),
        DelaySample(math.nan, 0.01, 10, 0.001),
        DelaySample(10.0, math.nan, 10, 0.001),
        DelaySample(10.0, 0.01, 10, math.nan),
        DelaySample(10.0, math.inf, 10, 0.001),
        DelaySample(10.0, 0.01, 10, math.inf),
    ],
)
def test_values_that_are_no_delay_are_left_out(odd: DelaySample) -> None:
    assert front_of([odd], 0.0) == NOTHING
    assert front_of([odd, *delays(0.012, 0.0, 0.0)], 0.0) == front_of(delays(0.012, 0.0, 0.0), 0.0)


DELAYS = st.builds(
    DelaySample,
    rate_rps=st.one_of(st.floats(-10, 0), st.floats(1e-6, 1e6)),
    seconds=st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf])),
    requests=st.just(10),
    error_s=st.floats(0, 10),
)


@examples(40)
@given(st.lists(DELAYS, max_size=6), st.floats(0, 1))
def test_whatever_the_delays_the_front_end_keeps_up_with_what_was_seen(
    seen: list[DelaySample], negligible_s: float
) -> None:
    found = front_of(seen, negligible_s)
    assert math.isfinite(found.added_s)
    assert found.added_s >= 0
    for delay in seen:
        if math.isfinite(delay.seconds):
            assert found.front_end.per_request_s * delay.rate_rps < 1

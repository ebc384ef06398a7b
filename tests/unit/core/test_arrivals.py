"""When the requests of an open loop are due."""

import math
from itertools import accumulate, islice, pairwise, takewhile
from statistics import mean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.core.arrivals import due_ns
from probe.core.step import Arrivals, Pattern

RATES = st.floats(0.01, 5000)
RANDOM = [
    Arrivals(Pattern.POISSON, rate_rps=50),
    Arrivals(Pattern.GAMMA, rate_rps=50, burstiness=0.25),
    Arrivals(Pattern.RISING, rate_rps=80, start_rate_rps=20, ramp_s=10),
]


@st.composite
def patterns(draw: st.DrawFn) -> Arrivals:
    """Generate any pattern with the settings it needs."""
    return Arrivals(
        draw(st.sampled_from(Pattern)),
        rate_rps=draw(RATES),
        burstiness=draw(st.floats(0.05, 20)),
        start_rate_rps=draw(st.just(0.0) | RATES),
        ramp_s=draw(st.floats(0.1, 600)),
        times_s=tuple(draw(st.lists(st.floats(0, 1e6), max_size=30))),
    )


def first(arrivals: Arrivals, count: int, seed: int = 0) -> list[int]:
    return list(islice(due_ns(arrivals, seed), count))


@given(patterns(), st.integers(0, 2**31))
def test_times_begin_at_or_after_zero_and_never_go_back(arrivals: Arrivals, seed: int) -> None:
    times = first(arrivals, 100, seed)
    assert all(at >= 0 for at in times)
    assert times == sorted(times)


@given(patterns(), st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_times(arrivals: Arrivals, seed: int) -> None:
    assert first(arrivals, 50, seed) == first(arrivals, 50, seed)


@given(RATES, st.lists(st.floats(0.1, 60), min_size=1, max_size=4), st.integers(0, 2**31))
def test_in_a_counted_stretch_as_many_come_as_the_rate_says(rate: float, counted: list[float], seed: int) -> None:
    ends = list(accumulate(counted))
    if rate * ends[-1] > 5000:
        return
    due = [at * 1e-9 for at in first(Arrivals(rate_rps=rate, counted_s=tuple(counted)), round(rate * ends[-1]), seed)]
    for end in ends:
        assert sum(at <= end + 1e-9 for at in due) == round(rate * end)


def test_within_a_counted_stretch_the_arrivals_are_those_of_a_poisson_process() -> None:
    """Numbers in halves of it are binomial: as many on average, and half the variance of a Poisson count."""
    halves = []
    for seed in range(400):
        due = first(Arrivals(rate_rps=20, counted_s=(10.0,)), 200, seed)
        halves.append(sum(at < 5e9 for at in due))
    assert mean(halves) == pytest.approx(100, abs=1.5)
    assert variance(halves) == pytest.approx(50, rel=0.25)


@pytest.mark.parametrize("arrivals", RANDOM)
def test_another_seed_gives_other_times(arrivals: Arrivals) -> None:
    assert first(arrivals, 20, 1) != first(arrivals, 20, 2)


@given(RATES, st.integers(0, 10**6))
def test_a_constant_rate_does_not_drift(rate: float, number: int) -> None:
    at = next(islice(due_ns(Arrivals(Pattern.CONSTANT, rate_rps=rate)), number, None)) if number < 2000 else None
    if at is not None:
        assert at == round(number / rate * 1e9)


@examples(20)
@given(st.floats(1, 1000), st.floats(0.2, 5), st.integers(0, 1000))
def test_gamma_gaps_have_the_rate_and_the_burstiness_asked_for(rate: float, shape: float, seed: int) -> None:
    """Mean 1/rate, squared coefficient of variation 1/shape; within five standard errors."""
    count = 4000
    times = [0, *first(Arrivals(Pattern.GAMMA, rate_rps=rate, burstiness=shape), count, seed)]
    gaps = [(b - a) * 1e-9 for a, b in pairwise(times)]
    mean = math.fsum(gaps) / count
    assert mean == pytest.approx(1 / rate, rel=5 / math.sqrt(shape * count))
    variation = math.fsum((gap - mean) ** 2 for gap in gaps) / count / mean**2
    assert variation == pytest.approx(1 / shape, rel=0.5)


def test_poisson_is_gamma_of_shape_one() -> None:
    poisson, gamma = (first(Arrivals(p, rate_rps=7, burstiness=1), 50) for p in (Pattern.POISSON, Pattern.GAMMA))
    assert poisson == gamma


@pytest.mark.parametrize(("start", "end"), [(10.0, 90.0), (90.0, 10.0), (50.0, 50.0), (0.0, 60.0)])
def test_a_ramp_has_the_rate_of_each_moment_and_keeps_the_last(start: float, end: float) -> None:
    seconds = 100.0
    arrivals = Arrivals(Pattern.RISING, rate_rps=end, start_rate_rps=start, ramp_s=seconds)
    times = [at * 1e-9 for at in takewhile(lambda at: at < 2 * seconds * 1e9, due_ns(arrivals, 3))]
    for begin in (0.0, 25.0, 50.0, 75.0, 100.0, 150.0):
        rate = start + (end - start) * min(begin + 12.5, seconds) / seconds if begin < seconds else end
        expected = rate * 25
        assert sum(begin <= at < begin + 25 for at in times) == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_a_replay_begins_with_its_first_time_whatever_that_was() -> None:
    assert first(Arrivals(Pattern.REPLAY, times_s=(1000.5, 1000.0, 1002.25)), 9) == [0, 500_000_000, 2_250_000_000]
    assert first(Arrivals(Pattern.REPLAY), 9) == []


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        (Arrivals(Pattern.POISSON), "rate above 0"),
        (Arrivals(Pattern.CONSTANT, rate_rps=-1), "rate above 0"),
        (Arrivals(Pattern.POISSON, rate_rps=math.nan), "rate above 0"),
        (Arrivals(Pattern.GAMMA, rate_rps=1, burstiness=0), "burstiness"),
        (Arrivals(Pattern.RISING, rate_rps=2, start_rate_rps=1), "length above 0"),
        (Arrivals(Pattern.RISING, rate_rps=1, start_rate_rps=-1, ramp_s=2), "start of at least 0"),
    ],
)
def test_a_pattern_that_lacks_what_it_needs_is_refused(arrivals: Arrivals, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        first(arrivals, 1)

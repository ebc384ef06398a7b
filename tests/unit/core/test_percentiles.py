"""Exact percentiles, and intervals that hold what they promise."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from probe.core.percentiles import Cluster, clustered_distribution, distribution, percentile, quantile_ranks

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(SAMPLES)
def test_percentiles_are_those_of_the_standard_library(samples: list[float]) -> None:
    assume(len(samples) > 1)
    expected = statistics.quantiles(samples, n=100, method="inclusive")
    ordered = sorted(samples)
    for q in (1, 50, 95, 99):
        assert percentile(ordered, q / 100) == pytest.approx(expected[q - 1], rel=1e-9, abs=1e-9)


@given(SAMPLES)
def test_statistics_are_in_order(samples: list[float]) -> None:
    d = distribution(samples)
    assert d.count == len(samples)
    assert d.p50 is not None
    assert d.p95 is not None
    assert d.p99 is not None
    assert d.mean is not None
    assert d.max == max(samples)
    assert min(samples) <= d.p50 * (1 + 1e-12)
    assert d.p50 <= d.p95 * (1 + 1e-12)
    assert d.p95 <= d.p99 * (1 + 1e-12)
    assert d.p99 <= d.max * (1 + 1e-12)
    assert min(samples) <= d.mean * (1 + 1e-12)
    assert d.mean <= d.max * (1 + 1e-12)


@given(SAMPLES, st.integers(0, 5))
def test_undefined_samples_change_nothing(samples: list[float], missing: int) -> None:
    assert distribution([*samples, *[None] * missing]) == distribution(samples)


def test_no_sample_is_no_zero() -> None:
    d = distribution([None, None])
    assert (d.count, d.mean, d.p50, d.p95, d.p99, d.max) == (0, None, None, None, None, None)
    with pytest.raises(IndexError):
        percentile([], 0.5)


def test_ends_of_the_scale() -> None:
    assert (percentile([1, 2, 3], 0), percentile([1, 2, 3], 1), percentile([7], 0.5)) == (1, 3, 7)


def _binomial_cdf(k: int, n: int, q: float) -> float:
    """Return P(at most k of n), by its definition."""
    return math.fsum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(min(k, n) + 1))


@given(st.integers(1, 400), st.sampled_from([0.5, 0.95, 0.99]))
def test_ranks_are_the_tightest_that_hold_the_quantile(n: int, q: float) -> None:
    low, high = quantile_ranks(n, q)
    tail = 0.025
    if low is None:
        assert _binomial_cdf(0, n, q) > tail
    else:
        assert _binomial_cdf(low - 1, n, q) <= tail + 1e-9
        assert low == n or _binomial_cdf(low, n, q) > tail - 1e-9
    if high is None:
        assert _binomial_cdf(n - 1, n, q) < 1 - tail + 1e-9
    else:
        assert _binomial_cdf(high - 1, n, q) >= 1 - tail - 1e-9
        assert high == 1 or _binomial_cdf(high - 2, n, q) < 1 - tail + 1e-9


def test_few_samples_do_not_bound_a_percentile_from_above() -> None:
    assert quantile_ranks(71, 0.95)[1] is None
    assert quantile_ranks(72, 0.95)[1] == 72
    assert quantile_ranks(367, 0.99)[1] is None
    assert quantile_ranks(368, 0.99)[1] == 368


def test_a_million_samples_have_ranks_close_to_the_quantile() -> None:
    low, high = quantile_ranks(1_000_000, 0.99)
    assert low is not None
    assert high is not None
    assert 989_700 < low < 990_000 < high < 990_300


def test_intervals_hold_the_true_percentile_as_often_as_they_say() -> None:
    source, held = random.Random(7), 0
    true = -math.log(0.05)
    for _ in range(400):
        low, high = distribution([source.expovariate(1) for _ in range(100)]).p95_interval or (None, None)
        held += (low or 0.0) <= true <= (high if high is not None else math.inf)
    assert held >= 0.93 * 400


def test_samples_that_depend_on_one_another_have_no_interval() -> None:
    d = distribution([1.0] * 1000, independent=False)
    assert (d.p95_interval, d.p99_interval) == (None, None)
    assert distribution([1.0] * 1000).p99_interval == (1.0, 1.0)


def _clustered(source: random.Random, by_row: float, by_column: float) -> list[Cluster]:
    """Samples of twenty rows and ten columns that share a part with their row and a part with their column."""
    rows = [source.gauss(0, by_row) for _ in range(20)]
    columns = [source.gauss(0, by_column) for _ in range(10)]
    return [
        Cluster(i, j, [row + column + source.gauss(0, 0.1) for _ in range(10)])
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


@pytest.mark.parametrize(("by_row", "by_column"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_intervals_of_samples_that_share_a_cause_allow_for_it(by_row: float, by_column: float) -> None:
    source, held, narrow = random.Random(3), 0, 0
    for _ in range(60):
        clusters = _clustered(source, by_row, by_column)
        low, high = clustered_distribution(clusters).p50_interval or (None, None)
        held += (low or -math.inf) <= 0.0 <= (high if high is not None else math.inf)
        as_if = distribution(sample for one in clusters for sample in one.samples).p50_interval
        narrow += as_if is not None and (as_if[0] or 0.0) <= 0.0 <= (as_if[1] or 0.0)
    assert held >= 0.9 * 60
    if by_row or by_column:
        assert narrow <= 0.5 * 60  # as independent samples they would be 2,000, and are hardly more than ten


def test_a_clustered_sample_has_the_percentiles_of_all_its_samples() -> None:
    clusters = _clustered(random.Random(5), 0.3, 0.3)
    found, plain = clustered_distribution(clusters), distribution(s for one in clusters for s in one.samples)
    assert replace(found, p50_interval=None, p95_interval=None, p99_interval=None) == replace(
        plain, p50_interval=None, p95_interval=None, p99_interval=None
    )


def test_a_single_row_or_column_shows_no_variation_and_has_no_interval() -> None:
    one_row = [Cluster(0, column, [1.0, 2.0, 3.0]) for column in range(10)]
    one_column = [Cluster(row, 0, [1.0, 2.0, 3.0]) for row in range(10)]
    for clusters in (one_row, one_column):
        assert clustered_distribution(clusters).p50 == 2.0
        assert clustered_distribution(clusters).p50_interval is None
    assert clustered_distribution([]) == distribution([])


def test_equal_samples_have_an_interval_without_width() -> None:
    clusters = [Cluster(row, column, [7.0] * 5) for row in range(10) for column in range(10)]
    assert clustered_distribution(clusters).p50_interval == (7.0, 7.0)


def test_whole_numbers_of_a_small_unit_are_the_same_samples() -> None:
    gaps = [10_000_000, 12_500_000, 9_000_000]
    assert distribution(gaps, unit=1e-9).p95 == pytest.approx(distribution([g * 1e-9 for g in gaps]).p95)

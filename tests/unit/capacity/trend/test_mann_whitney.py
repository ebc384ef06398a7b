"""The Mann-Whitney test against its definition: every order of the samples, counted one by one."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.trend.mann_whitney import largest_u, pairs_above

SAMPLE = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=8)


@given(SAMPLE, SAMPLE)
def test_u_counts_the_pairs_and_equals_by_half(recent: list[float], before: list[float]) -> None:
    expected = sum((a > b) + (a == b) / 2 for a in recent for b in before)
    assert pairs_above(recent, sorted(before)) == expected


@given(st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.001, 0.01, 0.05, 0.3]))
def test_the_largest_u_is_the_last_one_that_is_rare_enough(recent: int, before: int, p: float) -> None:
    places = range(recent + before)
    us = [
        sum(sum(1 for j in places if j < i and j not in chosen) for i in chosen) for chosen in _choices(places, recent)
    ]
    largest = largest_u(recent, before, p)
    assert sum(u <= largest for u in us) < p * len(us)
    assert sum(u <= largest + 1 for u in us) >= p * len(us)


def _choices(places: range, count: int) -> list[tuple[int, ...]]:
    return list(combinations(places, count))


@pytest.mark.parametrize(("before", "largest"), [(5, -1), (7, -1), (8, 0), (28, 12)])
def test_five_recent_runs_need_eight_before_them(before: int, largest: int) -> None:
    """The smallest p of five against seven is 1 / 792."""
    assert largest_u(5, before, 0.001) == largest

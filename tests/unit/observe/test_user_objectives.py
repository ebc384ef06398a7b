"""Whether users' requests met an objective, where that is certain."""

from dataclasses import replace

import pytest

from probe.core.objectives import Objective, Objectives
from probe.core.snapshot import Histogram, UserTotals
from probe.observe.user_objectives import Judged, UsersHour, judged

INF = float("inf")
S = 10**9


def totals(fast: float, between: float, slow: float, doubt: float = 0.0) -> UserTotals:
    """Return requests within 100 ms, within 250 ms and slower; of which may be within 100 and 250 ms, doubt."""
    counts = ((0.1, fast), (0.25, fast + between), (INF, fast + between + slow))
    return UserTotals(
        fast + between + slow, histograms={"ttft": Histogram(counts, 1.0)}, doubts={"ttft": (doubt, doubt, 0)}
    )


@pytest.mark.parametrize(
    ("within_s", "found"),
    [
        (0.1, Judged(0.1, 100, 10, 2, 0)),
        (0.25, Judged(0.25, 100, 4, 2, 0)),
        (0.2, Judged(0.25, 100, 4, 2, 6)),  # six may be slower than 200 ms, or not
        (0.05, Judged(0.1, 100, 10, 2, 90)),
        (0.3, None),  # no bound is above it but the infinite one
    ],
)
def test_requests_between_the_bounds_around_an_objective_may_be_on_either_side(
    within_s: float, found: Judged | None
) -> None:
    assert judged(totals(90, 6, 4, doubt=2), "ttft", within_s) == found


@pytest.mark.parametrize(
    ("slow", "may_be_fast", "may_be_slow", "met"),
    [
        (5, 0, 0, True),
        (6, 0, 0, False),
        (6, 1, 0, None),  # a canary may have been among the slow ones
        (7, 1, 0, False),
        (4, 0, 1, True),
        (4, 0, 2, None),
    ],
)
def test_an_objective_is_met_or_missed_only_where_that_is_certain(
    slow: float, may_be_fast: float, may_be_slow: float, *, met: bool | None
) -> None:
    assert Judged(0.1, 100, slow, may_be_fast, may_be_slow).is_met(0.95) is met


def test_of_nine_requests_nothing_is_said() -> None:
    few = Judged(0.1, 9, 9, 0, 0)
    assert few.is_met(0.95) is None
    assert few.uncertain_ratio == 1
    assert replace(few, requests=10).is_met(0.95) is False


class TestHour:
    def hour(self) -> UsersHour:
        return UsersHour(Objectives("o", ttft=Objective(0.95, 0.1), itl=Objective(0.95, 0.1)))

    def test_what_was_before_it_does_not_count(self) -> None:
        hour = self.hour()
        hour.add(0, totals(0, 0, 500))
        for minute in range(5, 125, 5):
            hour.add(minute * 60 * S, totals(10 * minute, 0, 500))
        assert list(hour.recent()) == [("ttft", Judged(0.1, 600, 0, 0, 0), True)]

    def test_without_users_or_while_they_are_unknown_nothing_is_said(self) -> None:
        hour = self.hour()
        assert list(hour.recent()) == []
        hour.add(0, totals(50, 0, 0))
        hour.add(15 * S, totals(50, 0, 0))
        assert list(hour.recent()) == []
        hour.add(30 * S, totals(60, 0, 40))
        assert [met for *_, met in hour.recent()] == [False]
        hour.add(45 * S, UserTotals())
        assert list(hour.recent()) == []

    def test_other_buckets_begin_anew(self) -> None:
        hour = self.hour()
        hour.add(0, totals(50, 0, 0))
        hour.add(15 * S, totals(2, 0, 0))
        assert list(hour.recent()) == []

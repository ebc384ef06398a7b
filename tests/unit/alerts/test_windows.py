import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.windows import DAY_S, HOUR_S, MIN_BAD_EVENTS, PAIRS, can_fire, duration, multiple

FAST, RARE, SLOW, *TICKETS = PAIRS


def _multiples(days: float) -> list[float]:
    return [round(multiple(pair, days * DAY_S), 6) for pair in PAIRS if pair is not RARE]


def test_thirty_days_give_the_workbooks_table_with_an_hour_for_the_slow_page() -> None:
    pairs = [(pair.severity, duration(pair.long_s), duration(pair.short_s)) for pair in PAIRS if pair is not RARE]
    assert pairs == [("page", "1h", "5m"), ("page", "6h", "1h"), ("ticket", "1d", "2h"), ("ticket", "3d", "6h")]
    assert _multiples(30) == [14.4, 6.0, 3.0, 1.0]


def test_a_burn_that_is_too_short_for_the_slow_page_is_fast_enough_for_the_fast_one() -> None:
    """Over the short window's rate in the median hour takes two hours: in less, the budget's share burns at 18x."""
    shortest_s = SLOW.long_s / 2 - SLOW.short_s
    assert multiple(SLOW, 30 * DAY_S) * SLOW.long_s / shortest_s > multiple(FAST, 30 * DAY_S)


def test_another_window_keeps_the_share_of_the_budget() -> None:
    assert _multiples(90) == [43.2, 18.0, 9.0, 3.0]


def test_a_short_objective_never_reports_a_service_that_keeps_its_promise() -> None:
    assert _multiples(7) == [3.36, 1.4, 1.0, 1.0]


def test_canaries_that_five_minutes_may_not_hold_have_a_longer_short_window() -> None:
    assert RARE.every_s is not None
    above_s, most_s = RARE.every_s
    assert FAST.short_s == 2 * above_s
    assert (RARE.short_s, RARE.long_s) == (2 * most_s, MIN_BAD_EVENTS * most_s)


@pytest.mark.parametrize(("ratio", "count"), [(0.94, 4), (0.93, 3), (0.9, 3), (0.8, 2), (0.6, 1), (0.05, 1)])
def test_a_pair_for_which_more_than_all_requests_would_have_to_be_bad_cannot_fire(ratio: float, count: int) -> None:
    assert sum(can_fire(pair, ratio, 30 * DAY_S, 15) for pair in PAIRS if pair is not RARE) == count


def test_a_pair_longer_than_the_objectives_window_cannot_fire() -> None:
    assert [duration(pair.long_s) for pair in PAIRS if can_fire(pair, 0.99, 2 * DAY_S, 15)] == ["1h", "1h", "6h", "1d"]


def test_a_pair_that_does_not_hold_three_canaries_cannot_fire() -> None:
    found = [duration(pair.long_s) for pair in PAIRS if can_fire(pair, 0.999, 30 * DAY_S, HOUR_S)]
    assert found == ["6h", "1d", "3d"]


@pytest.mark.slow
@given(st.integers(1, 2**32 - 1))  # the parser counts milliseconds in 32 bits; 49 days are enough
def test_a_duration_is_what_promql_reads(ms: int) -> None:
    assert round(promql_parser.parse_duration(duration(ms / 1000)).total_seconds() * 1000) == ms

"""The latencies of a day: what is certain of ten minutes, no more of them than a day has, and nothing made better."""

from math import inf, isnan

import pytest
from example_records import record
from hypothesis import given
from hypothesis import strategies as st

from probe.core.latency_day import CANARIES, COLUMNS, SLOT_S, SLOTS, USERS, LatencyDay, between
from probe.core.request import Outcome
from probe.core.snapshot import Histogram

NOW_S = 1_000_000.0 * SLOT_S + 60


def _canaries(*ttft_s: float | None, at_s: float = NOW_S, day: LatencyDay | None = None) -> LatencyDay:
    """Return a day with these canaries; None: not answered."""
    day = day or LatencyDay()
    for each in ttft_s:
        outcome = Outcome.TIMEOUT if each is None else Outcome.OK
        day.add(record(done_wall_s=at_s, outcome=outcome, ttft_s=each or 0.1))
    return day


def _last(day: LatencyDay, q: float = 0.95, who: str = CANARIES, now_s: float = NOW_S) -> list[float | None]:
    return list(day.last(who, "ttft", q, now_s))


def test_a_slot_has_the_median_and_the_95th_percentile_of_its_canaries() -> None:
    day = _canaries(*(0.01 * i for i in range(1, 21)))
    assert _last(day, 0.5)[-1] == pytest.approx(0.11)
    assert _last(day)[-1] == pytest.approx(0.2)
    assert _last(day)[:-1] == [None] * (SLOTS - 1)


def test_canaries_that_were_not_answered_are_the_slowest_and_those_that_kneewatch_stopped_none() -> None:
    day = _canaries(*[0.1] * 18, None, None)
    assert _last(day, 0.5)[-1] == pytest.approx(0.1)
    assert _last(day)[-1] == inf
    day.add(record(outcome=Outcome.ABORTED, done_wall_s=NOW_S + SLOT_S))
    assert _last(day, now_s=NOW_S + SLOT_S)[-1] is None


def test_a_day_is_kept_and_no_more_and_a_restart_continues_it() -> None:
    day = LatencyDay()
    for i in range(SLOTS + 30):
        _canaries(0.1 + i / 1000, at_s=NOW_S + i * SLOT_S, day=day)
    end_s = NOW_S + (SLOTS + 29) * SLOT_S
    kept = _last(day, now_s=end_s)
    assert kept == pytest.approx([0.1 + i / 1000 for i in range(30, SLOTS + 30)], rel=1e-6)
    rows = list(day.rows_from(0))
    assert len(rows) <= SLOTS + 1
    assert all(len(row) == 1 + len(COLUMNS) for row in rows)
    assert _last(LatencyDay(rows), now_s=end_s) == pytest.approx(kept, rel=1e-6)


def test_a_restart_within_a_slot_keeps_what_it_has_not_seen_again() -> None:
    before = _canaries(0.2)
    before.add_users(NOW_S, {"ttft": _histogram(0, 0, 0, 0)})
    before.add_users(NOW_S + 30, {"ttft": _histogram(10, 0, 0, 0)})
    after = _canaries(0.3, day=LatencyDay(before.rows_from(0)))
    assert _last(after)[-1] == pytest.approx(0.3)
    assert _last(after, 0.5, USERS)[-1] == pytest.approx(0.05)


@pytest.mark.parametrize("leap_s", [3.2e7, -3.2e7])
def test_a_clock_that_leaps_for_a_minute_takes_no_more_than_a_slot(leap_s: float) -> None:
    day = LatencyDay()
    for i in range(SLOTS):
        _canaries(0.1, at_s=NOW_S + (i - SLOTS) * SLOT_S, day=day)
    _canaries(9.0, at_s=NOW_S + leap_s, day=day)
    for i in range(2):
        _canaries(0.1, at_s=NOW_S + i * SLOT_S, day=day)
    shown = _last(day, now_s=NOW_S + SLOT_S)
    assert shown.count(None) <= 1
    assert {round(one, 3) for one in shown if one is not None} == {0.1}


def _histogram(*counts: float) -> Histogram:
    """Return a histogram of the counts within 0.1, 0.5, 1 s and above."""
    below, found = 0.0, []
    for bound, count in zip((0.1, 0.5, 1.0, inf), counts, strict=True):
        below += count
        found.append((bound, below))
    return Histogram(tuple(found), 0.0)


def test_users_are_what_the_server_counted_in_the_slot() -> None:
    day = LatencyDay()
    day.add_users(NOW_S, {"ttft": _histogram(1000, 0, 0, 0)})
    assert _last(day, who=USERS)[-1] is None, "of before it was watched"
    day.add_users(NOW_S + 30, {"ttft": _histogram(1010, 10, 0, 0)})
    assert _last(day, 0.5, USERS)[-1] == pytest.approx(0.1)
    assert _last(day, 0.95, USERS)[-1] == pytest.approx(0.46)
    # What ended between the slots belongs to the next one, and another server's buckets to none.
    later_s = NOW_S + SLOT_S
    day.add_users(later_s, {"ttft": _histogram(1010, 10, 5, 0)})
    assert _last(day, 0.95, USERS, later_s)[-2:] == pytest.approx([0.46, 0.975])
    day.add_users(later_s + 9, {"ttft": Histogram(((0.2, 1.0), (inf, 2.0)), 0.0)})
    assert _last(day, 0.95, USERS, later_s)[-1] is None


def test_what_is_above_the_last_bound_is_not_at_it() -> None:
    assert between(_histogram(0, 0, 0, 0), _histogram(1, 0, 0, 9), 0.5) == inf


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_within_the_bounds_of_the_bucket_that_has_it(counts: list[int], q: float) -> None:
    grown = between(_histogram(0, 0, 0, 0), _histogram(*counts), q)
    below = 0
    for low, high, count in zip((0.0, 0.1, 0.5, 1.0), (0.1, 0.5, 1.0, inf), counts, strict=True):
        if below < q * sum(counts) <= below + count:
            assert low <= grown <= high + 1e-12
            assert (grown == inf) == (high == inf)
        below += count
    assert isnan(grown) == (sum(counts) == 0)

"""Counts of canaries by half hours: a gap is no canary, and 30 days are all there is."""

from array import array

import pytest
from example_records import CHAT, record

from probe.core.canary_history import SLOT_S, SLOTS, CanaryHistory
from probe.core.request import Outcome, RequestRecord

NOW_S = 1_000_000 * SLOT_S + 900.0  # in the middle of a half hour


def _at(half_hours_ago: int, outcome: Outcome = Outcome.OK, **values: float) -> RequestRecord:
    return record(outcome=outcome, done_wall_s=NOW_S - half_hours_ago * SLOT_S, **values)


def _history(*records: RequestRecord) -> CanaryHistory:
    history = CanaryHistory()
    for one in records:
        history.add(one, CHAT)
    return history


def test_canaries_are_counted_in_their_half_hour_and_gaps_are_empty() -> None:
    history = _history(_at(3), _at(3, Outcome.TIMEOUT), _at(0))
    assert list(history.last("sent", 5, NOW_S)) == [0, 2, 0, 0, 1]
    assert list(history.last("failed", 5, NOW_S)) == [0, 1, 0, 0, 0]
    assert list(history.last("sent", 5, NOW_S + 2 * SLOT_S)) == [0, 0, 1, 0, 0], "later, with nothing new"
    assert list(CanaryHistory().last("sent", 2, NOW_S)) == [0, 0]


def test_a_canary_that_misses_latency_objectives_is_slow_once_and_counts_for_each() -> None:
    both = _at(0, ttft_s=0.9, gap_s=0.2)
    history = _history(_at(0), both, _at(0, Outcome.CLIENT_BOUND), _at(0, Outcome.ABORTED))
    found = {name: history.last(name, 1, NOW_S)[0] for name in ("sent", "failed", "judged", "slow", "ttft", "tpot")}
    assert found == {"sent": 3, "failed": 0, "judged": 2, "slow": 1, "ttft": 1, "tpot": 1}


def test_half_hours_with_canaries_are_known() -> None:
    history = _history(_at(SLOTS - 1), _at(3), _at(3), _at(0, Outcome.TIMEOUT))
    assert [history.known_slots(slots, NOW_S) for slots in (2, SLOTS)] == [1, 3]
    assert history.known_slots(SLOTS, NOW_S + SLOT_S) == 2
    history.add(_at(-1), CHAT)
    assert history.known_slots(SLOTS, NOW_S + SLOT_S) == 3, "the oldest has gone"
    assert CanaryHistory(history.rows_from(0)).known_slots(SLOTS, NOW_S + SLOT_S) == 3


def test_data_older_than_thirty_days_are_forgotten() -> None:
    history = _history(_at(SLOTS - 1, Outcome.TIMEOUT), _at(0))
    assert sum(history.last("failed", SLOTS, NOW_S)) == 1
    assert sum(history.last("failed", SLOTS, NOW_S + SLOT_S)) == 0
    history.add(_at(-1), CHAT)
    assert sum(history.last("failed", SLOTS, NOW_S + SLOT_S)) == 0
    assert sum(history.last("sent", SLOTS, NOW_S + SLOT_S)) == 2


@pytest.mark.fault(
    "TI2",
    "The wall clock was ahead since the start and is set back: canaries from the future",
    area="Time",
    users_see="the later canaries are shown",
    stays="the history",
)
def test_a_clock_that_was_ahead_hides_nothing_that_comes() -> None:
    history = _history(_at(-10 * SLOTS), _at(0))
    assert list(history.last("sent", 2, NOW_S)) == [0, 1]


@pytest.mark.parametrize("leap", [3, 100, SLOTS - 1, SLOTS, 20 * SLOTS, -SLOTS, -20 * SLOTS])
@pytest.mark.parametrize("stay", [1, 10])
def test_a_leap_of_the_clock_costs_only_its_own_canaries(leap: int, stay: int) -> None:
    """Ahead by more than an hour, or back by more than 30 days."""
    history = _history(*(_at(ago) for ago in range(SLOTS - 1, -1, -1)))
    for _ in range(stay):
        history.add(_at(-leap), CHAT)
    history.add(_at(0), CHAT)
    assert list(history.last("sent", SLOTS, NOW_S)) == [1] * (SLOTS - 1) + [2]
    assert history.total("sent", SLOTS, NOW_S) == SLOTS + 1
    assert history.known_slots(SLOTS, NOW_S) == SLOTS


def test_after_a_long_pause_the_counts_go_on_from_the_new_time() -> None:
    history = _history(_at(SLOTS + 100), _at(200), _at(0), _at(-1), _at(-2))
    assert list(history.last("sent", 3, NOW_S + 2 * SLOT_S)) == [1, 1, 1]
    assert history.total("sent", SLOTS, NOW_S + 2 * SLOT_S) == 4


def test_a_canary_a_little_late_is_counted_where_it_belongs() -> None:
    history = _history(_at(0), _at(1))
    assert list(history.last("sent", 2, NOW_S)) == [1, 1]


def test_rows_make_the_same_history_again() -> None:
    history = _history(_at(SLOTS - 1), _at(7, Outcome.TIMEOUT), _at(0, ttft_s=0.9))
    rows = list(history.rows_from(0))
    assert len(rows) == 3
    again = CanaryHistory(rows)
    for name in ("sent", "failed", "slow", "ttft"):
        assert array("I", again.last(name, SLOTS, NOW_S)) == history.last(name, SLOTS, NOW_S)
    (newest,) = history.rows_from(rows[-1][0])
    assert newest == rows[-1]

"""When the runs of many targets are due."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.runtime.cron import cron_trigger
from probe.runtime.run_times import dues, share_of, spread

MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)  # a Monday
NAMES = [f"qwen/pod-{i}" for i in range(60)]


def first(name: str, cron: str, *windows: str, since: datetime = MIDNIGHT, run_s: float = 300.0) -> datetime:
    due = spread(cron_trigger(cron), name, windows, "UTC", run_s).get_next_fire_time(None, since)
    assert due is not None
    return due


def hours(moment: datetime) -> float:
    return (moment - MIDNIGHT).total_seconds() / 3600


@pytest.mark.parametrize(
    ("cron", "windows", "begin", "end"),
    [
        ("0 4 * * *", (), 4.0, 6.0),
        ("0 1 * * *", ("01:00-05:00",), 1.0, 5.0 - 1 / 12),
        ("58 4 * * *", ("01:00-05:00",), 4 + 58 / 60, 4 + 58 / 60),  # no room: as written
        ("0 6 * * *", ("01:00-05:00",), 6.0, 6.0),  # in no window: admission refuses it
        ("0 * * * *", (), 0.0, 1.0),  # before the next one
        ("0 2 * * *", ("00:00-24:00",), 2.0, 4.0),  # never closes
    ],
)
@pytest.mark.fault(
    "TI33",
    "Many discovered servers have one schedule",
    area="Time",
    users_see="their runs begin one after the other, each day at the same time",
    stays="no run begins outside its window",
)
def test_discovered_targets_are_spread_over_their_window(
    cron: str, windows: tuple[str, ...], begin: float, end: float
) -> None:
    found = sorted(hours(first(name, cron, *windows)) for name in NAMES)
    assert begin <= found[0] <= found[-1] <= end
    if end > begin:
        width = end - begin
        assert max(later - earlier for earlier, later in pairwise([begin, *found, end])) < width / 8


def test_a_target_s_time_moves_each_day_and_is_the_same_in_each_process() -> None:
    assert share_of("qwen/pod-0") == pytest.approx(0.2110, abs=1e-4)
    trigger = spread(cron_trigger("0 4 * * *"), "qwen/pod-0", (), "UTC", 300.0)
    shares = [(due - MIDNIGHT) / timedelta(hours=2) % 12 - 2 for due in dues(trigger, MIDNIGHT, days=30)]
    assert len(shares) == 30
    assert shares[0] == pytest.approx((share_of("qwen/pod-0") + MIDNIGHT.toordinal() * (5**0.5 - 1) / 2) % 1, abs=1e-3)
    in_order = sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert max(b - a for a, b in pairwise([0, *in_order, 1])) < 0.1, "no part of the room is left out in a month"


@settings(max_examples=25)
@given(
    name=st.sampled_from(NAMES[:5]),
    cron=st.sampled_from(["0 4 * * *", "*/7 3 * * *", "0 * * * 1-5", "30 23 * * *"]),
    windows=st.sampled_from([(), ("22:00-05:00",), ("03:00-04:00", "Sat 00:00-24:00")]),
    begin_s=st.integers(0, 3 * 86400),
)
def test_each_time_comes_once_wherever_one_begins_to_look(
    name: str, cron: str, windows: tuple[str, ...], begin_s: int
) -> None:
    trigger = spread(cron_trigger(cron), name, windows, "UTC", 300.0)
    since = MIDNIGHT + timedelta(seconds=begin_s)
    expected = next(due for due in dues(trigger, MIDNIGHT, days=4) if due >= since)
    assert trigger.get_next_fire_time(None, since) == expected

"""Cron expressions: weekdays as cron counts them, and what is refused."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.runtime.cron import cron_trigger, longest_interval_s


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("0", "Sun"),
        ("7", "Sun"),
        ("5-7", "Fri Sat Sun"),
        ("mon-fri", "Mon Tue Wed Thu Fri"),
        ("SAT,0", "Sat Sun"),
        ("1-5/2", "Mon Wed Fri"),
        ("*/3", "Sun Wed Sat"),
        ("*", "Mon Tue Wed Thu Fri Sat Sun"),
    ],
)
def test_weekdays_are_those_of_cron(field: str, days: str) -> None:
    trigger, at, fired = cron_trigger(f"30 4 * * {field}"), datetime(2026, 11, 23, tzinfo=UTC), set()
    while at < datetime(2026, 11, 30, tzinfo=UTC):
        at = trigger.get_next_fire_time(None, at) + timedelta(minutes=1)
        fired.add(f"{at:%a}" if at < datetime(2026, 11, 30, tzinfo=UTC) else None)
    assert fired - {None} == set(days.split())


@pytest.mark.parametrize(
    "field", ["8", "-1", "5-1", "fri-mon", "1/0", "1/x", "someday", "", "1--2", ",", "1-", "1-5/", "+1", "1/2"]
)
def test_weekdays_that_are_none_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        cron_trigger(f"30 4 * * {field}")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 3 31 2 *", "no such day ever comes"),
        ("0 3 30,31 feb *", "no such day ever comes"),
        ("0 3 31 2,4,6,9,11 */2", "no such day ever comes"),
        ("@reboot", "found 1"),
        ("@every 1h", "found 2"),
        ("0 4 * *", "found 4"),
        ("", "found 0"),
        ("60 4 * * *", "the minute is not within"),
        ("0 24 * * *", "the hour is not within"),
        ("0 4 0 * *", "the day is not within"),
        ("0 4 * 13 *", "the month is not within"),
        ("0 4 L * *", "the day is not within"),
        ("0 4 last * *", "the day is not within"),
        ("0 4 ? * 1", "the day is not within"),
        ("0 4 * * mon#1", "the weekday is not within"),
        ("0 4 * mon *", "the month is not within"),
        ("0/15 4 * * *", "needs a range, as in 0-59/2"),
        ("*/90 * * * *", "is not within 0-59"),
        ("0 4 2nd\u00a0mon * *", "not ASCII"),
        ("\u0663 4 * * *", "not ASCII"),
    ],
)
def test_what_cron_does_not_know_is_refused_with_the_field_that_is_wrong(expression: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cron_trigger(expression)


def _times(expression: str, zone: str, since: str, count: int) -> list[str]:
    """Return the first times from a reading of the zone's clock on."""
    trigger, at = cron_trigger(expression, zone), datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone))
    found: list[str] = []
    for _ in range(count):
        at = trigger.get_next_fire_time(None, at)
        found.append(f"{at:%m-%d %H:%M %z}")
        at += timedelta(microseconds=1)
    return found


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 3 13 * 5", "11-06 11-13 11-20 11-27 12-04 12-11 12-13"),  # either, as in Vixie cron
        ("0 3 31 2 1", "02-01 02-08 02-15"),  # of the two only the weekday ever comes
        ("0 3 */2 * 1", "11-09 11-23 12-07"),  # a field that begins with a star: both
        ("0 3 1 * */2", "11-01 12-01 04-01"),
        ("0 3 1-7,15 jan,JUL *", "01-01 01-02 01-03"),
        ("@monthly", "11-01 12-01 01-01"),
        ("@weekly", "11-01 11-08 11-15"),
        ("@daily", "11-01 11-02 11-03"),
        ("@midnight", "11-01 11-02"),
        ("@yearly", "01-01 01-01"),
        ("@annually", "01-01 01-01"),
        ("@hourly", "11-01 11-01"),
        ("  0 3 * * *\n", "11-01 11-02"),
    ],
)
def test_days_are_those_of_vixie_cron(expression: str, days: str) -> None:
    found = _times(expression, "UTC", "2026-11-01T00:00", len(days.split()))
    assert [time[:5] for time in found] == days.split()


@pytest.mark.parametrize(
    ("expression", "zone", "since", "times"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["11-01 01:30 -0400", "11-02 01:30 -0500"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["04-05 01:45 +1100", "04-06 01:45 +1030"]),
        ("0 0 * * *", "America/Havana", "2026-10-31T12:00", ["11-01 00:00 -0400", "11-02 00:00 -0500"]),
        ("@hourly", "Europe/Berlin", "2026-10-25T01:30", ["10-25 02:00 +0200", "10-25 03:00 +0100"]),
        # Read while the clock shows that hour for the second time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:59", ["10-26 02:30 +0100"]),
        # What the clock skips comes as much later.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 03:30 +0200", "03-30 02:30 +0200"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T03:10", ["03-29 03:30 +0200", "03-30 02:30 +0200"]),
        ("30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 03:30 +0200", "03-30 02:30 +0200"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["10-04 02:45 +1100", "10-05 02:15 +1100"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["09-06 01:00 -0300", "09-07 00:00 -0300"]),
        # A day that is left out, and what a country did with it.
        ("0 3 * * *", "Pacific/Apia", "2011-12-29T00:00", ["12-29 03:00 -1000", "12-31 03:00 +1400"]),
        ("0 3 30 12 *", "Pacific/Apia", "2011-12-29T00:00", ["12-31 03:00 +1400", "12-30 03:00 +1400"]),
    ],
)
@pytest.mark.fault(
    "TI30",
    "The clock shows a time twice or never: summer time, a country that changes its day",
    area="Time",
    users_see="one capacity run for each time on the wall clock",
    stays="the times of other days",
)
def test_a_time_on_the_wall_clock_is_one_run(expression: str, zone: str, since: str, times: list[str]) -> None:
    assert _times(expression, zone, since, len(times)) == times


@given(
    zone=st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "UTC"]),
    day=st.dates(date(2025, 1, 1), date(2027, 12, 31)),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.sets(st.integers(0, 4), min_size=1, max_size=3),
    begin_s=st.integers(0, 2 * 86400),
)
def test_each_reading_of_a_clock_comes_once_and_in_order(
    zone: str, day: date, minutes: set[int], hours: set[int], begin_s: int
) -> None:
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    readings = (midnight + timedelta(days=d, hours=h, minutes=m) for d in range(-2, 5) for h in hours for m in minutes)
    moments = sorted({reading.replace(tzinfo=ZoneInfo(zone)).timestamp() for reading in readings})
    at = midnight + timedelta(seconds=begin_s)
    trigger = cron_trigger(f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *", zone)
    for expected in [moment for moment in moments if moment >= at.timestamp()][:3]:
        at = trigger.get_next_fire_time(None, at)
        assert at.timestamp() == expected
        at += timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 4 * * *", 1),
        ("*/10 * * * *", 1),
        ("0 4 */2 * *", 2),  # the 31st is followed by the 1st
        ("0 4 * * 1-5", 3),
        ("0 4 * * 0", 7),
        ("0 4 1 * *", 31),
        ("0 4 29 2 *", 366),
    ],
)
def test_the_longest_interval_is_that_between_days_with_a_run(expression: str, days: int) -> None:
    assert longest_interval_s(expression) == days * 86400.0

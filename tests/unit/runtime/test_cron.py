"""Cron expressions: weekdays as cron counts them, and what is refused."""

from datetime import UTC, datetime, timedelta

import pytest

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


def test_a_day_and_a_weekday_at_once_are_refused_since_cron_would_mean_either() -> None:
    with pytest.raises(ValueError, match="both"):
        cron_trigger("30 4 13 * 5")


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

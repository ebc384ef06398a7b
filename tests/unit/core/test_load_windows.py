"""Windows of the week: when one is open, when it closes, and what daylight saving does to it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.load_windows import LoadWindow, closes_at, parse_window

BERLIN = "Europe/Berlin"
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _closes(at: str, *windows: str, timezone: str = BERLIN) -> str | None:
    """Return the end of the window that is open then, or "closed"."""
    moment = _utc(at)
    closes = closes_at([parse_window(text) for text in windows], moment, timezone)
    return "closed" if closes == moment else closes.isoformat() if closes else None


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("01:00-05:00", LoadWindow(frozenset(range(7)), 60, 300)),
        ("22:30-04:00", LoadWindow(frozenset(range(7)), 1350, 1680)),
        ("00:00-24:00", LoadWindow(frozenset(range(7)), 0, 1440)),
        ("Sat,Sun 00:00-24:00", LoadWindow(frozenset({5, 6}), 0, 1440)),
        ("mon-FRI 09:00-17:00", LoadWindow(frozenset(range(5)), 540, 1020)),
        ("Fri-Mon,wed 23:00-00:00", LoadWindow(frozenset({4, 5, 6, 0, 2}), 1380, 1440)),
    ],
)
def test_a_window_is_read_as_it_is_meant(text: str, window: LoadWindow) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    "text",
    [
        "", "nightly", "1:00-5:00", "01:00", "01:00-05:60", "25:00-26:00", "24:00-05:00", "05:00-05:00", "24:01-02:00",
        "01:00 - 05:00", "Xyz 01:00-05:00", "Mon- 01:00-05:00", "Mon,,Tue 01:00-05:00", "Mon01:00-05:00",
        "\u0660\u0661:\u0660\u0660-\u0660\u0665:\u0660\u0660", "01:00-05:00 Mon", "Mon\n01:00-05:00",
    ],
)  # fmt: skip
def test_an_invalid_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no|empty"):
        parse_window(text)


def test_without_windows_every_time_is_allowed() -> None:
    assert closes_at([], MONDAY, BERLIN) is None


@pytest.mark.parametrize(
    ("at", "windows", "closes"),
    [
        ("2026-11-23T01:00+01:00", ("01:00-05:00",), "2026-11-23T04:00:00+00:00"),
        ("2026-11-23T04:59:59+01:00", ("01:00-05:00",), "2026-11-23T04:00:00+00:00"),
        ("2026-11-23T05:00+01:00", ("01:00-05:00",), "closed"),
        ("2026-11-23T00:59:59+01:00", ("01:00-05:00",), "closed"),
        # Over midnight: Friday's window is open on Saturday morning, Thursday's is not one.
        ("2026-11-28T03:00+01:00", ("Fri 22:00-04:00",), "2026-11-28T03:00:00+00:00"),
        ("2026-11-27T03:00+01:00", ("Fri 22:00-04:00",), "closed"),
        # One after the other is one.
        ("2026-11-28T12:00+01:00", ("Sat,Sun 00:00-24:00",), "2026-11-29T23:00:00+00:00"),
        ("2026-11-28T12:00+01:00", ("Sat 00:00-24:00", "Sun 00:00-06:00"), "2026-11-29T05:00:00+00:00"),
        ("2026-11-23T02:00+01:00", ("01:00-03:00", "02:30-06:00"), "2026-11-23T05:00:00+00:00"),
        ("2026-11-23T02:00+01:00", ("00:00-24:00",), None),
        ("2026-11-23T02:00+01:00", ("06:00-18:00", "18:00-06:00"), None),
    ],
)
def test_a_window_closes_at_its_end(at: str, windows: tuple[str, ...], closes: str | None) -> None:
    assert _closes(at, *windows) == closes


@pytest.mark.parametrize(
    ("at", "window", "closes"),
    [
        # 2027-03-28: at 02:00 the clock leaps to 03:00, which is 01:00 UTC.
        ("2027-03-28T00:30+00:00", "01:00-05:00", "2027-03-28T03:00:00+00:00"),
        ("2027-03-28T00:30+00:00", "01:00-02:30", "2027-03-28T01:00:00+00:00"),
        ("2027-03-28T01:00+00:00", "02:30-04:00", "2027-03-28T02:00:00+00:00"),
        ("2027-03-28T00:59:59+00:00", "02:30-04:00", "closed"),
        ("2027-03-28T01:00+00:00", "02:15-02:45", "closed"),
        # 2026-10-25: at 03:00 it is 02:00 again; 02:30 is 00:30 UTC and 01:30 UTC.
        ("2026-10-24T23:30+00:00", "01:00-05:00", "2026-10-25T04:00:00+00:00"),
        ("2026-10-25T00:00+00:00", "01:00-02:30", "2026-10-25T00:30:00+00:00"),
        ("2026-10-25T01:00+00:00", "01:00-02:30", "closed"),
        ("2026-10-25T00:30+00:00", "02:30-04:00", "2026-10-25T03:00:00+00:00"),
    ],
)
@pytest.mark.fault(
    "TI6",
    "Daylight saving: a night has 23 or 25 hours",
    area="Time",
    users_see="windows open and close by the local clock",
    stays="-",
)
def test_daylight_saving_makes_a_night_longer_or_shorter(at: str, window: str, closes: str) -> None:
    assert _closes(at, window) == closes


@pytest.mark.fault(
    "TI7",
    "A country leaves out a day",
    area="Time",
    users_see="no window on that day",
    stays="-",
)
def test_a_day_that_a_country_left_out_has_no_window() -> None:
    """Samoa went from 29 December 2011 to 31 December."""
    assert _closes("2011-12-30T09:59:59+00:00", "Fri 00:00-24:00", timezone="Pacific/Apia") == "closed"
    assert _closes("2011-12-30T10:00:00+00:00", "Fri 00:00-24:00", timezone="Pacific/Apia") == "closed"
    assert (
        _closes("2011-12-30T10:00:00+00:00", "Sat 00:00-12:00", timezone="Pacific/Apia") == "2011-12-30T22:00:00+00:00"
    )


WINDOWS = st.lists(
    st.builds(
        lambda days, start, length: LoadWindow(frozenset(days), start, start + length),
        st.sets(st.integers(0, 6), min_size=1),
        st.integers(0, 1439),
        st.integers(1, 1440),
    ),
    min_size=1,
    max_size=4,
)
MOMENTS = st.integers(0, 7 * 1440 - 1).map(lambda minute: MONDAY + timedelta(minutes=minute, seconds=30))


def _is_open(windows: list[LoadWindow], at: datetime) -> bool:
    """Compute it from the minutes of a week without daylight saving."""
    minute = int((at - MONDAY).total_seconds() // 60)
    return any(
        0 <= (minute - day * 1440 - w.start_min) % 10_080 < w.end_min - w.start_min for w in windows for day in w.days
    )


@given(WINDOWS, MOMENTS)
def test_a_window_is_open_exactly_between_its_ends(windows: list[LoadWindow], at: datetime) -> None:
    closes = closes_at(windows, at, "UTC")
    if not _is_open(windows, at):
        assert closes == at
        return
    until = closes or at + timedelta(days=7)
    minutes = int((until - at).total_seconds() // 60)
    assert all(_is_open(windows, at + timedelta(minutes=m)) for m in range(0, minutes, 7))
    assert closes is None or not _is_open(windows, closes)


@given(WINDOWS, st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.sampled_from([BERLIN, "America/St_Johns"]))  # noqa: DTZ001
def test_wherever_it_is_a_window_that_is_open_closes_later_and_is_closed_then(
    windows: list[LoadWindow], at: datetime, timezone: str
) -> None:
    moment = at.replace(tzinfo=UTC)
    closes = closes_at(windows, moment, timezone)
    assert closes is None or closes >= moment
    if closes is not None:
        assert closes_at(windows, closes, timezone) == closes


@given(st.sets(st.sampled_from(DAYS), min_size=1), st.integers(0, 1439), st.integers(1, 1440))
def test_the_text_of_a_window_parses_to_that_window(days: set[str], start: int, length: int) -> None:
    end = (start + length) % 1440
    if end == start:
        return
    text = f"{','.join(sorted(days))} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    assert parse_window(text) == LoadWindow(frozenset(DAYS.index(day) for day in days), start, start + length)

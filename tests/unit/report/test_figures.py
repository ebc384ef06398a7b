"""Numbers as people read them."""

import math

import pytest
from example_records import CHAT
from hypothesis import given
from hypothesis import strategies as st

from probe.core.objectives import Objectives
from probe.report.figures import iso, milliseconds, moment, number, percent, promises, short, when


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.0, "0.0 ms"), (0.00123, "1.2 ms"), (0.0999, "99.9 ms"), (0.1, "100 ms"), (12.3456, "12346 ms")],
)
def test_milliseconds(seconds: float | None, words: str) -> None:
    assert milliseconds(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (0.0, "0"), (3.0, "3"), (1.23456, "1.23"), (999.6, "1,000"), (1234.5, "1,234"), (2e6, "2,000,000")],
)
def test_numbers(value: float | None, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1234.5, 1e308])
def test_any_float_has_words(value: float) -> None:
    assert number(value)
    assert percent(value)
    assert milliseconds(value)


@given(st.floats(0, 1e9))
def test_a_number_is_short_and_about_right(value: float) -> None:
    words = number(value)
    assert float(words.replace(",", "")) == pytest.approx(value, rel=0.01, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (None, "-"),
        (0.0, "0 %"),
        (0.1234, "12.3 %"),
        (0.9996, "99.96 %"),
        (0.996875, "99.69 %"),
        (0.99996, "99.996 %"),
        (-998.99, "-99,899 %"),
        (1.0, "100 %"),
    ],
)
def test_percent(ratio: float | None, words: str) -> None:
    assert percent(ratio) == words


def test_an_objective_of_four_nines_is_not_rounded_up() -> None:
    assert "99.99 %" in promises(Objectives(name="strict", availability=0.9999))


def test_promises() -> None:
    assert promises(CHAT) == "availability 99.9 %, TTFT ≤ 500 ms for 95 %, TPOT ≤ 50 ms for 95 %"
    assert promises(Objectives(name="none")) == "none"


def test_a_moment_is_in_utc() -> None:
    assert when(0.0) == "1970-01-01 00:00:00 UTC"


def test_a_moment_for_programs_is_iso_8601() -> None:
    assert iso(1_795_275_577.9) == "2026-11-21T15:39:37Z"


@pytest.mark.parametrize("wall_s", [math.inf, -math.inf, math.nan, 1e300, -1e18])
def test_a_time_outside_the_calendar_is_not_shown(wall_s: float) -> None:
    assert when(wall_s) == iso(wall_s) == "-"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((None, "-"), (0.0, "0 ms"), (0.0084, "8.4 ms"), (0.05, "50 ms"), (0.09996, "100 ms"), (0.4242, "424 ms")),
        *((0.9994, "999 ms"), (0.9996, "1 s"), (27.23, "27.2 s"), (1397.0, "1,397 s")),
    ],
)
def test_a_latency_is_written_in_the_unit_in_which_it_is_read(seconds: float | None, words: str) -> None:
    assert short(seconds) == words


@pytest.mark.parametrize(
    ("earlier_s", "words"),
    [
        *((60, "02:48:00 UTC"), (7200, "00:49 UTC"), (3 * 3600, "22 Nov 23:49 UTC"), (20 * 86400, "3 Nov 02:49 UTC")),
        *((400 * 86400, "2025-10-19"), (-3600 * 30, "24 Nov 08:49 UTC")),
    ],
)
def test_a_moment_is_as_brief_as_it_is_clear(earlier_s: float, words: str) -> None:
    night_s = 1_795_402_140.0  # 2026-11-23 02:49:00 UTC
    assert moment(night_s - earlier_s, night_s) == words

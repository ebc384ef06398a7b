"""Durations as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.durations import DURATION_PATTERN, format_duration, parse_duration

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("15s", 15.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("30d", 2592000.0),
        ("2w", 1209600.0),
        ("1m500ms", 60.5),
        ("0s", 0.0),
    ],
)
def test_reads_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "15", "s", "15 s", " 15s", "15s ", "-15s", "+15s", "1e3s", "15S", "15us", "15sec", "1h 30m", ".5s", "5.s",
     "inf", "nan", "infs", "1,5s", "1:30", 15, 15.0, None, True, [], {}, b"15s"],
)  # fmt: skip
def test_refuses_what_has_no_unit_or_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration with a unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["15s\n", "\u0661\u0665s", "\uff11\uff15s"])
def test_refuses_a_line_end_and_digits_of_other_scripts(text: str) -> None:
    """The JSON Schema, which takes the same pattern, would refuse them too."""
    with pytest.raises(ValueError, match="expected a duration with a unit"):
        parse_duration(text)


def test_refuses_a_duration_beyond_any_number() -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration("9" * 400 + "s")


@given(st.integers(1, 100_000))
def test_milliseconds_are_the_nearest_number_there_is(milliseconds: int) -> None:
    """A threshold is a bucket bound: `within: 9ms` has to become le="0.009", not le="0.009000000000000001"."""
    assert parse_duration(f"{milliseconds}ms") == milliseconds / 1000


@given(st.integers(1, 10_000), st.sampled_from(sorted(UNITS_S)))
def test_a_formatted_duration_parses_to_the_same_number(amount: int, unit: str) -> None:
    seconds = parse_duration(f"{amount}{unit}")
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0.0001, 1e9))
def test_every_duration_can_be_shown_and_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500ms"), (15, "15s"), (90, "90s"), (5400, "90m"), (3600, "1h"), (2592000, "30d"), (604800, "1w")],
)
def test_formats_in_the_largest_unit_that_is_whole(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS_S))), min_size=1, max_size=5))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{amount}{unit}" for amount, unit in parts)
    assert parse_duration(text) == pytest.approx(sum(amount * UNITS_S[unit] for amount, unit in parts))


@given(st.text(alphabet="0123456789.smhdw -+e\n", max_size=12))
def test_any_text_is_a_finite_duration_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


def test_the_pattern_for_the_schema_is_anchored() -> None:
    assert DURATION_PATTERN.startswith("^")
    assert DURATION_PATTERN.endswith("$")

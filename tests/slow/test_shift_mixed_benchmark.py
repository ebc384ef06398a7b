"""The goals of benchmarks/shift_mixed.py, on fewer months. Its record has the whole."""

import pytest

from benchmarks.shift_mixed import HELD_OUT, judge, measured, meets_goals
from probe.core.shift import UNVERIFIED


@pytest.mark.slow
@pytest.mark.parametrize(("mixed", "months"), [(False, 400), (True, 800)])  # one false page in 100 is seldom
def test_a_fifth_less_is_said_within_two_nights_and_pages_are_rarely_false(mixed: bool, months: int) -> None:  # noqa: FBT001
    by_server = measured(HELD_OUT)
    assert any(one.mode == UNVERIFIED for own in by_server.values() for one in own)
    found = judge(by_server, months, mixed=mixed)
    assert meets_goals(found), found

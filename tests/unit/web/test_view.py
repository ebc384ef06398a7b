"""The strip of canaries and the words of time: always inside the picture."""

import time

import pytest
from example_records import CHAT, record
from hypothesis import given
from hypothesis import strategies as st

from probe.records import Objectives, Outcome
from probe.web.view import ago, good_share, strip

NOTHING = Objectives(name="none", availability=None)


@given(
    ttfts=st.lists(st.floats(0.0, 1000.0), max_size=60),
    outcome=st.sampled_from(Outcome),
    objectives=st.sampled_from([CHAT, NOTHING]),
)
def test_every_bar_is_inside_the_strip_and_none_overlaps(
    ttfts: list[float], outcome: Outcome, objectives: Objectives
) -> None:
    recent = [record(ttft_s=ttft, outcome=outcome) for ttft in ttfts]
    drawn = strip(recent, objectives)
    assert len(drawn.bars) == len(recent)
    for bar in drawn.bars:
        assert 0 <= bar.y <= drawn.height
        assert bar.height > 0
        assert bar.y + bar.height == pytest.approx(drawn.height)
        assert 0 <= bar.x < drawn.width
    assert len({bar.x for bar in drawn.bars}) == len(recent)
    if objectives.ttft:
        assert drawn.objective_y is not None
        assert 0 < drawn.objective_y < drawn.height
    else:
        assert drawn.objective_y is None


def test_the_newest_canary_is_on_the_right() -> None:
    drawn = strip([record(outcome=Outcome.TIMEOUT), record()], CHAT)
    assert [bar.kind for bar in sorted(drawn.bars, key=lambda bar: bar.x)] == ["good", "failed"]


def test_a_bar_says_what_happened() -> None:
    good, failed = strip([record(outcome=Outcome.TIMEOUT), record()], CHAT).bars
    assert "TTFT 100 ms" in good.title
    assert "timeout, it failed" in failed.title


def test_an_aborted_request_is_no_slow_one() -> None:
    (bar,) = strip([record(outcome=Outcome.ABORTED)], CHAT).bars
    assert bar.kind == "failed"
    assert good_share([record(outcome=Outcome.ABORTED)], CHAT) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s ago"), (0, "0 s ago"), (59, "59 s ago"), (120, "2 min ago"), (7200, "2 h ago"), (864000, "10 d ago")],
)
def test_ago_in_the_largest_unit(seconds: float, words: str) -> None:
    assert ago(time.time() - seconds) == words

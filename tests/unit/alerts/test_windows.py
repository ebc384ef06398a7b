import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.windows import DAY_S, HOUR_S, MIN_BAD_EVENTS, choose, duration


def _burns(ratio: float = 0.999, days: float = 30, every_s: float = 15) -> list[tuple[str, str, str, float]]:
    choice = choose(ratio=ratio, slo_window_s=days * DAY_S, every_s=every_s)
    return [(w.severity, duration(w.long_s), duration(w.short_s), w.burn) for w in choice.windows]


def test_thirty_days_give_the_workbooks_table_with_an_hour_for_the_slow_page() -> None:
    assert _burns() == [
        ("page", "1h", "5m", 14.4),
        ("page", "6h", "1h", 6.0),
        ("ticket", "1d", "2h", 3.0),
        ("ticket", "3d", "6h", 1.0),
    ]


def test_the_slow_page_asks_for_a_sustained_burn_at_a_third_of_its_rate() -> None:
    windows = choose(ratio=0.999, slo_window_s=30 * DAY_S, every_s=15).windows
    assert [(w.short_burn, w.is_sustained) for w in windows] == [(14.4, False), (2.0, True), (3.0, False), (1.0, False)]
    (_, slow, *_) = choose(ratio=0.99, slo_window_s=7 * DAY_S, every_s=15).windows
    assert slow.short_burn == 1.0  # never below the promise


def test_a_burn_that_is_too_short_for_the_slow_page_is_fast_enough_for_the_fast_one() -> None:
    """Over the short window's rate in the median hour takes two hours: in less, the budget's share burns at 18x."""
    fast, slow, *_ = choose(ratio=0.999, slo_window_s=30 * DAY_S, every_s=15).windows
    shortest_s = slow.long_s / 2 - slow.short_s
    assert slow.burn * slow.long_s / shortest_s > fast.burn


def test_another_window_keeps_the_share_of_the_budget() -> None:
    assert [burn for *_, burn in _burns(days=90)] == [43.2, 18.0, 9.0, 3.0]


def test_a_short_objective_never_reports_a_service_that_keeps_its_promise() -> None:
    assert [burn for *_, burn in _burns(days=7)] == [3.36, 1.4, 1.0, 1.0]


@pytest.mark.parametrize(("ratio", "left"), [(0.94, 4), (0.93, 3), (0.9, 3), (0.8, 2), (0.6, 1), (0.05, 1)])
def test_a_window_that_can_never_fire_is_left_out_and_named(ratio: float, left: int) -> None:
    choice = choose(ratio=ratio, slo_window_s=30 * DAY_S, every_s=15)
    assert len(choice.windows) == left
    assert len(choice.left_out) == 4 - left
    assert all("cannot fire" in text for text in choice.left_out)


def test_the_reason_says_what_would_have_to_happen() -> None:
    choice = choose(ratio=0.9, slo_window_s=30 * DAY_S, every_s=15)
    assert choice.left_out == ("page at 14.4x over 1h: cannot fire, 144% of the requests would have to be bad",)


def test_a_window_longer_than_the_objectives_is_left_out() -> None:
    choice = choose(ratio=0.99, slo_window_s=2 * DAY_S, every_s=15)
    assert [duration(w.long_s) for w in choice.windows] == ["1h", "6h", "1d"]
    assert choice.left_out == ("ticket at 1x over 3d: longer than the objective's window of 2d",)


def test_a_rare_canary_gets_short_windows_that_hold_one_and_no_window_without_three() -> None:
    assert _burns(every_s=20 * 60)[0] == ("page", "1h", "40m", 14.4)
    hourly = choose(ratio=0.999, slo_window_s=30 * DAY_S, every_s=HOUR_S)
    assert [duration(w.long_s) for w in hourly.windows] == ["6h", "1d", "3d"]
    assert hourly.left_out == ("page at 14.4x over 1h: too short for a canary every 1h",)


def test_a_window_knows_its_share_of_the_whole_budget() -> None:
    shares = [w.share for w in choose(ratio=0.999, slo_window_s=30 * DAY_S, every_s=15).windows]
    assert shares == pytest.approx([0.02, 0.05, 0.1, 0.1])
    week = [w.share for w in choose(ratio=0.999, slo_window_s=7 * DAY_S, every_s=15).windows]
    assert week == pytest.approx([0.02, 0.05, 1 / 7, 3 / 7])


def test_a_left_out_window_names_the_subject_that_is_too_rare() -> None:
    choice = choose(ratio=0.999, slo_window_s=30 * DAY_S, every_s=60, scale=0.01, judged="an account")
    assert choice.left_out[0] == "page at 14.4x over 36s: too short for an account every 1m"


@pytest.mark.slow
@given(
    ratio=st.floats(0.001, 0.99999),
    slo_window_s=st.floats(HOUR_S, 400 * DAY_S),
    every_s=st.floats(0.1, 2 * DAY_S),
    scale=st.floats(0.001, 1),
)
def test_every_chosen_window_can_fire(ratio: float, slo_window_s: float, every_s: float, scale: float) -> None:
    choice = choose(ratio=ratio, slo_window_s=slo_window_s, every_s=every_s, scale=scale)
    assert len(choice.windows) + len(choice.left_out) == 4
    for window in choice.windows:
        assert window.burn >= 1
        assert window.burn * (1 - ratio) < 1 + 1e-6
        assert window.short_s <= window.long_s
        assert window.long_s >= MIN_BAD_EVENTS * every_s


@given(st.integers(1, 2**32 - 1))  # the parser counts milliseconds in 32 bits; 49 days are enough
def test_a_duration_is_what_promql_reads(ms: int) -> None:
    assert round(promql_parser.parse_duration(duration(ms / 1000)).total_seconds() * 1000) == ms

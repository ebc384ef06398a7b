"""The charts of a day: whose latency, how it is now, when it was worst, and where nobody was answered."""

from math import inf

from example_records import CHAT

from probe.core.latency_day import SLOT_S, SLOTS, LatencyDay
from probe.web.day_chart import day_charts

NOW_S = 1_795_402_140.0  # 2026-11-23 02:49:00 UTC
NEWEST = int(NOW_S // SLOT_S)
NONE = (None,) * 2


def test_each_line_says_how_it_is_now_and_when_it_was_worst() -> None:
    rows = [
        (NEWEST - 12, 0.1, 5.2, 0.01, 0.02, 0.2, 0.4, *NONE),
        (NEWEST - 1, 0.1, 0.2, 0.01, 0.012, 0.2, 27.23, *NONE),
        (NEWEST, 0.11, 0.21, *NONE, *NONE, *NONE),
    ]
    ttft, tpot = day_charts(LatencyDay(rows), CHAT, NOW_S)
    assert [(one.name, one.now, one.worst) for one in ttft.lines] == [
        ("canaries p50", "110 ms", "110 ms at 02:40 UTC"),
        ("canaries p95", "210 ms", "5.2 s at 00:40 UTC"),
        ("users p50", "200 ms", "200 ms at 02:30 UTC"),
        ("users p95", "27.2 s", "27.2 s at 02:30 UTC"),
    ]
    assert ttft.failed == ""
    assert ttft.objective_y is not None
    assert 0 < ttft.objective_y < ttft.height
    assert [one.name for one in tpot.lines] == ["canaries p50", "canaries p95"]
    assert "canaries p95: now 210 ms, worst 5.2 s at 00:40 UTC" in ttft.words


def test_what_was_not_answered_is_marked_at_the_top_and_no_line_goes_through_a_gap() -> None:
    rows = [(NEWEST - ago, 0.1, inf if ago == 3 else 0.2, *NONE, *NONE, *NONE) for ago in (5, 4, 3, 2, 0)]
    (ttft,) = day_charts(LatencyDay(rows), CHAT, NOW_S)
    _, p95 = ttft.lines
    assert p95.path.count("M") == 3
    assert p95.worst.startswith("no answer at ")
    assert ttft.failed.startswith(f"M{(SLOTS - 4) * 4} 0")
    assert ttft.failed.count("M") == 1


def test_only_failures_are_a_chart_and_nothing_is_none() -> None:
    ttft, tpot = day_charts(LatencyDay([(NEWEST, inf, inf, inf, inf, *NONE, *NONE)]), CHAT, NOW_S)
    assert {one.now for one in (*ttft.lines, *tpot.lines)} == {"no answer"}
    assert day_charts(LatencyDay(), CHAT, NOW_S) == []


def test_an_answer_without_tokens_has_a_chart_of_its_e2e() -> None:
    (chart,) = day_charts(LatencyDay([(NEWEST, 0.1, 0.2, *NONE, *NONE, *NONE)]), CHAT, NOW_S, generates=False)
    assert chart.name == "E2E"

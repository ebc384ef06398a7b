"""What `make bench-alerts` makes of rules and of what fired: which alert is whose, and which is false."""

from dataclasses import replace

import numpy as np
import pytest

from alerts.build import FILE, render
from alerts.rules import FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts import month
from benchmarks.alerts.conditions import necessary
from benchmarks.alerts.faults import ALERTS, Fault
from benchmarks.alerts.inhibit import Inhibition, sent
from benchmarks.alerts.judge import incidents, judge
from benchmarks.alerts.month import START_S
from benchmarks.alerts.replay import Firing, firing_times
from benchmarks.alerts.report import by_kind, missed, too_often
from benchmarks.alerts.rules import Rule, asked, filled_in, needed, rules_of, unmet

FAULT = Fault(FaultKind.DEAD, "a", START_S + 10 * HOUR_S, START_S + 11 * HOUR_S, 1.0, counts=True)
PAGE = {"alertname": "KneewatchAvailabilityBurn", "target": "a", "severity": "page"}


def fires(seconds: float, lasts: float = 600.0, **labels: str) -> Firing:
    """Return an alert that fires this long after the fault began."""
    start_s = FAULT.start_s + seconds
    return Firing({**PAGE, **labels}, start_s, start_s + lasts)


@pytest.mark.parametrize(
    ("present", "for_s", "keep_s", "expected"),
    [
        ("..####..", 60, 0, [(120, 180)]),
        ("..##.##.", 60, 0, []),
        ("..####..", 0, 0, [(60, 180)]),
        ("########", 60, 0, [(60, 210)]),
        ("..###.##..", 60, 60, [(120, 300)]),
        (".###.......", 60, 90, [(90, 210)]),
    ],
)
def test_for_and_keep_firing_for_are_applied_as_prometheus_does(
    present: str, for_s: float, keep_s: float, expected: list[tuple[float, float]]
) -> None:
    times = 30.0 * np.arange(len(present))
    seen = np.array([mark == "#" for mark in present])
    # What still fires at the end, ends with it.
    last = float(times[-1])
    assert list(firing_times(seen, times, for_s, keep_s)) == [(a, min(b, last)) for a, b in expected]


def test_an_alert_within_a_fault_finds_it_and_one_elsewhere_is_false() -> None:
    verdict = judge([FAULT], [fires(130)])
    assert (verdict.found[0].delay_s, verdict.found[0].by, verdict.false) == (130, "KneewatchAvailabilityBurn", ())
    for elsewhere in (fires(-60), fires(130, target="b"), fires(130, alertname="KneewatchTPOTBurn"), fires(8 * HOUR_S)):
        verdict = judge([FAULT], [elsewhere])
        assert verdict.found[0].delay_s is None
        assert len(verdict.false) == 1
    with pytest.raises(KeyError):
        judge([FAULT], [fires(1, alertname="KneewatchUnheardOf")])


def test_a_late_begin_in_a_long_window_is_an_echo_and_no_finding() -> None:
    late = fires(10 * HOUR_S, severity="ticket")
    verdict = judge([FAULT], [late])
    assert (verdict.found[0].delay_s, len(verdict.false), len(verdict.echoes)) == (None, 0, 1)


def test_little_headroom_is_no_false_alert_when_there_is_little() -> None:
    low = fires(3 * DAY_S, alertname="KneewatchHeadroomLow", severity="ticket")
    assert len(judge([FAULT], [low]).false) == 1
    verdict = judge([FAULT], [low], lambda target, at_s: (target, at_s) == ("a", low.start_s))
    assert (len(verdict.false), len(verdict.busy)) == (0, 1)
    page = fires(3 * DAY_S)
    assert len(judge([FAULT], [page], lambda *_: True).false) == 1  # nothing else is excused


def test_alerts_of_one_name_and_target_within_ten_minutes_are_one() -> None:
    assert len(incidents([fires(0), fires(900), fires(900, slo="chat")])) == 1
    assert len(incidents([fires(0), fires(1300)])) == 2
    assert len(incidents([fires(0), fires(0, target="b")])) == 2


def test_a_missed_fault_a_slow_page_and_false_alerts_are_named() -> None:
    assert missed(0, judge([FAULT], [fires(130)])) == []
    assert "not found: dead server of a" in missed(0, judge([FAULT], []))[0]
    assert "not within 300" in missed(0, judge([FAULT], [fires(301)]))[0]
    twice = [fires(130), fires(1, target="b"), fires(1, target="c")]
    assert too_often([judge([FAULT], twice)]) == ["2 false pages in 1 months, more than 0"]
    small = replace(FAULT, counts=False)
    assert missed(0, judge([small], [])) == []
    rows = {row["kind"]: row for row in by_kind([judge([FAULT, small], [fires(130)])])}
    assert (rows["all"]["found"], rows["all"]["faults"], rows["dead server"]["small_found"]) == (1, 1, 1)


def test_an_inhibited_alert_is_sent_once_its_inhibition_ends() -> None:
    rule = Inhibition(
        ('alertname="KneewatchAvailabilityBurn"',), ('alertname=~"KneewatchTTFTBurn|Other"',), ("target",)
    )
    source = fires(100, 500)
    late, early = fires(90, 2000, alertname="KneewatchTTFTBurn"), fires(50, 100, alertname="KneewatchTTFTBurn")
    assert sent([source, fires(150, 200, alertname="Other")], [rule]) == [source]
    assert sent([source, late], [rule])[1].start_s == source.end_s
    assert sent([source, early], [rule])[1] == early  # it was sent before
    elsewhere = fires(150, 200, alertname="Other", target="b")
    assert sent([source, elsewhere], [rule]) == [source, elsewhere]


def test_the_necessary_conditions_of_an_expression_are_found() -> None:
    expr = "a > 1 and rate(b[3d]) > 2 unless c"
    assert necessary(expr) == [["a > 1", "rate(b[3d]) > 2"]]
    assert necessary("max by (x) (a > 1 or d == 0) + 1") == [["a > 1"], ["d == 0"]]
    assert necessary("round(a > 1, 0.1) * on (x) group_left (y) (b > bool 0)") == [["a > 1"]]
    either = [["a > 1", "(a > 1) / b > 2"], ["a > 1", "c > 3", "(a > 1) / b > 2"]]
    assert necessary("(a > 1) / b > 2 and (c > 3 or d)") == either
    assert necessary("(a > 1 unless b) and c") == [["a > 1", "a > 1 unless b"]]
    # Nothing is known of what has a result where its argument has none.
    for whole in ("a > 1", "absent(a > 1)", "count_over_time((a > 1)[1h:])", "a or b", "a > bool 1"):
        assert necessary(whole) == [[]]


def test_a_recordings_expression_takes_the_place_of_its_name() -> None:
    recording = Rule("g", 30, "sum(rate(x[1h]))", record="r:x:rate1h")
    assert filled_in('r:x:rate1h{target=~"a|b"} > 1', {"r:x:rate1h": recording}) == "(sum(rate(x[1h]))) > 1"


def test_unneeded_recordings_are_not_replayed_and_missing_series_are_named() -> None:
    first = Rule("g", 30, "rate(x[5m])", record="r:x:rate5m")
    second = Rule("g", 30, "avg_over_time(r:x:rate5m[1h])", record="r:x:avg1h")
    unused = Rule("g", 30, "rate(y[5m])", record="r:y:rate5m")
    alert = Rule("g", 30, 'r:x:avg1h > 1 and x{outcome!="ok",why=~"p|q"}', alert="A")
    rules = needed([second, unused, first, alert])
    assert rules == [first, second, alert]
    series = [{"__name__": "x", "outcome": "ok", "why": "p"}]
    assert unmet(asked(rules), series) == ["x{outcome!='ok',why=~'p|q'}"]
    assert unmet(asked(rules), [*series, {"__name__": "x", "outcome": "timeout", "why": "q"}]) == []


def test_every_alert_of_the_generator_has_its_kinds_of_fault() -> None:
    names = {rule.alert for rule in rules_of(render()[FILE]) if rule.alert}
    assert names <= set(ALERTS)


def test_a_month_has_every_series_that_the_rules_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(month, "BEGUN_S", START_S - HOUR_S)
    monkeypatch.setattr(month, "END_S", START_S + 3 * HOUR_S)
    wanted = asked(needed(rules_of(render()[FILE])))
    short = month.Month(0, month.config(), scrape_s=60.0, faults=False)
    labels = [line.labels for line in short.lines({each.name for each in wanted})]
    assert unmet(wanted, labels) == []
    assert len({tuple(sorted(each.items())) for each in labels}) == len(labels), "a series is there twice"

"""How `python -m benchmarks.alerts` counts rings, and what its days are."""

from pathlib import Path

import numpy as np
import pytest

from alerts.rules import FaultKind
from benchmarks.alerts.days import BEGINS_H, Batch, batches
from benchmarks.alerts.expected import EXPECTED, Expected
from benchmarks.alerts.faults import Fault
from benchmarks.alerts.judge import judge
from benchmarks.alerts.month import START_S
from benchmarks.alerts.notify import rings, routes
from benchmarks.alerts.replay import Firing
from benchmarks.alerts.report import too_often
from benchmarks.alerts.run_days import judge as judge_day
from benchmarks.backfill import STALE
from exporters import names

ALERTMANAGER = (Path(__file__).parents[2] / "deploy/examples/alertmanager.yml").read_text()
WAIT_S = next(route.wait_s for route in routes(ALERTMANAGER) if route.matchers == ('severity="page"',))


def fires(alert: str, target: str, start_s: float, end_s: float, severity: str = "page") -> Firing:
    labels = {"alertname": f"Kneewatch{alert}", "severity": severity, "target": target}
    return Firing({**labels, "group": target.partition("/")[0]}, start_s, end_s)


def test_alerts_of_a_group_within_its_wait_are_one_ring_and_a_later_one_is_another() -> None:
    first, same = fires("AvailabilityBurn", "a", 0, 3000), fires("EngineStalled", "a", 30, 3000)
    later, elsewhere = fires("GPUXid", "a", 600, 3000), fires("TTFTBurn", "b", 10, 3000)
    found = rings([first, same, elsewhere, later], ALERTMANAGER)
    assert [(ring.at_s, ring.new, ring.begins) for ring in found] == [
        (WAIT_S, (first, same), True),
        (10 + WAIT_S, (elsewhere,), True),
        (WAIT_S + 540, (later,), False),  # the group's next interval after 600 s
    ]


def test_the_servers_of_a_discovery_are_one_group() -> None:
    pods = [fires("AvailabilityBurn", f"service/{pod}", 8.0 * pod, 3000) for pod in range(8)]
    (ring,) = rings(pods, ALERTMANAGER)
    assert len(ring.new) == 8


@pytest.mark.parametrize("label", ["cluster", "namespace"])
@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_targets_of_one_name_in_two_places_are_two_groups(label: str, severity: str) -> None:
    first, other = (
        Firing({**fires("AvailabilityBurn", "a", 0, 3000, severity).labels, label: place}, 0.0, 3000.0)
        for place in ("east", "west")
    )
    assert [ring.new for ring in rings([first, other], ALERTMANAGER)] == [(first,), (other,)]


def test_an_alert_that_ends_within_the_wait_never_rings_and_a_lasting_one_rings_once() -> None:
    assert rings([fires("TTFTBurn", "a", 0, WAIT_S / 2)], ALERTMANAGER) == []
    assert len(rings([fires("TTFTBurn", "a", 0, 1e5)], ALERTMANAGER)) == 1
    assert len(rings([fires("TTFTBurn", "a", 0, 1000), fires("TTFTBurn", "a", 2000, 3000)], ALERTMANAGER)) == 2


def test_an_inhibited_alert_rings_when_its_inhibition_ends() -> None:
    down, late = fires("TargetDown", "a", 0, 1000, "none"), fires("TTFTCollapse", "a", 100, 4000)
    (none, page) = rings([down, late], ALERTMANAGER)
    assert (none.receiver, page.receiver) == ("none", "page")
    assert 1000 <= page.at_s <= 1060


def test_a_dropped_knee_does_not_take_an_outage_into_its_group() -> None:
    knee, outage = fires("KneeDropped", "a", 0, 1e6), fires("AvailabilityBurn", "a", 5e5, 6e5)
    assert [ring.begins for ring in rings([knee, outage], ALERTMANAGER)] == [True, True]


def test_a_fault_has_the_pages_that_it_explains() -> None:
    fault = Fault(FaultKind.DEAD, "a", START_S, START_S + 3600, 1.0, counts=True)
    page, ticket = (fires("AvailabilityBurn", "a", START_S + 130, START_S + 5000, each) for each in ("page", "ticket"))
    other = fires("AvailabilityBurn", "b", START_S + 130, START_S + 5000)
    sent = [page, ticket, other]
    assert judge([fault], sent, rings=rings(sent, ALERTMANAGER)).found[0].pages == 1


def test_a_page_that_finds_a_fault_is_not_one_of_the_knee_shift_around_it() -> None:
    knee = Fault(FaultKind.KNEE, "a", START_S, START_S + 8e5, 0.2, counts=True)
    queue = Fault(FaultKind.QUEUE, "a", START_S + 4e5, START_S + 4.1e5, 1.0, counts=True)
    sent = [
        fires("KneeDropped", "a", START_S + 1e5, START_S + 8e5),
        fires("TTFTBurn", "a", START_S + 4e5, START_S + 5e5),
    ]
    assert [each.pages for each in judge([knee, queue], sent, rings=rings(sent, ALERTMANAGER)).found] == [1, 1]


def test_months_together_miss_a_goal_for_false_alerts_and_second_pages() -> None:
    fault = Fault(FaultKind.DEAD, "a", START_S, START_S + 3600, 1.0, counts=True)
    once = [fires("AvailabilityBurn", "a", START_S + 130, START_S + 5000)]
    twice = [*once, fires("AvailabilityBurn", "a", START_S + 6000, START_S + 7000)]
    false = [fires("HeadroomLow", "a", START_S + 9e5, START_S + 9.1e5, "ticket")]
    good, again, wrong = (judge([fault], sent, rings=rings(sent, ALERTMANAGER)) for sent in (once, twice, once + false))
    assert too_often([good]) == []
    assert too_often([again]) == ["0 of 1 faults that paged did so once, fewer than 95%"]
    assert too_often([wrong, good, good]) == []
    assert too_often([wrong, wrong]) == ["2 false tickets in 2 months, more than 1"]


def test_an_expectation_names_what_it_misses() -> None:
    expected = Expected("an outage", (1, 1), (0, 1), {"AvailabilityBurn|EngineStalled": 300.0})
    heard = rings([fires("EngineStalled", "a", 100, 2000)], ALERTMANAGER)
    assert judge_day(expected, heard, 0.0) == []
    assert judge_day(expected, [], 0.0) == ["0 pages, expected 1", "no ring of AvailabilityBurn|EngineStalled"]
    late = rings([fires("EngineStalled", "a", 560, 2000), fires("TTFTBurn", "b", 0, 2000)], ALERTMANAGER)
    assert judge_day(expected, late, 0.0) == [
        "2 pages, expected 1",
        "AvailabilityBurn|EngineStalled rang after 11 min, expected 5 or less",
    ]


def test_every_day_has_an_expectation_and_every_expectation_a_day() -> None:
    days = [name for batch in batches() for name in batch.names]
    assert sorted(days) == sorted(EXPECTED)
    assert set(BEGINS_H) <= set(days)


def test_single_days_are_replayed_alone() -> None:
    assert [batch.names for batch in batches(["young", "echo"])] == [("echo", "young")]
    assert [batch.names for batch in batches(["knee"])] == [("knee", "knee-below")]
    (echo,) = batches(["echo"])
    assert {line.labels["target"] for line in echo.lines(0, 60.0, {names.TARGET_UP.name})} == {"echo"}


def test_only_a_target_that_is_measured_each_night_has_a_schedule() -> None:
    schedules = [
        len(batch.lines(0, 60.0, {names.CAPACITY_SCHEDULE.name}))
        for day in ("echo", "knee")
        for batch in batches([day])
    ]
    assert schedules == [0, 2]


@pytest.fixture(scope="module")
def pair() -> Batch:
    return next(batch for batch in batches() if batch.names == ("pair",))


def test_of_two_kneewatches_one_is_dead_for_two_hours(pair: Batch) -> None:
    one, two = pair.lines(0, 60.0, {names.BUILD_INFO.name})
    begins_s = pair.begins_s("pair")
    gone = (two.times > begins_s) & (two.times < begins_s + 7200)
    assert len(one.times) > len(two.times)
    assert not gone.any()
    assert two.values[two.times <= begins_s][-1:].view(np.uint64)[0] == np.float64(STALE).view(np.uint64)


def test_a_target_that_is_taken_out_ends_with_a_stale_marker() -> None:
    batch = next(batch for batch in batches() if batch.names == ("removed",))
    lines = batch.lines(0, 60.0, {names.TARGET_UP.name, f"{names.TTFT.name}_count"})
    ended = [line for line in lines if line.labels["target"] == "removed"]
    assert len(ended) == 2
    for line in ended:
        assert line.times[-1] <= batch.begins_s("removed") + 60
        assert line.values[-1:].view(np.uint64)[0] == np.float64(STALE).view(np.uint64)

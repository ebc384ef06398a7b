"""The made-up month of `make bench-alerts`: its faults, and how they show in its telemetry."""

import numpy as np
import pytest

from alerts.rules import FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts import month
from benchmarks.alerts.faults import COUNTS, plan
from benchmarks.alerts.month import END_S, START_S, Month
from benchmarks.backfill import STALE, Line

CONFIG = month.config()
TARGETS = [target.name for target in CONFIG.targets]


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_has_twenty_faults_apart_from_one_another_and_from_capacity_runs(seed: int) -> None:
    runs = [START_S + DAY_S * night + 2 * HOUR_S for night in range(30)]
    faults = plan(seed, TARGETS, START_S, END_S, runs)
    assert faults == plan(seed, TARGETS, START_S, END_S, runs)
    for kind, (large, small) in COUNTS.items():
        mine = [fault for fault in faults if fault.kind is kind]
        assert (sum(fault.counts for fault in mine), len(mine)) == (large, large + small)
    assert sum(fault.counts for fault in faults) == 20
    assert all(START_S < fault.start_s < fault.end_s < END_S for fault in faults)
    short = [fault for fault in faults if fault.kind is not FaultKind.KNEE]
    assert not any(fault.start_s < run < fault.end_s for fault in short for run in runs)
    for one, next_one in ((a, b) for a in short for b in short if a.target == b.target and a.start_s < b.start_s):
        assert next_one.start_s - one.end_s >= 10 * HOUR_S


def test_faults_that_count_are_of_the_documented_size_and_the_others_below_it() -> None:
    for seed in range(10):
        for fault in plan(seed, TARGETS, START_S, END_S, []):
            lasts = fault.end_s - fault.start_s
            large = {
                FaultKind.SLOW: (fault.size >= 0.9 and lasts >= HOUR_S) or (fault.size >= 0.45 and lasts >= 5 * HOUR_S),
                FaultKind.QUEUE: (fault.size >= 0.9 and lasts >= HOUR_S)
                or (fault.size >= 0.45 and lasts >= 5 * HOUR_S),
                FaultKind.KV: fault.size >= 0.2 and lasts >= 1200,
                FaultKind.STALL: lasts >= 360,
                FaultKind.DEAD: lasts >= 240,
                FaultKind.KNEE: fault.size >= 0.1 and lasts >= (4 if fault.size >= 0.2 else 6) * DAY_S,
            }
            assert large[fault.kind] == fault.counts, fault


@pytest.fixture(scope="module")
def made() -> Month:
    return Month(0, CONFIG, scrape_s=60.0)


@pytest.fixture(scope="module")
def lines(made: Month) -> dict[tuple[str, ...], Line]:
    """Return a month of telemetry, by name and the labels that distinguish series here."""
    names = {
        "kneewatch_requests_total", "kneewatch_good_requests_total", "kneewatch_server_scrape_up",
        "kneewatch_server_running_requests", "kneewatch_users_ttft_seconds_count",
        "kneewatch_users_good_requests_total", "kneewatch_knee_shifted", "kneewatch_server_stalled_seconds",
    }  # fmt: skip
    each = made.lines(names)
    keys = ("__name__", "target", "outcome", "objective", "method", "mode", "traffic")
    return {tuple(line.labels.get(key, "") for key in keys): line for line in each}


def test_a_seed_makes_the_same_month_whatever_of_it_is_wanted(lines: dict[tuple[str, ...], Line]) -> None:
    name = "kneewatch_users_ttft_seconds_count"
    for line in Month(0, CONFIG, scrape_s=60.0).lines({name}):
        np.testing.assert_array_equal(line.values, lines[name, line.labels["target"], "", "", "", "", ""].values)


def growth(line: Line, start_s: float, end_s: float) -> float:
    """Return the growth of a counter that may reset, as increase() counts it."""
    inside = (line.times >= start_s) & (line.times <= end_s) & (line.values.view(np.uint64) != STALE.view(np.uint64))
    steps = np.diff(line.values[inside])
    return float(np.where(steps < 0, line.values[inside][1:], steps).sum())


def test_a_fault_shows_in_the_telemetry_as_large_as_it_is_said_to_be(
    made: Month, lines: dict[tuple[str, ...], Line]
) -> None:
    faults = {kind: [f for f in made.faults if f.kind is kind and f.counts] for kind in FaultKind}
    for kind, objective in ((FaultKind.SLOW, "tpot"), (FaultKind.QUEUE, "ttft")):
        for fault in faults[kind]:
            canary = ("", "canary")
            ok = growth(
                lines["kneewatch_requests_total", fault.target, "ok", "", "", *canary], fault.start_s, fault.end_s
            )
            good = growth(
                lines["kneewatch_good_requests_total", fault.target, "", objective, "", *canary],
                fault.start_s,
                fault.end_s,
            )
            assert 1 - good / ok == pytest.approx(fault.size, abs=0.08)
    for fault in faults[FaultKind.DEAD]:
        up = lines["kneewatch_server_scrape_up", fault.target, "", "", "", "", ""]
        inside = (up.times > fault.start_s + 60) & (up.times < fault.end_s - 60)
        assert not up.values[inside].any()
        running = lines["kneewatch_server_running_requests", fault.target, "", "", "", "", ""]
        assert not ((running.times > fault.start_s + 90) & (running.times < fault.end_s - 60)).any()
    for fault in faults[FaultKind.STALL]:
        stalled = lines["kneewatch_server_stalled_seconds", fault.target, "", "", "", "", ""]
        inside = (stalled.times > fault.start_s) & (stalled.times < fault.end_s)
        assert stalled.values[inside].max() == pytest.approx(fault.end_s - fault.start_s, abs=75)
    for fault in faults[FaultKind.KNEE]:
        shifted = [
            lines[key] for key in lines if key[:2] == ("kneewatch_knee_shifted", fault.target) and key[4] != "rise"
        ]
        inside = [line.values[(line.times > fault.start_s) & (line.times < fault.end_s)] for line in shifted]
        assert 1 in np.concatenate(inside)


def test_busy_is_what_users_truly_take(made: Month) -> None:
    surge = next(f for f in made.faults if f.how == "more users than it takes" and f.counts)
    assert made.busy(surge.target, surge.end_s)
    nights = [START_S + DAY_S * night + 3 * HOUR_S for night in range(30)]
    assert not any(made.busy(TARGETS[0], night) for night in nights if abs(night - surge.start_s) > DAY_S)


def test_counters_fall_when_kneewatch_restarts_and_series_end_where_it_is_not_scraped(
    lines: dict[tuple[str, ...], Line],
) -> None:
    line = lines["kneewatch_requests_total", TARGETS[0], "ok", "", "", "", "canary"]
    stale = line.values.view(np.uint64) == STALE.view(np.uint64)
    assert 5 <= stale.sum() <= 8
    assert (np.diff(line.values[~stale]) < 0).sum() == 3
    assert np.diff(line.times).min() == 60

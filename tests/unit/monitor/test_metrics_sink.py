"""Series of targets that come and go."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from example_records import WALL_S, record, result, snapshot

from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.objectives import Objective, Objectives
from probe.core.request import Traffic
from probe.core.snapshot import CrossChecks, GpuSnapshot, UserLoad, UserTotals
from probe.monitor.metrics_sink import MetricsSink

TARGETS = ("a", "a/b", "ab")
CHAT = Objectives("chat", ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))


def _measured(measurements: MetricsSink, *names: str) -> None:
    """Export everything that there can be of targets."""
    raw = [{"name": "x", "base_url": "http://127.0.0.1:9", "capacity": {"mode": "verify"}, "gpu": {"nvml": True}}]
    (target,) = config_from({"targets": raw}, "test").servers
    for name in names:
        measurements.add(target.model_copy(update={"name": name}), ["m"], CHAT, [75.0])
        measurements.discovery.describe(name, "found", {"app": "x"})
        measurements.health.announce_task("canary", name, 15.0, 1000.0)
        measurements.record(record(target=name))
        measurements.record(replace(record(target=name), traffic=Traffic.CAPACITY))
        measurements.snapshot(name, snapshot(), 0.1, 1000)
        measurements.users(name, UserTotals())
        measurements.cross_checks(name, CrossChecks(), UserLoad(1.0, 2.0))
        measurements.gpus(name, GpuSnapshot(1, 1.0, "nvml", ()))
        found = result(target=name, result_id=f"1-{name}")
        measurements.forecast(replace(found, id=f"2-{name}", capacity=replace(found.capacity, mode="forecast")))
        load = {**found.context.workload, "name": "users"}
        users = replace(found, context=replace(found.context, workload=load))
        measurements.forecast_for_users(replace(users, capacity=replace(found.capacity, mode="forecast")))
        measurements.result(found)
        measurements.refused(name, "busy")


def _of(measurements: MetricsSink, target: str) -> list[str]:
    page = measurements.page.render()[0].decode()
    return [line for line in page.splitlines() if f'target="{target}"' in line]


def test_of_a_target_that_is_forgotten_nothing_is_left_and_the_others_stay() -> None:
    measurements = MetricsSink(None, SystemClock())
    _measured(measurements, *TARGETS)
    before = {name: _of(measurements, name) for name in TARGETS}
    assert len({re.split(r"[{ ]", line)[0] for line in before["a"]}) > 40, "there is much to be forgotten"
    measurements.forget("a")
    assert _of(measurements, "a") == []
    assert {name: _of(measurements, name) for name in TARGETS[1:]} == {name: before[name] for name in TARGETS[1:]}
    measurements.forget("a")  # once more does nothing


def test_a_snapshot_of_a_server_that_sleeps_ends_the_series_that_says_whether_it_is_up() -> None:
    measurements = MetricsSink(None, SystemClock())
    _measured(measurements, "a", "b")

    def up() -> list[str]:
        page = measurements.page.render()[0].decode()
        return re.findall(r'^kneewatch_target_up\{target="(\w+)"\} 1', page, re.MULTILINE)

    assert up() == ["a", "b"]
    measurements.snapshot("a", snapshot(is_asleep=False), 0.1, 1000)
    assert up() == ["a", "b"]
    measurements.snapshot("a", snapshot(is_asleep=True), 0.1, 1000)
    assert up() == ["b"]


def test_a_target_that_comes_again_starts_at_zero_and_with_the_capacity_that_is_known(tmp_path: Path) -> None:
    measurements = MetricsSink(tmp_path / "kneewatch.db", SystemClock())
    _measured(measurements, "a")
    capacity = [line for line in _of(measurements, "a") if line.startswith("kneewatch_capacity_requests_per_second")]
    assert capacity
    measurements.forget("a")
    (target,) = config_from(
        {"targets": [{"name": "a", "base_url": "http://127.0.0.1:9", "capacity": {"mode": "verify"}}]}, "test"
    ).servers
    known = measurements.add(target, ["m"], CHAT, [75.0])
    assert [each.id for each in known][-1:] == ["1-a"]
    lines = _of(measurements, "a")
    assert [line for line in lines if line.startswith("kneewatch_capacity_requests_per_second{")][-1:] == [
        line for line in capacity if "forecast" not in line and "_second{" in line
    ]
    assert all(line.endswith(" 0.0") for line in lines if line.startswith("kneewatch_requests_total"))


def test_a_new_threshold_is_a_bound_of_all_histograms_and_resets_them() -> None:
    measurements = MetricsSink(None, SystemClock())
    measurements.promise([CHAT])
    _measured(measurements, "a")
    before = _of(measurements, "a")
    measurements.promise([CHAT, replace(CHAT, name="other")])
    assert _of(measurements, "a") == before, "the same thresholds"
    measurements.promise([CHAT, replace(CHAT, ttft=Objective(0.9, 0.321))])
    bounds = [line for line in _of(measurements, "a") if line.startswith("kneewatch_ttft_seconds_bucket")]
    assert bounds == [], "nothing was counted yet"
    measurements.record(record(target="a"))
    bounds = [line for line in _of(measurements, "a") if line.startswith("kneewatch_ttft_seconds_bucket")]
    assert any('le="0.321"' in line for line in bounds)
    assert any('le="0.5"' in line for line in bounds)


def _full(path: Path) -> None:
    """Make the store refuse writes, as a full disk does."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON results BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )


@pytest.mark.fault(
    "DI1",
    "The store is full or read-only when a run ends",
    area="Disk",
    users_see="one log line: results cannot be stored, and one when they can again",
    stays="what the run cost is counted",
)
def test_a_run_s_cost_is_counted_although_the_store_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kneewatch.db"
    measurements = MetricsSink(path, SystemClock())
    _measured(measurements, "a")
    first = result(target="a", result_id="first", started_s=WALL_S + 10)
    measurements.result(first)
    before, each = measurements.tokens_since("a", WALL_S), first.cost.tokens
    assert each > 0
    measurements.store.save()
    _full(path)
    for i in range(3):
        measurements.result(replace(first, id=f"lost {i}", started=first.started + timedelta(seconds=i)))
        measurements.forget("a")  # a target that comes again has spent what it has spent
        measurements.store.save()
    assert measurements.tokens_since("a", WALL_S) == before + 3 * each
    assert measurements.tokens_since("a", WALL_S + 11) == 2 * each
    assert measurements.tokens_since("b", WALL_S) == 0
    said = capsys.readouterr().out
    assert said.count("results cannot be stored") == 1
    assert "database or disk is full" in said
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TRIGGER full")
    measurements.store.save()
    assert "results can be stored again" in capsys.readouterr().out
    assert measurements.tokens_since("a", WALL_S) == before + 3 * each
    _full(path)
    measurements.result(replace(first, id="lost again", started=first.started + timedelta(days=3)))
    measurements.store.save()
    assert capsys.readouterr().out.count("results cannot be stored") == 1


def test_a_result_that_cannot_be_stored_is_a_failure_of_its_task(tmp_path: Path) -> None:
    measurements = MetricsSink(tmp_path / "kneewatch.db", SystemClock())
    measurements.health.announce_task("capacity", "a", None, WALL_S)
    _full(tmp_path / "kneewatch.db")
    measurements.result(result(target="a"))
    for _ in range(3):
        measurements.store.save()
    assert 'kneewatch_task_failures_total{task="capacity",target="a"} 1.0' in _of(measurements, "a")

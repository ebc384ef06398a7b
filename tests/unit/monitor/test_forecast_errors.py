"""The record of forecasts: there after a restart, shared by replicas, bounded, and whole where rows are damaged."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from example_records import result
from structlog.testing import capture_logs

from probe.capacity.trend.fingerprint import fingerprint
from probe.capacity.trend.track_record import KEEP
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.objectives import Objectives
from probe.core.result import Capacity, CapacityResult, PriorForecast
from probe.monitor.forecast_errors import errors_in_file
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.store import Store

VERIFIED = Capacity("verified", 8.0, 7.6, 8.4)
OF = fingerprint("m", result().context)


def _judged(night: int = 0, target: str = "a", rps: float = 10.0, model: str = "m") -> CapacityResult:
    """Return a run of that night which measured 8 requests/s where `rps` were forecast."""
    run = result(result_id=f"{target}-{night}", target=target, model=model, capacity=VERIFIED)
    return replace(run, started=run.started + timedelta(days=night), prior_forecast=PriorForecast(rps, 0.1))


def _stored(path: Path, *runs: CapacityResult) -> None:
    store = Store(path)
    for run in runs:
        store.add(run)
    store.close()


def test_errors_are_there_after_a_restart_and_as_soon_as_their_run_is_added(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    store = Store(path)
    store.add(_judged())
    before = store.forecast_errors(OF)
    store.close()
    again = Store(path)
    assert len(before) == 1
    assert again.forecast_errors(OF) == before == errors_in_file(path, OF)
    again.close()


def test_replicas_share_a_record_in_the_order_of_their_runs_and_another_setup_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    _stored(path, _judged(2, "b"), _judged(1, "a"), _judged(3, "gone"), _judged(4, model="another"))
    known = errors_in_file(path, OF)
    assert [each.at_s for each in known] == [_judged(night).ended_s for night in (1, 2, 3)]


def test_a_run_that_judged_nothing_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    _stored(path, result(capacity=VERIFIED), replace(_judged(), capacity=replace(VERIFIED, upper=None)))
    assert errors_in_file(path, OF) == []


def test_the_oldest_errors_of_a_setup_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    _stored(path, *(_judged(night) for night in range(KEEP + 5)), _judged(0, "b", model="another"))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*), min(at) FROM forecast_errors WHERE fingerprint = ?", (OF,)).fetchall() == [
            (KEEP, _judged(5).ended_s)
        ]
        assert db.execute("SELECT count(*) FROM forecast_errors").fetchall() == [(KEEP + 1,)]


@pytest.mark.parametrize("column", ["at", "log_ratio", "half_width", "measured_half_width"])
@pytest.mark.parametrize("value", ["'text'", "NULL", "x'00'"])
@pytest.mark.fault(
    "DI6b",
    "Stored errors of forecasts that no run can have written: infinite, negative, text, nothing",
    area="Disk",
    users_see="one log line names them; they are left out",
    stays="the other errors",
)
def test_a_row_with_values_of_another_type_is_left_out(tmp_path: Path, column: str, value: str) -> None:
    """A damaged page may have them: SQLite checks types as it writes, not as it reads."""
    path = tmp_path / "kneewatch.db"
    _stored(path, _judged(1), _judged(2))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE of_any_type AS SELECT * FROM forecast_errors")
        db.execute("DROP TABLE forecast_errors")
        db.execute("ALTER TABLE of_any_type RENAME TO forecast_errors")
        db.execute(f"UPDATE forecast_errors SET {column} = {value} WHERE result = 'a-1'")  # noqa: S608 - the test's own
    assert [error.at_s for error in errors_in_file(path, OF)] == [_judged(2).ended_s]


@pytest.mark.parametrize(
    "damage",
    ["log_ratio = 9e999", "log_ratio = -1e6", "half_width = -1", "at = -9e999", "measured_half_width = 7"],
)
@pytest.mark.fault("DI6b")
def test_a_damaged_row_is_left_out_and_the_others_count(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "kneewatch.db"
    _stored(path, _judged(1), _judged(2))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE forecast_errors SET {damage} WHERE result = 'a-1'")  # noqa: S608 - a constant
    with capture_logs() as logs:
        known = errors_in_file(path, OF)
    assert [each.at_s for each in known] == [_judged(2).ended_s]
    assert [each["results"] for each in logs] == [["a-1"]]


def test_a_store_from_before_there_was_a_record_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    _stored(path, result())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE forecast_errors")
    _stored(path, _judged())
    assert len(errors_in_file(path, OF)) == 1


def test_without_a_store_there_is_no_record_and_none_is_made(tmp_path: Path) -> None:
    assert errors_in_file(None, OF) == errors_in_file(tmp_path / "none.db", OF) == []
    assert not (tmp_path / "none.db").exists()
    other = tmp_path / "other.db"
    other.write_bytes(b"no database" * 100)
    assert errors_in_file(other, OF) == []


def _sink(path: Path | None, *targets: str) -> MetricsSink:
    sink = MetricsSink(path, SystemClock())
    raw: list[dict[str, Any]] = [
        {"name": name, "base_url": "http://127.0.0.1:9", "capacity": {"mode": "verify"}} for name in targets
    ]
    for target in config_from({"targets": raw}, "test").servers:
        sink.add(target, ["m"], Objectives("chat"), [75.0])
    return sink


def _forecast(sink: MetricsSink, target: str, rps: float = 10.0) -> Capacity:
    """Return the forecast as it is published, of a model that says `rps`."""
    said = result(target=target, capacity=Capacity("forecast", rps, 0.9 * rps, 1.1 * rps))
    corrected = sink.corrected(said)
    sink.forecast(corrected)
    return corrected.capacity


def test_a_forecast_learns_from_the_nights_before_it_on_any_replica_and_a_restart_keeps_that(tmp_path: Path) -> None:
    path = tmp_path / "kneewatch.db"
    sink, published = _sink(path, "a", "b"), []
    for night in range(8):
        for target in ("a", "b"):
            published.append(_forecast(sink, target).requests_per_second or 0.0)
            sink.result(replace(_judged(night, target), prior_forecast=None))
    assert published[0] == 10.0
    assert published == sorted(published, reverse=True)
    assert published[-1] == pytest.approx(8.0, rel=0.05)
    sink.store.close()
    again = _sink(path, "b")
    after = _forecast(again, "b")
    assert after.requests_per_second is not None
    assert after.requests_per_second <= published[-1]
    assert after.correction is not None
    again.store.close()


def test_a_run_without_a_forecast_before_it_judges_none() -> None:
    sink = _sink(None, "a")
    sink.result(result(capacity=VERIFIED))
    assert _forecast(sink, "a").correction is None
    sink.store.close()

"""Where `kneewatch plan` takes peak and capacity from: Prometheus, and the monitor's store."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_records import WALL_S, result
from fake_prometheus import prometheus
from plan_command import CONTEXT, MEASURED, kneewatch_plan, plan_result, refused, result_file

from probe.core.result import Capacity, CapacityResult, Stopped
from probe.monitor.store import Store


def _peak_answer(**rates: float) -> dict[str, object]:
    found = [{"metric": {"of": of}, "value": [1.0, str(rate)]} for of, rate in rates.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": found}}


def test_the_users_peak_is_taken_from_prometheus_by_the_larger_share(tmp_path: Path) -> None:
    file = result_file(tmp_path, plan_result(target="llama"))
    with prometheus(_peak_answer(requests=20.0, tokens=5120.0)) as (url, queries):
        status, out, err = kneewatch_plan(file, "--prometheus", url, "--weeks", "2")
    assert (status, err) == (0, "")
    assert "5,120 output tokens/s, which are 40 requests/s of this workload" in out
    assert "the users' highest five minutes in 2 weeks" in out
    (query,) = queries
    assert 'target="llama"' in query
    assert "[1209600s:5m]" in query
    with prometheus(_peak_answer(requests=40.0, tokens=1280.0)) as (url, queries):
        assert "40 requests/s (the users'" in kneewatch_plan(file, "--prometheus", url, "--target", "b")[1]
    assert 'target="b"' in queries[0]


@pytest.mark.fault(
    "TP4",
    "A peak, stated or from Prometheus, that needs more than a million replicas",
    area="Truth",
    users_see="one line that names both",
    stays="no plan",
)
def test_a_peak_that_no_users_can_have_is_one_line(tmp_path: Path) -> None:
    with prometheus(_peak_answer(requests=1e308)) as (url, _):
        line = refused(result_file(tmp_path, plan_result()), "--prometheus", url)
    assert "need more than a million replicas" in line
    assert "check the peak (the users' highest five minutes in 4 weeks)" in line


@pytest.mark.parametrize("answer", [_peak_answer(), _peak_answer(requests=0.0, tokens=math.nan)])
def test_a_target_without_users_in_prometheus_is_one_line(tmp_path: Path, answer: dict[str, object]) -> None:
    with prometheus(answer) as (url, _):
        line = refused(result_file(tmp_path, plan_result()), "--prometheus", url)
    assert "no user traffic of target a in 4 weeks; name its target with --target" in line


def _config(folder: Path, *, has_store: bool = True) -> Path:
    file = folder / "kneewatch.yml"
    store = {"store": {"path": str(folder / "results.db")}} if has_store else {}
    file.write_text(yaml.safe_dump({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}], **store}))
    return file


def _stored(folder: Path, *results: CapacityResult) -> None:
    store = Store(folder / "results.db")
    for each in results:
        store.add(each)
    store.close()


def _at(days: float, capacity: Capacity, **values: Any) -> CapacityResult:
    started = result(started_s=WALL_S + days * 86400).started
    return plan_result(id=f"{days}", started=started, capacity=capacity, **values)


def test_the_targets_last_measured_capacity_is_taken_from_the_store(tmp_path: Path) -> None:
    forecast = replace(MEASURED, mode="forecast", requests_per_second=20.0, lower=18.0, upper=22.0)
    voided = _at(3, replace(MEASURED, requests_per_second=1.0, lower=1.0), stopped=Stopped("interrupt"))
    _stored(tmp_path, _at(0, replace(MEASURED, lower=5.0)), _at(1, MEASURED), _at(2, forecast), voided)
    status, out, err = kneewatch_plan("-c", _config(tmp_path), "--peak", "40")
    assert (status, err) == (0, "")
    assert "7 (6 + 1 spare)" in out
    _stored(tmp_path, _at(4, forecast, context=replace(CONTEXT, version="0.33.0")))
    assert "forecast: no load has verified it" in kneewatch_plan("-c", _config(tmp_path), "--peak", "40")[1]


def test_a_store_without_a_capacity_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in refused("-c", _config(tmp_path), "--peak", "40")
    assert not (tmp_path / "results.db").exists()
    _stored(tmp_path)
    assert "--target a:" in (line := refused("-c", _config(tmp_path), "--target", "a", "--peak", "40"))
    assert "has no capacity of this target" in line
    assert "store.path: is not set" in refused("-c", _config(tmp_path, has_store=False), "--peak", "40")


def test_a_capacity_that_is_no_number_is_not_read_as_one(tmp_path: Path) -> None:
    file = result_file(tmp_path, plan_result(capacity=replace(MEASURED, requests_per_second=math.inf)))
    assert "has no capacity" in refused(file, "--peak", "40")

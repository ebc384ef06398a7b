"""The monitor whole: wired, served, restarted, and ended while it measures. By a signal: tests/integration."""

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from example_records import WALL_S, no_knee, record, result, snapshot
from fake_prometheus import prometheus
from mock_servers import MockServer, mock_server
from prometheus_client import REGISTRY, generate_latest

from probe.capacity.trend.fingerprint import as_number, capacity_sample
from probe.config.config import Config
from probe.config.config_file import config_from, load_config
from probe.config.prometheus import PrometheusConfig
from probe.config.targets import TargetConfig
from probe.core.canary_history import SLOTS
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError
from probe.core.request import Outcome
from probe.core.result import Capacity, CapacityResult
from probe.core.shift import CapacitySample
from probe.monitor.app import App
from probe.monitor.store import Store
from probe.monitor.target_monitor import TargetMonitor
from probe.runtime.kept_program import free_port
from probe.runtime.scheduler import TaskId


def _config(
    url: str,
    *,
    name: str = "a",
    listen: str = "127.0.0.1:0",
    store: Path | None = None,
    prometheus: str | None = None,
    **target: Any,
) -> Config:
    raw = {
        "listen": listen,
        "store": {"path": str(store)} if store else {},
        "prometheus": {"url": prometheus} if prometheus else None,
        "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
        "targets": [
            {
                "name": name,
                "base_url": url,
                "tls": {"verify": False},
                "scrape": "1s",
                "canary": {"every": "1s", "workload": "short", "timeout": "2s"},
                **target,
            }
        ],
    }
    return config_from(raw, "test")


VERIFY = {"mode": "verify", "concurrency": [4], "step": "30s", "schedule": {"cron": "0 0 29 2 *"}}


async def _get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP on loopback
        return await client.get(url, timeout=5)


async def _until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is the outside that is watched
            await asyncio.sleep(0.02)


async def _while_running(app: App, work: Callable[[str], Awaitable[None]]) -> None:
    """Run `work` with the address of the running monitor, then stop it, which must be fast."""
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, address.set_result))
    either: list[asyncio.Future[Any]] = [running, address]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    try:
        if address.done():
            await asyncio.sleep(0.1)
            await work(address.result())
    finally:
        stop.set()
        async with asyncio.timeout(4):
            await running


@pytest.mark.slow
def test_it_watches_serves_and_ends() -> None:
    async def run() -> None:
        async with mock_server() as server:
            app = App(_config(server.url), SystemClock())
            assert not app.is_ready

            async def work(url: str) -> None:
                await _until(lambda: len(app.statuses()[0].recent) >= 2 and app.statuses()[0].server is not None)
                assert (await _get(f"{url}/-/ready")).status_code == 200
                page = (await _get(f"{url}/metrics")).text
                assert 'kneewatch_target_up{target="a"} 1.0' in page
                assert 'kneewatch_server_scrape_up{target="a"} 1.0' in page
                assert "tiny" in (await _get(url)).text
                (target,) = (await _get(f"{url}/api/v1/targets")).json()
                assert target["up"] is True

            await _while_running(app, work)
            asked = len(server.asked)
            await asyncio.sleep(0.5)
            assert len(server.asked) == asked, "nothing is sent after the end"

    asyncio.run(run())


@pytest.mark.slow
def test_the_history_of_canaries_and_the_alerts_that_fire_are_on_the_pages_after_a_restart(tmp_path: Path) -> None:
    firing = {"metric": {"alertname": "KneewatchTTFTBurn", "severity": "page", "target": "a"}, "value": [1, "1.7e9"]}
    answer = {"status": "success", "data": {"resultType": "vector", "result": [firing]}}

    async def sent(url: str) -> int:
        app = App(_config(url, store=tmp_path / "kneewatch.db", prometheus=prometheus_url), SystemClock())
        before = app.statuses()[0].history
        assert before is not None
        kept = before.total("sent", SLOTS, time.time())

        async def work(page: str) -> None:
            await _until(lambda: len(app.statuses()[0].recent) >= 2 and app.firing_alerts() is not None)
            text = (await _get(page)).text
            assert "% up" in text
            assert "KneewatchTTFTBurn, page, since 2023-11-14" in text

        await _while_running(app, work)
        return kept

    async def run() -> None:
        async with mock_server() as server:
            assert await sent(server.url) == 0
            assert await sent(server.url) >= 2

    with prometheus(answer) as (prometheus_url, _):
        asyncio.run(run())


@pytest.mark.slow
def test_it_starts_and_ends_without_a_server() -> None:
    async def run() -> None:
        app = App(_config(f"http://127.0.0.1:{free_port()}"), SystemClock())

        async def work(url: str) -> None:
            await _until(lambda: len(app.statuses()[0].failures) >= 2)
            assert 'kneewatch_target_up{target="a"} 0.0' in (await _get(f"{url}/metrics")).text
            assert (await _get(url)).status_code == 200

        await _while_running(app, work)

    asyncio.run(run())


def _page(app: App) -> str:
    return app.page.render()[0].decode()


def test_before_anything_happened_counters_are_there_at_zero() -> None:
    app = App(_config("http://127.0.0.1:9", model="m", capacity=VERIFY), SystemClock())
    page = _page(app)
    for outcome in ("ok", "unreachable", "timeout", "aborted"):
        assert re.search(rf'kneewatch_requests_total{{target="a",model="m",[^}}]*,outcome="{outcome}"}} 0.0', page)
    for outcome in ("done", "guard", "budget", "interrupt", "error", "refused"):
        assert f'kneewatch_capacity_runs_total{{target="a",outcome="{outcome}"}} 0.0' in page
    for task in ("canary", "scrape", "capacity"):
        assert f'kneewatch_task_failures_total{{task="{task}",target="a"}} 0.0' in page
    assert 'kneewatch_server_scrape_errors_total{target="a",reason="timeout"} 0.0' in page


def test_a_target_without_a_capacity_section_gets_no_step_up_load() -> None:
    app = App(_config("http://127.0.0.1:9"), SystemClock())
    tasks = {str(task) for task in app._schedule.tasks}
    assert tasks == {"canary:a", "scrape:a"}
    assert "capacity_runs_total{" not in _page(app)


def test_two_monitors_in_one_process_share_nothing() -> None:
    one = App(_config("http://127.0.0.1:9", name="one", model="m"), SystemClock())
    two = App(_config("http://127.0.0.1:9", name="two", model="m"), SystemClock())
    one.measurements.record(record(target="one"))
    one.measurements.result(result(target="one"))
    page = _page(two)
    assert '"one"' not in page
    assert two.results() == []
    assert [status.name for status in two.statuses()] == ["two"]
    assert "kneewatch" not in generate_latest(REGISTRY).decode()


def test_a_knee_is_shown_again_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "kneewatch.db"
    first = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    first.measurements.result(result())
    first.measurements.store.close()
    again = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    page = _page(again)
    assert re.search(r'kneewatch_capacity_requests_per_second{[^}]*target="a"[^}]*} 10.0', page)
    measured = re.search(r"kneewatch_capacity_last_success_timestamp_seconds{[^}]*} (\S+)", page)
    assert measured is not None
    assert float(measured[1]) == WALL_S + 31.5, "its age is that of the run, not of the restart"
    assert again.statuses()[0].capacity == result()
    assert 'kneewatch_capacity_runs_total{target="a",outcome="done"} 0.0' in page


def test_after_a_restart_a_run_that_was_not_verified_is_the_last_one(tmp_path: Path) -> None:
    """It is compared with those that were; the page shows it as well."""
    store = tmp_path / "kneewatch.db"
    first = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    for day in range(10):
        first.measurements.result(_night(day, 40.0))
    forecast = _night(10, 20.0)
    first.measurements.result(replace(forecast, capacity=replace(forecast.capacity, mode="forecast")))
    first.measurements.store.close()
    again = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    for app in (first, again):
        assert _said(app, "capacity_requests_per_second") == [20.0]
        assert _said(app, "knee_shift_ratio") == [pytest.approx(-0.5)]
    shown = again.statuses()[0].capacity
    assert shown is not None
    assert shown.capacity.mode == "forecast"
    known = again.monitors["a"]._runs._known_now()
    assert known is not None
    assert known.requests_per_second == pytest.approx(20.6), "live load is judged by the most that it may be"
    again.measurements.store.close()


def test_a_run_is_no_users_load_for_any_target_of_its_server() -> None:
    """Two workloads on one server: the second run must not take the first for live traffic."""
    raw = [{"name": name, "base_url": f"http://{host}:9"} for name, host in (("a", "127.0.0.1"), ("b", "localhost"))]
    raw.append({"name": "c", "base_url": "http://127.0.0.1:10"})
    app = App(config_from({"targets": raw}, "test"), SystemClock())
    for watch in app.monitors.values():
        for at_s in (0, 60):
            watch._observer.state.add(replace(snapshot(generation_tokens=9.0 * at_s), at_ns=at_s * 10**9))
    app.monitors["a"]._runs._hooks.on_load_end()  # what a run calls when it has ended
    assert [watch._observer.state.users() is None for watch in app.monitors.values()] == [True, True, False]


def _night(day: int, rps: float, **other: Any) -> CapacityResult:
    found = Capacity(mode="verified", requests_per_second=rps, lower=rps * 0.97, upper=rps * 1.03)
    return replace(result(result_id=f"{day}/{rps}", started_s=WALL_S + day * 86400, capacity=found), **other)


def _said(app: App, series: str) -> list[float]:
    """Return the values of a series on the metrics page."""
    lines = _page(app).splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kneewatch_{series}{{")]


def test_a_knee_is_compared_with_its_baseline_also_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "kneewatch.db"
    app = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    for day in range(9):
        app.measurements.result(_night(day, 40.0))
        assert _said(app, "knee_shifted") == []
        assert not app.measurements.needs_confirmation(_night(day, 40.0))
    low = _night(9, 30.0)
    app.measurements.result(low)
    assert app.measurements.needs_confirmation(low)
    assert _said(app, "knee_shift_ratio") == [pytest.approx(-0.25)]
    assert _said(app, "knee_shifted") == [0.0] * 4
    again = _night(9, 31.0, confirms=low.id)
    app.measurements.result(again)
    assert app.measurements.needs_confirmation(again)
    later = _night(9, 30.5)
    app.measurements.result(later)
    assert not app.measurements.needs_confirmation(later)
    app.measurements.store.close()
    restarted = App(_config("http://127.0.0.1:9", store=store, capacity=VERIFY), SystemClock())
    for one in (app, restarted):
        assert sorted(_said(one, "knee_shifted")) == [0.0, 0.0, 1.0, 1.0], "the page, and the ticket that it silences"
        assert _said(one, "knee_baseline_requests_per_second") == [pytest.approx(40.0)]
    restarted.measurements.store.close()


@pytest.mark.fault(
    "TR45",
    "A restart or a reload between the runs that confirm a drop",
    area="Truth",
    users_see="the page, an hour and a half after the first of them",
    stays="the next run is made when it was due, or a minute later, for three hours after the low one",
)
@pytest.mark.parametrize(
    ("runs", "ago_s", "due_in_s"),
    [(1, 0.0, 60.0), (1, 9000.0, 60.0), (2, 600.0, 3000.0), (2, 9000.0, 60.0), (2, 12_000.0, None), (3, 600.0, None)],
    ids=["at once", "long down", "when due", "overdue", "too long", "confirmed"],
)
def test_a_confirmation_goes_on_after_a_restart(
    tmp_path: Path, runs: int, ago_s: float, due_in_s: float | None
) -> None:
    clock = SystemClock()
    store, now_s = tmp_path / "kneewatch.db", clock.wall_s()
    config = _config("http://127.0.0.1:9", store=store, capacity={**VERIFY, "schedule": {"cron": "0 0 1 1 *"}})
    app = App(config, clock)
    lasted_s = result().cost.seconds
    nights = [_night(0, 40.0 if i < 9 else 30.0, id=f"{i}") for i in range(9 + runs)]
    nights[10:11] = [replace(each, confirms="9") for each in nights[10:11]]
    for i, night in enumerate(reversed(nights)):
        ended_s = now_s - ago_s - 86400.0 * max(i + 1 - runs, 0) - i
        app.measurements.store.add(replace(night, started=datetime.fromtimestamp(ended_s - lasted_s, UTC)))
    app.measurements.store.close()
    again = App(config, clock)
    due = again._schedule._jobs.get_job(repr(TaskId("capacity", "a"))).next_run_time
    within_s = (due - again._schedule._time.now()).total_seconds()
    assert (within_s if within_s < 7200 else None) == (pytest.approx(due_in_s, abs=5) if due_in_s else None)
    again.measurements.store.close()


def test_a_run_without_a_knee_changes_no_comparison() -> None:
    app = App(_config("http://127.0.0.1:9", capacity=VERIFY), SystemClock())
    for day in range(10):
        app.measurements.result(_night(day, 40.0))
    before = _said(app, "knee_shift_ratio")
    app.measurements.result(result(result_id="none", started_s=WALL_S + 1e6, capacity=no_knee()))
    assert _said(app, "knee_shift_ratio") == before != []


@pytest.mark.fault(
    "TR46",
    "A store in memory, or of another shard, and a Prometheus that does not answer at first",
    area="Truth",
    users_see="a confirmed drop again, within ten minutes after Prometheus answers",
    stays="Prometheus is asked until it has answered once; runs since then count as well",
)
def test_prometheus_is_asked_until_it_has_answered() -> None:
    lasted_s = result().cost.seconds
    nights = [_night(day, 40.0 if day < 9 else 30.0) for day in range(12)]
    found = [capacity_sample(night) for night in nights]

    def series(name: str, values: Callable[[CapacitySample], float | None]) -> dict[str, object]:
        said = [[one.at_s + 60, str(values(one))] for one in found if one is not None]
        metric = {"__name__": f"kneewatch_{name}", "target": "a", "model": "m", "mode": "verified"}
        return {"metric": metric, "values": said}

    matrix = [
        series("capacity_requests_per_second", lambda one: one.requests_per_second),
        series("capacity_requests_per_second_lower", lambda one: one.lower),
        series("knee_upper_requests_per_second", lambda one: one.upper),
        series("capacity_fingerprint", lambda one: as_number(one.fingerprint)),
        series("capacity_last_success_timestamp_seconds", lambda one: one.at_s),
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": matrix}}
    with prometheus({"status": "error"}) as (url, _):
        app = App(_config("http://127.0.0.1:9", capacity=VERIFY, prometheus=url), SystemClock())
        asyncio.run(app._tasks.recall("a", "short", app.config.prometheus))
    app.measurements.result(nights[-1])
    assert _said(app, "knee_shifted") == []
    with prometheus(answer) as (url, queries):
        there = PrometheusConfig(url=url)
        for _ in range(2):
            asyncio.run(app._tasks.recall("a", "short", there))
    assert len(queries) == 15
    assert sorted(_said(app, "knee_shifted")) == [0.0, 0.0, 1.0, 1.0]
    assert len(app.measurements._capacity_samples["a"]) == 12, "its own run once"
    assert app.measurements._capacity_samples["a"][-1].at_s == pytest.approx(nights[-1].started.timestamp() + lasted_s)


def test_with_an_empty_store_the_history_is_what_prometheus_remembers() -> None:
    nights = [_night(day, 40.0) for day in range(9)]
    fingerprint = as_number(capacity_sample(nights[0]).fingerprint)  # type: ignore[union-attr]

    def series(name: str, values: Callable[[CapacityResult], float | None]) -> dict[str, object]:
        said = [[night.started.timestamp(), str(values(night))] for night in nights]
        return {"metric": {"__name__": f"kneewatch_{name}", "target": "a", "mode": "verified"}, "values": said}

    answer = [
        series("capacity_requests_per_second", lambda night: night.capacity.requests_per_second),
        series("capacity_fingerprint", lambda night: fingerprint),  # noqa: ARG005
        series("capacity_last_success_timestamp_seconds", lambda night: night.started.timestamp()),
    ]
    with prometheus({"status": "success", "data": {"resultType": "matrix", "result": answer}}) as (url, queries):
        app = App(_config("http://127.0.0.1:9", capacity=VERIFY, prometheus=url), SystemClock())
        asyncio.run(app._tasks.recall("a", "default", app.config.prometheus))
        app.measurements.result(_night(9, 30.0))
        asyncio.run(app._tasks.recall("a", "default", app.config.prometheus))
    assert _said(app, "knee_shift_ratio") == [pytest.approx(-0.25)]
    assert len(queries) == 15, "what is known is not asked for again: a year in four weeks each, and a week by minutes"


@pytest.mark.fault(
    "PR7",
    "Prometheus is down at the start",
    area="Prometheus",
    users_see="history begins now",
    stays="the monitor starts",
)
def test_without_store_and_with_a_prometheus_that_is_down_the_history_begins_now() -> None:
    app = App(
        _config("http://127.0.0.1:9", capacity=VERIFY, prometheus=f"http://127.0.0.1:{free_port()}"), SystemClock()
    )
    asyncio.run(app._tasks.recall("a", "default", app.config.prometheus))
    app.measurements.result(_night(0, 40.0))
    assert _said(app, "capacity_requests_per_second") == [40.0]


@pytest.mark.fault(
    "DI8",
    "The store is gone when a run ends",
    area="Disk",
    users_see="nothing",
    stays="the run is counted in its series",
)
def test_a_history_that_cannot_be_written_costs_no_series(tmp_path: Path) -> None:
    """A full disk takes the history; the capacity that the run has paid for is still shown."""
    app = App(_config("http://127.0.0.1:9", store=tmp_path / "kneewatch.db", capacity=VERIFY), SystemClock())
    app.measurements.store.close()
    app.measurements.result(result())
    page = _page(app)
    assert 'kneewatch_capacity_runs_total{target="a",outcome="done"} 1.0' in page


def test_an_address_that_is_taken_is_a_configuration_error() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            app = App(_config("http://127.0.0.1:9", listen=listen), SystemClock())
            with pytest.raises(ConfigError, match="listen"):
                await app.run(asyncio.Event())

    asyncio.run(run())


@pytest.mark.slow
def test_ending_during_a_run_reports_it_and_leaves_nothing_in_flight(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            app = App(_config(server.url, capacity=VERIFY, store=tmp_path / "kneewatch.db"), SystemClock())

            async def work(_: str) -> None:
                await _loaded(app, server)

            await _while_running(app, work)
            await asyncio.sleep(0.1)
            assert server.driver.engine.running == 0

    asyncio.run(run())
    store = Store(tmp_path / "kneewatch.db")
    (kept,) = store.latest()
    store.close()
    assert (kept.stopped.by, kept.stopped.reason) == ("interrupt", "shutting down")
    assert kept.cost.requests > 0


async def _loaded(app: App, server: MockServer) -> None:
    """Bring the capacity run forward and wait until it loads the server."""
    await _until(lambda: app.statuses()[0].up is True)
    app.measure_capacity_in("a", 0.0)
    await _until(lambda: server.driver.engine.running >= 3)


@pytest.mark.fault(
    "CO26",
    "Capacity runs of several targets due at once",
    area="Configuration",
    users_see="as many at once as `capacity_runs_at_once` says, by default one; a server has one at a time",
    stays="none starts once Kneewatch ends",
)
def test_capacity_runs_of_two_targets_never_overlap_and_none_starts_once_it_ends() -> None:
    """Two at once would each measure the other's load, and share one client."""
    running, peak, ran = 0, 0, 0

    whole = _config("http://127.0.0.1:9")

    class Watch:
        config = whole.targets[0]
        capacity_workload = "default"
        last_result = None

        @property
        def server(self) -> str:
            return str(id(self))  # each has its own

        async def capacity(self) -> None:
            nonlocal running, peak, ran
            running, ran = running + 1, ran + 1
            peak = max(peak, running)
            await asyncio.sleep(0.02)
            running -= 1

    async def run() -> None:
        app = App(whole, SystemClock())
        app._schedule.start()
        begin, now_s = app._tasks.capacity_run, SystemClock().wall_s()
        await asyncio.gather(*(begin(cast("TargetMonitor", Watch()), None, now_s) for _ in range(3)))
        assert (peak, ran) == (1, 3)
        waiting = [asyncio.create_task(begin(cast("TargetMonitor", Watch()), None, now_s)) for _ in range(2)]
        await asyncio.sleep(0.005)
        await app._schedule.stop()
        await asyncio.gather(*waiting)
        assert ran == 4

    asyncio.run(run())


@pytest.mark.fault("TI8")
def test_a_capacity_run_that_the_scheduler_leaves_out_is_counted_and_shown_as_late() -> None:
    async def run() -> None:
        app = App(_config("http://127.0.0.1:9", capacity=VERIFY), SystemClock())
        app._task_failed(TaskId("capacity", "a"), "late", None)
        page = app.page.render()[0].decode()
        assert 'kneewatch_capacity_refusals_total{target="a",reason="late"} 1.0' in page
        (status,) = app.statuses()
        assert status.capacity_state == "late: this machine was suspended, or its clock was set, for more than 30m"

    asyncio.run(run())


# What comes, changes and goes while it runs.


def _target(url: str, name: str, **more: Any) -> dict[str, Any]:
    canary = {"every": "1s", "workload": "short", "timeout": "2s"}
    return {"name": name, "base_url": url, "scrape": "1s", "canary": canary, **more}


def _file(path: Path, *targets: dict[str, Any], **top: Any) -> Path:
    raw = {"listen": "127.0.0.1:0", "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}}, **top}
    path.write_text(yaml.safe_dump({**raw, "targets": list(targets)}))
    return path


def _names(app: App) -> list[str]:
    return [status.name for status in app.statuses()]


@pytest.mark.slow
@pytest.mark.fault(
    "CO10",
    "A reload that changes one target",
    area="Configuration",
    users_see="its series begin again",
    stays="unchanged targets keep their counters",
)
def test_a_reload_keeps_what_is_unchanged_and_makes_the_rest_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            kept, goes = _target(server.url, "kept"), _target(server.url, "goes")
            changes = _target(server.url, "changes")
            file = _file(tmp_path / "kneewatch.yml", goes, kept, changes)
            app = App(load_config(file), SystemClock(), file)

            async def work(url: str) -> None:
                await _until(lambda: all(status.recent for status in app.statuses()))
                before = dict(app.monitors)
                count = len(app.monitors["kept"].status().recent)
                _file(file, kept, _target(server.url, "changes", scrape="1500ms"), _target(server.url, "new"))
                assert await app.reload() is None
                assert _names(app) == ["kept", "changes", "new"]
                assert app.monitors["kept"] is before["kept"]
                assert app.monitors["changes"] is not before["changes"]
                await _until(lambda: len(app.monitors["kept"].status().recent) > count)
                await _until(lambda: all(status.recent and status.server for status in app.statuses()))
                page = (await _get(f"{url}/metrics")).text
                assert 'target="goes"' not in page
                assert 'kneewatch_target_up{target="new"} 1.0' in page
                tasks = {str(task) for task in app._schedule.tasks}
                assert tasks == {f"{task}:{name}" for task in ("canary", "scrape") for name in _names(app)}

            await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "CO6",
    "A broken file at a reload",
    area="Configuration",
    users_see="refused: KneewatchConfigRefused, one log line",
    stays="the former configuration",
)
def test_a_configuration_that_is_refused_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        gone = _target("http://127.0.0.1:9", "a")
        file = _file(tmp_path / "kneewatch.yml", gone)
        app = App(load_config(file), SystemClock(), file)

        async def work(url: str) -> None:
            watch = app.monitors["a"]
            file.write_text("nonsense: 1\n")
            refused = await app.reload()
            assert refused is not None
            assert "nonsense: unknown key" in refused
            assert "kneewatch_config_last_reload_successful 0.0" in (await _get(f"{url}/metrics")).text
            _file(file, gone, listen="127.0.0.1:1")
            assert await app.reload() == (
                f"{file}: listen: cannot change while Kneewatch runs; restart it, or change it back"
            )
            file.unlink()
            assert await app.reload() is not None
            assert app.monitors == {"a": watch}
            _file(file, gone)
            assert await app.reload() is None
            assert app.monitors == {"a": watch}
            assert "kneewatch_config_last_reload_successful 1.0" in (await _get(f"{url}/metrics")).text

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.fault(
    "SI4",
    "SIGHUP to the monitor",
    area="Signals",
    users_see="the configuration is read again",
    stays="targets that did not change go on",
)
def test_sighup_reloads_the_configuration(tmp_path: Path) -> None:
    async def run() -> None:
        file = _file(tmp_path / "kneewatch.yml", _target("http://127.0.0.1:9", "a"))
        app = App(load_config(file), SystemClock(), file)

        async def work(_: str) -> None:
            _file(file, _target("http://127.0.0.1:9", "b"))
            os.kill(os.getpid(), signal.SIGHUP)
            await _until(lambda: _names(app) == ["b"])

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "CO11",
    "A target is removed while it is loaded",
    area="Configuration",
    users_see="the run is interrupted",
    stays="its load goes with it",
)
def test_a_target_that_goes_takes_its_load_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            stays = _target("http://127.0.0.1:9", "stays")
            loads = _target(server.url, "loads", capacity=VERIFY)
            file = _file(tmp_path / "kneewatch.yml", stays, loads)
            app = App(load_config(file), SystemClock(), file)

            async def work(_: str) -> None:
                watch = app.monitors["loads"]
                await _until(lambda: bool(watch.status().recent))
                app.measure_capacity_in("loads", 0)
                await _until(lambda: watch.status().capacity_state == "running" and server.driver.engine.running > 1)
                _file(file, stays)
                async with asyncio.timeout(5):
                    assert await app.reload() is None
                assert server.driver.engine.running == 0
                (found,) = app.results("loads")
                assert found.stopped.reason == "the target is not watched any more"

            await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
def test_servers_that_are_found_are_watched_for_as_long_as_they_are_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as one, mock_server() as two:
            listed = tmp_path / "targets.json"

            def found(*servers: MockServer, revision: str = "1") -> None:
                addresses = [server.url.removeprefix("http://") for server in servers]
                listed.write_text(json.dumps([{"targets": addresses, "labels": {"team": "search", "rev": revision}}]))

            found(one)
            template = _target("", "pods", discover={"file": {"files": [str(listed)], "every": "1s"}})
            del template["base_url"]
            file = _file(tmp_path / "kneewatch.yml", template)
            app = App(load_config(file), SystemClock(), file)
            assert _names(app) == []

            async def work(url: str) -> None:
                first, second = (f"pods/{server.url.removeprefix('http://')}" for server in (one, two))
                await _until(lambda: _names(app) == [first] and bool(app.statuses()[0].recent))
                watch = app.monitors[first]
                page = (await _get(f"{url}/metrics")).text
                assert 'kneewatch_discovered_targets{discovery="pods"} 1.0' in page
                assert f'kneewatch_target_info{{target="{first}",discovery="pods",label_rev="1"' in page
                assert f'kneewatch_target_up{{target="{first}"}} 1.0' in page
                found(one, two, revision="2")
                await _until(lambda: sorted(_names(app)) == sorted([first, second]))
                assert app.monitors[first] is watch
                await _until(lambda: all(status.recent for status in app.statuses()))
                listed.write_text("no JSON")
                await _until(lambda: 'discovery_failing{discovery="pods"} 1.0' in _page(app))
                assert len(app.monitors) == 2, "what it said before stands"
                found(two)
                await _until(lambda: _names(app) == [second])
                page = (await _get(f"{url}/metrics")).text
                assert first not in page
                assert 'discovery_failing{discovery="pods"} 0.0' in page
                _file(file, _target(one.url, "alone"))
                assert await app.reload() is None
                assert _names(app) == ["alone"]
                assert '"pods' not in (await _get(f"{url}/metrics")).text

            await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
def test_on_demand_asks_a_configured_target_alone() -> None:
    async def run() -> None:
        async with mock_server() as server:
            app = App(_config(server.url), SystemClock())

            async def work(_: str) -> None:
                asked = await app.on_demand("a", None)
                assert asked.outcome is Outcome.OK
                assert 'traffic="ondemand",outcome="ok"} 1.0' in _page(app)
                for unknown in (("b", None), ("a", "b")):
                    with pytest.raises(KeyError):
                        await app.on_demand(*unknown)

            await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "CO9",
    "One target that cannot be watched",
    area="Configuration",
    users_see="reported, tried again",
    stays="the others are watched",
)
def test_a_target_that_cannot_be_watched_keeps_no_other_from_it_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        gone = [_target(f"http://127.0.0.1:{port}", name) for port, name in ((9, "a"), (10, "b"), (11, "c"))]
        file = _file(tmp_path / "kneewatch.yml", gone[0])
        app = App(load_config(file), SystemClock(), file)

        async def work(_: str) -> None:
            add = app.measurements.add

            def breaks(target: TargetConfig, *args: Any) -> Any:
                if target.name == "b":
                    raise sqlite3.OperationalError("disk I/O error")
                return add(target, *args)

            monkeypatch.setattr(app.measurements, "add", breaks)
            _file(file, *gone)
            await app.reload()
            assert _names(app) == ["a", "c"]
            assert 'target="b"' not in _page(app)
            monkeypatch.setattr(app.measurements, "add", add)
            assert await app.reload() is None
            assert _names(app) == ["a", "b", "c"]

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "CO8",
    "An error in the middle of a reload",
    area="Configuration",
    users_see="reported",
    stays="later reloads work",
)
def test_an_error_in_a_reload_does_not_end_later_reloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        file = _file(tmp_path / "kneewatch.yml", _target("http://127.0.0.1:9", "a"))
        app = App(load_config(file), SystemClock(), file)

        async def work(_: str) -> None:
            monkeypatch.setattr(app, "_announce", lambda: 1 / 0)
            os.kill(os.getpid(), signal.SIGHUP)
            await _until(lambda: "kneewatch_config_last_reload_successful 0.0" in _page(app))
            monkeypatch.undo()
            _file(file, _target("http://127.0.0.1:9", "b"))
            os.kill(os.getpid(), signal.SIGHUP)
            await _until(lambda: _names(app) == ["b"])

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
def test_a_discovery_that_was_fixed_or_replaced_is_not_reported_as_failing(tmp_path: Path) -> None:
    async def run() -> None:
        good, missing = tmp_path / "good.json", tmp_path / "missing.json"
        good.write_text(json.dumps([{"targets": ["127.0.0.1:9"]}]))
        template = _target("", "pods", passive=True)
        del template["base_url"]

        def listed(path: Path) -> dict[str, Any]:
            return {**template, "discover": {"file": {"files": [str(path)], "every": "1s"}}}

        file = _file(tmp_path / "kneewatch.yml", listed(missing))
        app = App(load_config(file), SystemClock(), file)

        async def work(_: str) -> None:
            await _until(lambda: 'discovery_failing{discovery="pods"} 1.0' in _page(app))
            _file(file, listed(good))
            assert await app.reload() is None
            await _until(lambda: 'discovery_failing{discovery="pods"} 0.0' in _page(app))
            good.write_text(json.dumps([{"targets": ["127.0.0.1:9", "a..b:80"]}]))
            await _until(lambda: 'discovery_failing{discovery="pods"} 1.0' in _page(app))
            good.write_text(json.dumps([{"targets": ["127.0.0.1:10"]}]))
            await _until(lambda: 'discovery_failing{discovery="pods"} 0.0' in _page(app))
            assert _names(app) == ["pods/127.0.0.1:10"]

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [OSError(36, "File name too long"), RecursionError(), ZeroDivisionError("odd\nwords")]
)
@pytest.mark.fault(
    "CO7",
    "An exception while a configuration loads",
    area="Configuration",
    users_see="refused",
    stays="the former one; the next change is taken",
)
def test_whatever_loading_a_configuration_raises_it_is_refused_and_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    async def run() -> None:
        file = _file(tmp_path / "kneewatch.yml", _target("http://127.0.0.1:9", "a"))
        app = App(load_config(file), SystemClock(), file)

        def load(_: Path) -> Config:
            raise broken

        async def work(_: str) -> None:
            monkeypatch.setattr("probe.monitor.app.load_config", load)
            refused = await app.reload()
            assert refused is not None
            assert refused.startswith(f"{file}: it could not be read, the previous one stays in use (")
            assert "\n" not in refused
            assert "kneewatch_config_last_reload_successful 0.0" in _page(app)
            monkeypatch.undo()
            _file(file, _target("http://127.0.0.1:9", "b"))
            assert await app.reload() is None
            assert _names(app) == ["b"]
            assert "kneewatch_config_last_reload_successful 1.0" in _page(app)

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.fault(
    "CO14",
    "A configuration with a path that cannot even be looked at",
    area="Configuration",
    users_see="refused",
    stays="the file is watched on: the next change is taken",
)
def test_the_file_is_still_watched_after_a_folder_that_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("probe.config.config_file.changes.__defaults__", (0.05,))
        file = _file(tmp_path / "kneewatch.yml", _target("http://127.0.0.1:9", "a"))
        app = App(load_config(file), SystemClock(), file)

        async def work(_: str) -> None:
            _file(file, _target("http://127.0.0.1:9", "a"), lock_dir=f"/{'x' * 300}/locks")
            await _until(lambda: "kneewatch_config_last_reload_successful 0.0" in _page(app))
            _file(file, _target("http://127.0.0.1:9", "b"))
            await _until(lambda: _names(app) == ["b"])

        await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "CO23",
    "Background work that breaks",
    area="Configuration",
    users_see="in the log",
    stays="begun again",
)
def test_background_work_that_breaks_is_said_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        monkeypatch.setattr("probe.monitor.app._AGAIN_S", 0.05)
        app, begun = App(_config("http://127.0.0.1:9"), SystemClock()), 0

        async def breaks(*_: object) -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                raise ZeroDivisionError("odd words")
            if begun > 2:
                await asyncio.Event().wait()

        monkeypatch.setattr("probe.monitor.app.follow_others", breaks)

        async def work(_: str) -> None:
            await _until(lambda: begun == 3)

        await _while_running(app, work)

    asyncio.run(run())
    said = capsys.readouterr()
    assert "odd words" in said.out + said.err
    assert "background work broke" in said.out + said.err
    assert "background work has ended" in said.out + said.err
    assert "watch_others" in said.out + said.err


@pytest.mark.slow
def test_servers_of_the_former_discovery_get_no_request_while_the_new_one_fails(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            listed = tmp_path / "listed.json"
            listed.write_text(json.dumps([{"targets": [server.url.removeprefix("http://")]}]))
            template = _target("", "pods", discover={"file": {"files": [str(listed)], "every": "1s"}})
            del template["base_url"]
            file = _file(tmp_path / "kneewatch.yml", template)
            app = App(load_config(file), SystemClock(), file)

            async def work(_: str) -> None:
                await _until(lambda: len(server.asked) > 0)
                assert 'kneewatch_discovered_targets{discovery="pods"} 1.0' in _page(app)
                registry = {"http": {"url": f"http://127.0.0.1:{free_port()}/sd"}}
                _file(file, {**template, "discover": registry})
                assert await app.reload() is None
                assert _names(app) == []
                asked = len(server.asked)
                assert 'kneewatch_discovered_targets{discovery="pods"} 0.0' in _page(app)
                await _until(lambda: "pods" in app.discovery_problems())
                await asyncio.sleep(1.5)
                assert len(server.asked) == asked
                _file(file, template)
                assert await app.reload() is None
                await _until(lambda: len(server.asked) > asked)

            await _while_running(app, work)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.fault(
    "DI2",
    "No result can be stored",
    area="Disk",
    users_see="the day's budget is kept in memory",
    stays="no second run on the same budget",
)
def test_the_budget_of_the_day_is_kept_although_no_result_can_be_stored(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            path, budget = tmp_path / "kneewatch.db", {"tokens_per_run": 100, "tokens_per_day": 100}
            app = App(_config(server.url, store=path, capacity={**VERIFY, "budget": budget}), SystemClock())
            with closing(sqlite3.connect(path)) as db, db:
                full = "SELECT RAISE(ABORT, 'database or disk is full')"
                db.execute(f"CREATE TRIGGER full BEFORE INSERT ON results BEGIN {full}; END")

            async def work(_: str) -> None:
                await _until(lambda: bool(app.statuses()[0].recent) and app.statuses()[0].server is not None)
                app.measure_capacity_in("a", 0.0)
                await _until(lambda: app.measurements.tokens_since("a", 0.0) > 0)
                spent = app.measurements.tokens_since("a", 0.0)
                await _until(lambda: app.statuses()[0].capacity_state is None)
                app.measure_capacity_in("a", 0.0)
                await _until(lambda: "budget_spent" in (app.statuses()[0].capacity_state or ""))
                assert app.measurements.tokens_since("a", 0.0) == spent
                assert [each.cost.tokens for each in app.results()] == [spent], "the pages show it all the same"

            await _while_running(app, work)

    asyncio.run(run())

"""Several kinds of canaries of one target, against the mock server: each by itself, and what they show together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from foreign_server import MODELS
from mock_servers import mock_server
from prometheus_client.parser import text_string_to_metric_families
from threaded_server import Request, threaded_server

from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.request import Outcome
from probe.core.target_status import TargetStatus
from probe.monitor.desired_targets import DesiredTargets
from probe.monitor.forecast_queue import ForecastQueue
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_tasks import TargetTasks
from probe.runtime.scheduler import Scheduler, TaskId

SHORT = {"workload": "short", "every": "10s", "timeout": "2s"}
KINDS = [SHORT, {**SHORT, "workload": "shorter", "every": "1m", "timeout": "5s"}, {**SHORT, "model": "gone"}]
CONFIG: dict[str, Any] = {
    "workloads": {
        "short": {"prompt_tokens": 8, "output_tokens": 3},
        "shorter": {"prompt_tokens": 4, "output_tokens": 2},
    },
    "targets": [{"name": "a", "base_url": "http://127.0.0.1:9", "canaries": KINDS}],
}


def _against(work: Callable[[TargetMonitor, MetricsSink], Awaitable[None]]) -> None:
    async def run() -> None:
        async with mock_server() as server:
            config = config_from({**CONFIG, "targets": [{**CONFIG["targets"][0], "base_url": server.url}]}, "test")
            sink = MetricsSink(None, SystemClock())
            sink.promise([config.objectives_of(config.targets[0])])
            monitor = TargetMonitor(config, config.servers[0], SystemClock(), sink)
            sink.add(config.servers[0], monitor.canary_models, monitor.objectives, monitor.valid_s)
            try:
                await work(monitor, sink)
            finally:
                await monitor.close()
                sink.store.close()

    asyncio.run(run())


def _values(sink: MetricsSink, name: str, **labels: str) -> list[float]:
    """Return the samples of that name that have at least these labels."""
    return [
        sample.value
        for family in text_string_to_metric_families(sink.page.render()[0].decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def _up(sink: MetricsSink) -> list[float]:
    return _values(sink, "kneewatch_target_up")


def _sent(sink: MetricsSink, workload: str, model: str, outcome: str) -> list[float]:
    return _values(sink, "kneewatch_requests_total", workload=workload, model=model, outcome=outcome)


def test_each_kind_has_its_own_series_and_the_worst_newest_one_decides_whether_the_target_is_up() -> None:
    async def work(monitor: TargetMonitor, sink: MetricsSink) -> None:
        assert monitor.status().up is None
        await monitor.send_canary(0)
        await monitor.send_canary(1)
        assert (monitor.status().up, _up(sink)) == (True, [1.0])
        await monitor.send_canary(2)
        assert (monitor.status().up, _up(sink)) == (False, [0.0])
        await monitor.send_canary(0)
        assert (monitor.status().up, _up(sink)) == (False, [0.0]), "the newest of its kind still failed"

        assert _sent(sink, "short", "tiny", "ok") == [2]
        assert _sent(sink, "shorter", "tiny", "ok") == [1]
        assert _sent(sink, "short", "gone", "not_found") == [1]
        assert _values(sink, "kneewatch_requests_total", model="unknown") == []

    _against(work)


def _shown(status: TargetStatus) -> list[tuple[str, str, bool | None, int]]:
    return [(kind.workload, kind.model, kind.up, len(kind.recent)) for kind in status.canaries]


def test_the_status_has_each_kind_and_all_canaries_newest_first() -> None:
    async def work(monitor: TargetMonitor, _: MetricsSink) -> None:
        for kind in (2, 0, 1, 0):
            await monitor.send_canary(kind)
        status = monitor.status()
        assert _shown(status) == [("short", "tiny", True, 2), ("shorter", "tiny", True, 1), ("short", "gone", False, 1)]
        assert [record.spec.workload for record in status.recent] == ["short", "shorter", "short", "short"]
        assert [record.outcome for record in status.failures] == [Outcome.NOT_FOUND]
        assert [group.outcome for group in status.failure_groups] == [Outcome.NOT_FOUND]
        assert status.since == status.canaries[2].since, "the target is down since its failing kind is"
        assert status.model == "tiny"

    _against(work)


def test_a_secret_of_one_kind_is_hidden_in_answers_to_another() -> None:
    """A server has seen the headers of all kinds, and may repeat any of them."""
    seen: list[str] = []

    def reply(request: Request, _: bytes) -> None:
        if request.path.endswith("/models"):
            return request.answer(200, MODELS, "application/json")
        seen.extend(filter(None, [request.headers.get("x-token")]))
        return request.answer(400, f'{{"message": "was {seen[0]}"}}'.encode(), "application/json")

    async def words(url: str) -> list[str | None]:
        kinds = [{**SHORT, "headers": {"x-token": {"secret": "sesame-open"}}}, {**SHORT, "workload": "shorter"}]
        config = config_from({**CONFIG, "targets": [{"name": "a", "base_url": url, "canaries": kinds}]}, "test")
        sink = MetricsSink(None, SystemClock())
        sink.promise([config.objectives_of(config.targets[0])])
        monitor = TargetMonitor(config, config.servers[0], SystemClock(), sink)
        sink.add(config.servers[0], monitor.canary_models, monitor.objectives, monitor.valid_s)
        await monitor.send_canary(0)
        await monitor.send_canary(1)
        await monitor.close()
        sink.store.close()
        return [record.detail for record in monitor.status().failures]

    with threaded_server(reply) as url:
        details = asyncio.run(words(url))
    assert seen[0] == "sesame-open"
    assert len(details) == 2
    assert all("was (hidden)" in (detail or "") for detail in details), details


def test_a_sleeping_server_gets_no_canary_of_any_kind() -> None:
    async def work(monitor: TargetMonitor, sink: MetricsSink) -> None:
        await monitor.send_canary(0)
        monitor._observer.is_asleep = _true  # type: ignore[method-assign]
        for kind in range(3):
            await monitor.send_canary(kind)
        assert [len(kind.recent) for kind in monitor.status().canaries] == [1, 0, 0]
        assert _sent(sink, "short", "tiny", "ok") == [1]

    async def _true() -> bool:
        return True

    _against(work)


def test_each_kind_is_a_task_at_its_own_interval_and_they_do_not_begin_together() -> None:
    config = config_from(CONFIG, "test")
    clock, sink = SystemClock(), MetricsSink(None, SystemClock())
    monitor = TargetMonitor(config, config.servers[0], clock, sink)
    added: dict[TaskId, tuple[float, float]] = {}

    class Recorded(Scheduler):
        def every(self, task: TaskId, seconds: float, work: Any, *, first_s: float = 0.0, at_once: int = 1) -> None:
            added[task] = seconds, first_s
            super().every(task, seconds, work, first_s=first_s, at_once=at_once)

    schedule = Recorded(clock, lambda _: None, lambda *_: None)
    forecasts = ForecastQueue(clock, lambda: 1.0, lambda _: None, lambda *_: None)
    TargetTasks(schedule, sink, clock, forecasts).plan(monitor, config, 0.5)
    kinds = {task.number: planned for task, planned in added.items() if task.task == "canary"}
    assert {number: every_s for number, (every_s, _) in kinds.items()} == {0: 10.0, 1: 60.0, 2: 10.0}
    assert [kinds[number][1] for number in range(3)] == pytest.approx([5.0, 50.0, 10 / 6])
    assert _values(sink, "kneewatch_task_interval_seconds", task="canary") == [10.0]
    assert _values(sink, "kneewatch_canary_timeout_seconds") == [5.0]
    sink.store.close()


def test_the_log_of_changes_names_the_key_of_a_kind() -> None:
    other = [*KINDS[:1], {**KINDS[1], "every": "2m"}, *KINDS[2:]]
    changed = {**CONFIG, "targets": [{**CONFIG["targets"][0], "canaries": other}]}
    before, after = (DesiredTargets(config_from(raw, "test"), None).by_name()["a"].spec for raw in (CONFIG, changed))
    assert after.changed_fields(before) == ["target.canaries[1].every"]
    workloads = {**CONFIG, "workloads": {**CONFIG["workloads"], "shorter": {"prompt_tokens": 5}}}
    assert DesiredTargets(config_from(workloads, "test"), None).by_name()["a"].spec.changed_fields(before) == [
        "canary_workloads[1].prompt_tokens",
        "canary_workloads[1].output_tokens",
    ]

"""Firing alerts for the pages: asked again and again, and unknown where Prometheus does not answer."""

import asyncio

import pytest
from fake_prometheus import prometheus

from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.target_status import FiringAlerts
from probe.monitor.app import AlertWatch
from probe.runtime.kept_program import free_port

ALERT = {"metric": {"alertname": "KneewatchTTFTBurn", "severity": "page", "target": "a"}, "value": [1.0, "1795402140"]}


def _config(url: str | None) -> Config:
    section = {} if url is None else {"prometheus": {"url": url}}
    return config_from({"targets": [{"name": "a", "base_url": "http://x:1"}], **section}, "test")


def _first_answer(url: str | None) -> FiringAlerts | None:
    """Return what is known after one question."""
    watch = AlertWatch(lambda: _config(url), SystemClock())

    async def main() -> None:
        task = asyncio.create_task(watch.follow())
        async with asyncio.timeout(10):
            while url is not None and watch.last is None:  # noqa: ASYNC110 - it is the outside that is watched
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return watch.last


def test_firing_alerts_come_with_their_targets() -> None:
    answer = {"status": "success", "data": {"resultType": "vector", "result": [ALERT]}}
    with prometheus(answer) as (url, _):
        found = _first_answer(url)
    assert found is not None
    assert found.error is None
    assert [(one.name, one.target) for one in found.alerts] == [("KneewatchTTFTBurn", "a")]


@pytest.mark.fault(
    "PR8",
    "Prometheus stops answering while the pages show alerts",
    area="Prometheus",
    users_see="alerts are unknown, not none",
    stays="the pages",
)
def test_without_an_answer_alerts_are_unknown_and_not_none() -> None:
    found = _first_answer(f"http://127.0.0.1:{free_port()}")
    assert found is not None
    assert found.error is not None
    assert "Prometheus does not answer" in found.error


def test_without_a_prometheus_there_is_nothing_to_know() -> None:
    assert _first_answer(None) is None

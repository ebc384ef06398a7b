"""When a monitor forecasts, in virtual time: at first as soon as there is enough to tell it by."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from virtual_time import VirtualClock, virtually

from probe.capacity.model.forecast import forecast
from probe.config.config_file import config_from
from probe.config.targets import TargetConfig
from probe.core.request import Api
from probe.core.result import Capacity, CapacityResult
from probe.core.workload import Workload
from probe.mock_server.profiles import PROFILES
from probe.monitor.app import App
from probe.monitor.startup_flags import StartupFlags
from probe.observe.snapshot_history import PackedSnapshots, unpack
from probe.runtime.scheduler import TaskId
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

MINUTE_S = 60.0
PROMISED = {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
CONFIG = config_from(
    {
        "objectives": {
            "default": {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
        },
        "workloads": {"chat": {"prompt_tokens": 400, "output_tokens": 150}},
        "targets": [
            {
                "name": "a",
                "base_url": "http://127.0.0.1:9",
                "model": "m",
                "canary": {"workload": "chat"},
                "capacity": {"server": {"max_num_seqs": 256}},
            }
        ],
    },
    "test",
)


class _Here:
    """Computes in this process: a helper process would take real time."""

    cpu_s = 0.0

    async def compute(self, _: str, packed: PackedSnapshots, *args: Any) -> Capacity:
        self.cpu_s += 0.8
        return forecast(unpack(packed), *args, requests=300)

    def close(self) -> None:
        pass


async def _as_configured(flags: StartupFlags) -> TargetConfig:
    """Ask neither the server, which is not there, nor this machine's processes, which takes a thread."""
    return flags.target


@pytest.fixture(autouse=True)
def _virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartupFlags, "update", _as_configured)


class _Told(App):
    """Notes when it is told a forecast, in minutes since its start, and which."""

    def __init__(self) -> None:
        super().__init__(CONFIG, VirtualClock())
        self.reported: list[tuple[float, float | None]] = []
        for task in ("canary", "scrape"):  # they would ask a server that is not there
            self._schedule._jobs.remove_job(repr(TaskId(task, "a")))
            del self._schedule._tasks[repr(TaskId(task, "a"))]
        self._forecasts._new_process = _Here
        publish = self.measurements.forecast

        def forecast_told(result: CapacityResult) -> None:
            publish(result)
            self.reported.append((asyncio.get_running_loop().time(), result.capacity.requests_per_second))

        self.measurements.forecast = forecast_told  # type: ignore[method-assign]

    async def watch(self, server: VirtualServer, minutes: float) -> list[tuple[float, float | None]]:
        """Return the forecasts published while it scraped this server every five seconds."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._schedule.start()
        forecasts = asyncio.create_task(self._forecasts.follow())
        while loop.time() - began_s < minutes * MINUTE_S:
            self.monitors["a"]._observer.state.add(server.snapshot())
            await asyncio.sleep(5.0)
            server.advance(loop.time() - began_s)
        forecasts.cancel()
        await self._schedule.stop()
        await asyncio.sleep(0)
        await self.monitors["a"].close()
        return [((at_s - began_s) / MINUTE_S, rps) for at_s, rps in self.reported]


def _told(rate_rps: float, minutes: float) -> list[tuple[float, float | None]]:
    async def run() -> list[tuple[float, float | None]]:
        users = BackgroundTraffic(rate_rps, Workload("chat", Api.COMPLETIONS, 400, 150))
        return await _Told().watch(VirtualServer(PROFILES["8b-a100"], seed=1, users=users), minutes)

    return virtually(run(), within_s=minutes * MINUTE_S + 60)


@pytest.mark.long
def test_the_first_forecast_comes_within_minutes_and_the_next_at_the_interval() -> None:
    reported = _told(6.0, 40)
    figures = [at_min for at_min, rps in reported if rps is not None]
    assert reported[0] == (pytest.approx(0.0, abs=0.1), None), "at its start it has seen nothing"
    assert figures[0] < 10
    assert len(figures) == 2
    assert figures[1] - figures[0] == pytest.approx(30, abs=4)


def test_without_a_forecast_it_tries_again_at_twice_the_data() -> None:
    reported = _told(0.01, 130)
    assert {rps for _, rps in reported} == {None}
    times = [at_min for at_min, _ in reported]
    assert times[:5] == pytest.approx([0, 2, 4, 8, 16], abs=0.5)
    pauses = [after - before for before, after in pairwise(times[4:])]
    assert all(12 < pause < 34 for pause in pauses), "at the latest as often as it is told, and no sooner"

"""Canaries of a slow server: the rate is what was configured, however late the answers are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from mock_servers import MockServer, mock_server
from starlette.types import Receive, Scope
from starlette.types import Send as AsgiSend

from probe.config.canaries import MAX_CANARIES
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.request import Outcome, RequestRecord
from probe.monitor.forecast_queue import ForecastQueue
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor
from probe.monitor.target_tasks import TargetTasks
from probe.runtime.scheduler import Scheduler, TaskId

pytestmark = pytest.mark.slow

# Seven canaries begin before the first is answered: a busy machine may miss some of them.
EVERY_S, ANSWERS_AFTER_S = 0.2, 1.5


@dataclass
class Slow:
    """A server that begins each answer late, and can be released."""

    server: MockServer
    after_s: float
    came: list[float] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        self.came.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.after_s)
        await self.server.app(scope, receive, send)


@asynccontextmanager
async def _server() -> AsyncIterator[MockServer]:
    """Run the mock server, with a metrics page that shows no sleep: it is not read before each of so many canaries."""
    async with mock_server() as server:
        server.says_on_metrics("vllm:num_requests_running 0\n")
        yield server


def _config(url: str, timeout: str) -> Config:
    return config_from(
        {
            # So wide that a busy machine's late event loop excuses no canary.
            "objectives": {"default": {"ttft": {"ratio": 0.5, "within": "60s"}}},
            "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 2}},
            "targets": [
                {
                    "name": "a",
                    "base_url": url,
                    "model": "tiny",
                    "tls": {"verify": False},
                    "canary": {"workload": "short", "every": "1s", "timeout": timeout},
                }
            ],
        },
        "test",
    )


@dataclass
class Watched:
    """A target under the real scheduler, with canaries every `EVERY_S`."""

    monitor: TargetMonitor
    schedule: Scheduler
    sink: MetricsSink
    problems: list[tuple[TaskId, str]]

    @property
    def records(self) -> list[RequestRecord]:
        return list(self.monitor.status().recent)

    async def close(self) -> None:
        await self.schedule.stop()
        await self.monitor.close()
        self.sink.store.close()


def _watch(url: str, *, timeout: str = "10s", every_s: float = EVERY_S) -> Watched:
    config = _config(url, timeout)
    fast = config.targets[0].canary.model_copy(update={"every": every_s})
    target = config.targets[0].model_copy(update={"canary": fast, "scrape": 3600.0})
    problems: list[tuple[TaskId, str]] = []
    sink = MetricsSink(None, SystemClock())
    monitor = TargetMonitor(config, target, SystemClock(), sink)
    sink.add(target, monitor.canary_models, monitor.objectives, monitor.valid_s)
    schedule = Scheduler(SystemClock(), lambda _: None, lambda task, what, _: problems.append((task, what)))
    forecasts = ForecastQueue(SystemClock(), lambda: 1.0, lambda _: None, lambda *_: None)
    TargetTasks(schedule, sink, SystemClock(), forecasts).plan(monitor, config, 0.0)
    schedule.start()
    return Watched(monitor, schedule, sink, problems)


def test_a_slow_server_gets_every_canary_that_is_due_and_each_counts() -> None:
    async def main() -> None:
        async with _server() as server:
            server.instead["/v1/completions"] = slow = Slow(server, ANSWERS_AFTER_S)
            watched = _watch(server.url)
            while len(slow.came) < 3:  # noqa: ASYNC110 - it waits for what a task does
                await asyncio.sleep(0.02)
            assert watched.records == [], "a canary does not wait for the answer to the one before"
            while len(watched.records) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            ended = len(watched.records)
            assert {record.outcome for record in watched.records} == {Outcome.OK}
            assert watched.problems == []
            assert watched.sink.page.render()[0].count(f'outcome="ok"}} {float(ended)}'.encode()) == 1
            await watched.close()

    asyncio.run(main())


def test_latencies_of_overlapping_canaries_count_from_their_own_sending() -> None:
    async def main() -> None:
        async with _server() as server:
            server.instead["/v1/completions"] = Slow(server, ANSWERS_AFTER_S)
            watched = _watch(server.url)
            while len(watched.records) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for record in watched.records:
                ttft_s = (record.events.at_ns[0] - record.scheduled_ns) * 1e-9
                assert ANSWERS_AFTER_S <= ttft_s < 2 * ANSWERS_AFTER_S
            await watched.close()

    asyncio.run(main())


def test_every_canary_that_a_stuck_server_gets_is_a_miss() -> None:
    async def main() -> None:
        async with _server() as server:
            server.instead["/v1/completions"] = slow = Slow(server, 3600.0)
            watched = _watch(server.url, timeout="2s", every_s=2 / MAX_CANARIES)
            while len(watched.records) < 10:  # noqa: ASYNC110 - it waits for what a task does
                await asyncio.sleep(0.02)
            assert len(slow.came) > MAX_CANARIES / 2, "a busy machine begins some of them late, and leaves those out"
            assert {record.outcome for record in watched.records} == {Outcome.TIMEOUT}
            page = watched.sink.page.render()[0].decode()
            assert 'kneewatch_target_up{target="a"} 0.0' in page
            assert 'objective="availability"} 0.0' in page
            assert watched.problems == []
            await watched.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["stop", "drop"])
def test_everything_in_flight_ends_with_its_target_and_with_the_monitor(how: str) -> None:
    async def main() -> None:
        async with _server() as server:
            server.instead["/v1/completions"] = slow = Slow(server, 3600.0)
            watched = _watch(server.url)
            while len(slow.came) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                await (watched.schedule.stop() if how == "stop" else watched.schedule.drop("a"))
            assert watched.records == [], "a canary that was cancelled has not failed"
            assert watched.problems == []
            await watched.close()

    asyncio.run(main())


def test_one_change_of_the_outcome_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with _server() as server:
            server.instead["/v1/completions"] = Slow(server, 3600.0)
            watched = _watch(server.url, timeout="1s")
            while len(watched.records) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert {record.outcome for record in watched.records} == {Outcome.TIMEOUT}
            await watched.close()

    asyncio.run(main())
    assert capsys.readouterr().out.count("canary outcome changed") == 1

"""A ramp with worker processes, against a server that fails in the middle: the load goes, and no figure is told."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mock_servers import MockServer, mock_server
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope
from starlette.types import Send as AsgiSend

from probe.capacity.run.request import Budget, RunRequest, StepSettings
from probe.cli.ramp import ramp_target
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.reasons import SERVER_ERRORS, SERVER_RESTARTED, SERVER_UNREADABLE, Reason
from probe.core.result import CapacityResult, Stopped
from probe.mock_server.driver import Faults
from probe.report.result_text import advice
from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.alone

CLOCK = SystemClock()
SLOW = Faults(extra_step_s=0.02)
Break = Callable[[MockServer], Awaitable[None]]


def _config(url: str) -> Config:
    objectives = {"default": {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "500ms"}}}
    workload = {"prompt_tokens": 8, "output_tokens": 20}
    target = {"name": "a", "base_url": url, "canary": {"timeout": "10s"}}
    return config_from({"objectives": objectives, "workloads": {"default": workload}, "targets": [target]}, "test")


def _asked(config: Config, *concurrency: int) -> RunRequest:
    objectives, steps = config.objectives_of(config.targets[0]), StepSettings(concurrency=concurrency, seconds=30.0)
    return RunRequest("a", objectives, Budget(10**9, 600.0, 600.0), steps, workers=1)


async def _ramp_while(server: MockServer, breaks: Break) -> tuple[CapacityResult, float]:
    """Run a ramp against a server that breaks under load. Return the result and the seconds until it ended."""
    config = _config(server.url)
    running = asyncio.create_task(ramp_target(config, config.targets[0], _asked(config, 4, 8), CLOCK, lambda _: None))
    async with asyncio.timeout(20):
        while server.driver.engine.running < 4:  # noqa: ASYNC110 - workers change it
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.6)  # a poll of the loaded server
    await breaks(server)
    begin = CLOCK.monotonic_ns()
    async with asyncio.timeout(20):
        result = await running
    return result, (CLOCK.monotonic_ns() - begin) * 1e-9


def _without_a_figure(result: CapacityResult, stopped: Stopped) -> None:
    assert result.stopped == stopped
    assert result.capacity.requests_per_second is None
    assert result.capacity.reason


async def _metrics_break(server: MockServer) -> None:
    server.instead["/metrics"] = PlainTextResponse("gone", 503)


async def _counters_begin_anew(server: MockServer) -> None:
    server.says_on_metrics("vllm:num_requests_waiting 0\nvllm:prompt_tokens_total 0\nvllm:generation_tokens_total 0\n")


async def _fails(server: MockServer) -> None:
    server.driver.faults = Faults(error_ratio=1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("breaks", "reason"),
    [(_metrics_break, SERVER_UNREADABLE), (_counters_begin_anew, SERVER_RESTARTED), (_fails, SERVER_ERRORS)],
    ids=lambda value: value.word if isinstance(value, Reason) else None,
)
@pytest.mark.fault(
    "LO1",
    "The server's metrics break under load",
    area="Load",
    users_see="`server_unreadable`, no figure",
    stays="load gone within 5 s, no request afterwards",
    case="_metrics_break-server_unreadable",
)
@pytest.mark.fault(
    "LO2",
    "The server's counters begin again under load",
    area="Load",
    users_see="`server_restarted`, no figure",
    stays="load gone within 5 s",
    case="_counters_begin_anew-server_restarted",
)
@pytest.mark.fault(
    "LO3",
    "The server fails every request under load",
    area="Load",
    users_see="`server_errors`, no figure",
    stays="load gone within 5 s",
    case="_fails-server_errors",
)
def test_a_server_that_breaks_under_load_is_left_alone_and_the_advice_fits(breaks: Break, reason: Reason) -> None:
    async def main() -> None:
        async with mock_server(faults=SLOW) as server:
            result, seconds = await _ramp_while(server, breaks)
            _without_a_figure(result, Stopped("guard", reason.word))
            assert advice(result) == f"{reason.advice}."
            assert (reason is SERVER_UNREADABLE) == ("HTTP 503" in str(result.capacity.reason))
            assert seconds < 5.0
            await asyncio.sleep(0.2)
            engine = server.driver.engine
            assert (engine.running, engine.waiting) == (0, 0)
            asked = server.generated
            await asyncio.sleep(0.3)
            assert server.generated == asked

    asyncio.run(main())


@pytest.mark.fault(
    "LO4",
    "The server is replaced under load, at the same address",
    area="Load",
    users_see="the guard ends the run, no figure",
    stays="the new one gets no load",
)
def test_a_server_that_is_replaced_under_load_ends_the_run() -> None:
    """The process goes, and another one takes its address at once."""

    async def main() -> None:
        port = free_port()
        async with mock_server(faults=SLOW, port=port) as first:
            config = _config(first.url)
            running = asyncio.create_task(
                ramp_target(config, config.targets[0], _asked(config, 4, 8), CLOCK, lambda _: None)
            )
            async with asyncio.timeout(20):
                while first.driver.engine.running < 4:  # noqa: ASYNC110 - workers change it
                    await asyncio.sleep(0.01)
        async with mock_server(port=port) as second, asyncio.timeout(20):
            result = await running
            assert result.stopped.by == "guard"
            assert result.capacity.requests_per_second is None
            assert second.driver.engine.running == 0

    asyncio.run(main())


@pytest.mark.fault(
    "LO5",
    "The server accepts and is silent under load",
    area="Load",
    users_see="`no_first_token`, no figure",
    stays="its connections are closed",
)
def test_a_server_that_accepts_and_says_nothing_is_left_alone_after_twice_the_objective() -> None:
    """It sends its head at once, as vLLM does: that is no answer."""
    numbers, gone = itertools.count(), 0

    async def main() -> None:
        async with mock_server() as server:
            inner = server.app

            async def silent(scope: Scope, receive: Receive, send: AsgiSend) -> None:
                nonlocal gone
                if next(numbers) < 12:
                    await inner(scope, receive, send)
                    return
                head: dict[str, Any] = {"type": "http.response.start", "status": 200}
                await send({**head, "headers": [(b"content-type", b"text/event-stream")]})
                while (await receive())["type"] != "http.disconnect":
                    pass
                gone += 1

            server.instead["/v1/completions"] = silent
            config = _config(server.url)
            async with asyncio.timeout(20):
                result = await ramp_target(config, config.targets[0], _asked(config, 4), CLOCK, lambda _: None)
            _without_a_figure(result, Stopped("guard", "no_first_token"))
            assert result.cost.seconds < 6.0
            silenced = result.cost.requests - 12
            assert 1 <= silenced <= 4
            async with asyncio.timeout(2):
                while gone < silenced:  # noqa: ASYNC110 - connections change it
                    await asyncio.sleep(0.01)

    asyncio.run(main())

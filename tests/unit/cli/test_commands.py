"""What the commands do with a server, without a command line."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from mock_servers import MockServer, mock_server
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

from probe.capacity.run.request import Budget, RunRequest, StepSettings, configured_run
from probe.cli.check import check_target
from probe.cli.forecasting import forecast_target
from probe.cli.ramp import ramp_target
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.config.workloads import WorkloadConfig
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError, LockError, TargetError
from probe.core.request import Outcome
from probe.core.result import CapacityResult, Stopped
from probe.core.step import StepSummary
from probe.mock_server.driver import Faults
from probe.report.result_json import dumps
from probe.report.result_text import result_words
from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[asyncio.Runner, MockServer]]:
    with asyncio.Runner() as runner:
        serving = mock_server()
        yield runner, runner.run(serving.__aenter__())
        runner.run(serving.__aexit__(None, None, None))


@pytest.fixture
def host(shared: tuple[asyncio.Runner, MockServer]) -> Iterator[tuple[asyncio.Runner, MockServer]]:
    yield shared
    shared[1].asked.clear()
    shared[1].instead.clear()
    shared[1].driver.wake_up()
    shared[1].driver.faults = Faults()


def _config(url: str, *, prometheus: str | None = None, **target: Any) -> Config:
    raw: dict[str, Any] = {
        "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
        "targets": [{"name": "a", "base_url": url, "canary": {"workload": "short", "timeout": "2s"}, **target}],
    }
    if prometheus:
        raw["prometheus"] = {"url": prometheus}
    return config_from(raw, "test")


def _asked(config: Config, **values: Any) -> RunRequest:
    target, steps = config.targets[0], StepSettings(concurrency=(1, 2), requests=25)
    plain = {"budget": Budget(10**6, 60.0, 60.0), "steps": steps, "workload": "short"}
    return replace(configured_run(target, config.objectives_of(target), None), **{**plain, **values})


async def _ramp(config: Config, **values: Any) -> tuple[CapacityResult, list[StepSummary]]:
    steps: list[StepSummary] = []
    result = await ramp_target(config, config.targets[0], _asked(config, **values), SystemClock(), steps.append)
    return result, steps


def test_a_check_is_one_request(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    config = _config(server.url)
    record = runner.run(check_target(config, config.targets[0], SystemClock()))
    assert (record.outcome, record.model) == (Outcome.OK, "tiny")
    assert server.generated == 1


def test_a_check_of_a_failing_server_is_a_measurement(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    server.driver.faults = Faults(error_ratio=1.0)
    config = _config(server.url)
    assert runner.run(check_target(config, config.targets[0], SystemClock())).outcome is Outcome.SERVER_ERROR


ASKED = {"workload": "short", "timeout": "2s", "known_answer": {}}
WRONG = {**ASKED, "known_answer": {"prompt": "What is the capital of France?", "expect": "London"}}


def test_a_check_asks_the_question_with_a_known_answer(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    right, wrong = (_config(server.url, canary=canary) for canary in (ASKED, WRONG))
    assert runner.run(check_target(right, right.targets[0], SystemClock())).outcome is Outcome.OK
    assert server.generated == 2
    record = runner.run(check_target(wrong, wrong.targets[0], SystemClock()))
    assert (record.outcome, record.detail) == (
        Outcome.CORRUPT,
        "the answer to the question does not match canary.known_answer.expect",
    )


def test_a_check_reports_a_question_that_was_not_answered(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    refused = PlainTextResponse("no chat template", status_code=400)
    server.instead["/v1/chat/completions"] = refused
    config, notes = _config(server.url, canary=ASKED), list[str]()
    record = runner.run(check_target(config, config.targets[0], SystemClock(), notes.append))
    assert record.outcome is Outcome.OK, "the canary was answered"
    (note,) = notes
    assert note.startswith("canary.known_answer: the question was not answered: bad_request, ")


def test_a_check_of_no_server_is_an_error() -> None:
    config = _config(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetError, match="base_url"):
        asyncio.run(check_target(config, config.targets[0], SystemClock()))


def test_a_ramp_measures_the_steps_that_were_asked_for(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    result, steps = runner.run(_ramp(_config(server.url)))
    assert [step.plan.concurrency for step in result.steps] == [1, 2]
    assert steps == list(result.steps)
    assert all(step.requests.ok == 25 for step in steps)
    assert result.cost.requests == server.generated == 51
    assert result.stopped.by == "done"
    assert server.driver.engine.running == 0


def test_results_name_the_configured_gpu_and_facts(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    config = _config(server.url, capacity={"server": {"gpu": "NVIDIA L4", "facts": {"image": "v1"}}})
    measured, _ = runner.run(_ramp(config))
    forecast = runner.run(forecast_target(config, config.targets[0], SystemClock(), watch_s=0.0))
    for result in (measured, forecast):
        assert result.context.gpu == "NVIDIA L4"
        assert result.provenance is not None
        assert result.provenance.facts["image"] == "v1"
        assert "node" in result.missing_facts


def test_a_guarded_ramp_ends_at_its_first_request_if_that_fails(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    server.driver.faults = Faults(error_ratio=1.0)
    result, steps = runner.run(_ramp(_config(server.url)))
    assert (result.steps, steps, server.generated) == ((), [], 1)
    assert "before its first step (server_errors)" in str(result.capacity.reason)


@pytest.mark.parametrize("steps", [StepSettings(concurrency=(1, 2), requests=25), StepSettings(observe_s=0.0)])
@pytest.mark.fault(
    "SH3",
    "a workload that the server refuses, such as one beyond its context length",
    area="Truth",
    users_see="the result has the first failure's words, and advice that follows from them",
    stays="no load after the first request",
)
def test_a_run_has_the_words_of_its_first_failed_request(
    host: tuple[asyncio.Runner, MockServer], steps: StepSettings
) -> None:
    """A workload that is too long for the server is no reason to try again when the server is calm."""
    runner, server = host
    config = _config(server.url)
    too_long = config.model_copy(update={"workloads": {"short": WorkloadConfig(prompt_tokens=20_000, output_tokens=3)}})
    result, _ = runner.run(_ramp(too_long, steps=steps))
    words = result_words(result)
    assert str(result.first_failure).startswith("bad_request: HTTP 400: This model's maximum context length is ")
    assert json.loads(dumps(result))["first_failure"] == result.first_failure
    assert f"Failure:     {result.first_failure}" in words
    assert "shorten the workload" in words
    assert "requests were refused or answered wrongly" in words
    for misleading in ("calm", "idle", "kneewatch check", "not enough evidence"):
        assert misleading not in words


BUSY = "vllm:num_requests_running 8\nvllm:num_requests_waiting 3\n"


@pytest.mark.parametrize("page", [BUSY, "", "vllm:num_requests_running 8\n"])
def test_a_guarded_ramp_does_not_load_a_server_that_is_busy_or_unseen(
    host: tuple[asyncio.Runner, MockServer], page: str
) -> None:
    runner, server = host
    server.says_on_metrics(page)
    with pytest.raises(TargetError, match="no load was sent"):
        runner.run(_ramp(_config(server.url)))
    assert server.generated == 0


def test_an_unguarded_ramp_needs_no_metrics(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    server.says_on_metrics("")
    result, _ = runner.run(
        _ramp(_config(server.url), is_guarded=False, steps=StepSettings(concurrency=(2,), requests=25))
    )
    assert result.steps[0].requests.ok == 25
    assert result.steps[0].server.waiting_peak is None
    assert result.context.version == "unknown"


def test_a_ramp_asks_the_configured_prometheus_before_it_loads(host: tuple[asyncio.Runner, MockServer]) -> None:
    """The configuration says: asked before load is added whether an alert fires for the target."""
    runner, server = host
    config = _config(server.url, prometheus=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetError, match="no_prometheus"):
        runner.run(_ramp(config))
    assert server.generated == 0


def test_a_ramp_on_a_model_that_is_not_served_is_an_error(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    with pytest.raises(TargetError, match="'nope' is not served; expected one of: tiny"):
        runner.run(_ramp(_config(server.url, model="nope")))
    assert server.generated == 1, "its own answer decides"


_NO_LIST = PlainTextResponse("Not Found", status_code=404)
_EMPTY = JSONResponse({"object": "list", "data": []})
_OTHERS = JSONResponse({"object": "list", "data": [{"id": "openai/*"}]})


@pytest.mark.parametrize("listing", [_NO_LIST, _EMPTY, _OTHERS])
def test_an_explicit_model_need_not_be_listed(host: tuple[asyncio.Runner, MockServer], listing: ASGIApp) -> None:
    runner, server = host
    server.instead["/v1/models"] = listing
    config = _config(server.url, model="tiny")
    assert runner.run(check_target(config, config.targets[0], SystemClock())).outcome is Outcome.OK
    auto = _config(server.url, model="auto" if listing is not _OTHERS else "nope")
    with pytest.raises(TargetError, match=r"expected (one of: |an OpenAI-compatible server)"):
        runner.run(check_target(auto, auto.targets[0], SystemClock()))


def test_a_ramp_and_a_forecast_need_no_list_either(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    server.instead["/v1/models"] = _NO_LIST
    config = _config(server.url, model="tiny")
    result, _ = runner.run(_ramp(config, steps=StepSettings(concurrency=(1,), requests=20)))
    assert result.steps[0].requests.ok == 20
    found = runner.run(forecast_target(config, config.targets[0], SystemClock(), watch_s=0.0))
    assert (result.model, found.model) == ("tiny", "tiny")


@pytest.mark.fault(
    "KU47",
    "Two ramps on one server, by a lock file",
    area="Kubernetes",
    users_see="the second is sent away in one line",
    stays="one of them loads",
)
def test_of_two_ramps_on_one_server_one_is_sent_away(host: tuple[asyncio.Runner, MockServer]) -> None:
    """Two would each measure the other's load. The second one knows the server by another name."""
    runner, server = host

    async def both() -> None:
        server.driver.faults = Faults(extra_step_s=0.02)
        first = asyncio.create_task(_ramp(_config(server.url), steps=StepSettings(concurrency=(2,), requests=20)))
        async with asyncio.timeout(10):
            while server.generated == 0:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        second = _ramp(_config(server.url.replace("127.0.0.1", "localhost")), is_guarded=False)
        with pytest.raises(LockError, match=rf"another prober loads localhost:\d+ \(process {os.getpid()} on .*since"):
            await second
        result, _ = await first
        assert result.stopped.by == "done"
        assert result.cost.requests == server.generated

    runner.run(both())


def test_a_passive_target_gets_neither_canaries_nor_load(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    config = _config(server.url, passive=True)
    with pytest.raises(ConfigError, match="passive is true"):
        runner.run(check_target(config, config.targets[0], SystemClock()))
    with pytest.raises(ConfigError, match="passive is true"):
        runner.run(ramp_target(config, config.targets[0], _asked(config), SystemClock(), lambda _: None))
    assert server.asked == []


def test_a_forecast_of_a_passive_target_asks_for_metrics_alone(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    config = _config(server.url, passive=True)
    found = runner.run(forecast_target(config, config.targets[0], SystemClock(), watch_s=0.1))
    assert found.model == "tiny"
    assert set(server.asked) == {"/version", "/metrics"}


@pytest.mark.parametrize("guarded", [True, False])
def test_nothing_is_sent_to_a_server_that_sleeps(host: tuple[asyncio.Runner, MockServer], guarded: bool) -> None:  # noqa: FBT001
    runner, server = host
    config = _config(server.url)
    server.driver.sleep(1)
    with pytest.raises(TargetError, match="sleeps, nothing was sent; wake it up first"):
        runner.run(check_target(config, config.targets[0], SystemClock()))
    with pytest.raises(TargetError, match="sleeps, nothing was sent; wake it up first"):
        runner.run(
            ramp_target(config, config.targets[0], _asked(config, is_guarded=guarded), SystemClock(), lambda _: None)
        )
    assert server.generated == 0


def test_without_a_metrics_page_the_own_answers_guard_a_ramp(host: tuple[asyncio.Runner, MockServer]) -> None:
    runner, server = host
    server.instead["/metrics"] = PlainTextResponse("no such page", status_code=404)
    with pytest.raises(TargetError, match=r"no_server_metrics.*--stream-guard .*guards by the run's own answers"):
        runner.run(_ramp(_config(server.url)))
    result, steps = runner.run(_ramp(_config(server.url), by_stream=True))
    assert result.stopped == Stopped("done")
    assert [step.requests.ok for step in steps] == [25, 25]

"""The plugin in vLLM's API server: its series, and that it never does any harm."""

import importlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporters.vllm_plugin.step_contents import Step
from exporters.vllm_plugin.step_series import StepSeries
from probe.scrape import vllm, vllm_history
from probe.scrape.metrics_parser import samples

LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096}


class OutputProcessor:
    """As much of vLLM's as the plugin reads: the requests in flight."""

    def __init__(self, *states: Any) -> None:
        self.request_states = {str(number): state for number, state in enumerate(states)}


def in_flight(age_s: float, tokens: int) -> Any:
    return SimpleNamespace(stats=SimpleNamespace(arrival_time=time.time() - age_s, num_generation_tokens=tokens))


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Load the plugin beside a vLLM that has only its interface: the real one runs in tests/integration."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    processor = ModuleType("vllm.v1.engine.output_processor")
    processor.OutputProcessor = OutputProcessor  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for each in (loggers, processor):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    module = importlib.import_module("exporters.vllm_plugin.stat_logger")
    series = StepSeries(CollectorRegistry())
    monkeypatch.setattr(module, "_series", lambda: series)
    yield module
    sys.modules.pop(module.__name__)


def config(**parallel: int) -> Any:
    """Return as much of vLLM's configuration as the plugin reads."""
    scheduler = {"long_prefill_token_threshold": 0, "max_num_scheduled_tokens": None, "async_scheduling": False}
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(**LIMITS, **scheduler),
        parallel_config=SimpleNamespace(
            **{"data_parallel_size": 1, "pipeline_parallel_size": 1, "_api_process_count": 1, **parallel}
        ),
        cache_config=SimpleNamespace(num_gpu_blocks=101, block_size=16),
        model_config=SimpleNamespace(max_model_len=4096),
        speculative_config=None,
    )


def step_stats(gap_s: float = 0.01) -> tuple[Any, Any]:
    """Return vLLM's statistics of a step in which two requests decoded."""
    stats = SimpleNamespace(
        inter_token_latencies_iter=[gap_s, gap_s],
        time_to_first_tokens_iter=[],
        prompt_token_stats=SimpleNamespace(computed=0),
        finished_requests=[],
    )
    return SimpleNamespace(kv_cache_usage=0.5, num_running_reqs=2), stats


def exported(series: StepSeries) -> Any:
    """Return Kneewatch's snapshot of the page."""
    return vllm.ENGINE.snapshot(samples(generate_latest(series.registry).decode(), vllm.ENGINE.wanted))


def test_kneewatch_reads_what_the_plugin_exports() -> None:
    series = StepSeries(CollectorRegistry())
    first, second = series.engine(0, LIMITS), series.engine(1, LIMITS)
    first.add(Step(0.01, 3, 3, 0, 500.0))
    first.add(Step(0.05, 4, 3, 1000, 700.0))
    second.add(Step(0.02, 5, 5, 0, 900.0))
    second.add(Step(9.0, 1, 0, 10**6, 0.0))
    found = exported(series)
    assert {bound: astuple(sums) for bound, sums in found.step_sums.items()} == {
        "8": (2.0, 0.03, 8.0, 8.0, 0.0, 1400.0),
        "1024": (1.0, 0.05, 4.0, 3.0, 1000.0, 700.0),
        "inf": (1.0, 9.0, 1.0, 0.0, 10.0**6, 0.0),
    }
    assert found.scheduler_limits == LIMITS


def test_prometheus_history_has_the_same_series() -> None:
    assert set(vllm.STEP_SERIES) <= set(vllm_history.HISTORY)


def test_a_page_with_a_part_missing_has_no_sums() -> None:
    page = 'kneewatch_vllm_steps_total{engine="0",up_to_tokens="8"} 5\n'
    assert vllm.ENGINE.snapshot(samples(page, vllm.ENGINE.wanted)).step_sums == {}


@pytest.mark.parametrize("value", ["0", "-1", "1e300", "NaN"])
def test_limits_that_cannot_be_are_left_out(value: str) -> None:
    page = f'kneewatch_vllm_scheduler_limit{{engine="0",flag="max_num_seqs"}} {value}\n'
    assert vllm.ENGINE.snapshot(samples(page, vllm.ENGINE.wanted)).scheduler_limits == {}


def test_steps_are_counted(plugin: ModuleType) -> None:
    logger = plugin.StepStatLogger(config(), 0)
    for _ in range(3):
        logger.record(*step_stats())
    logger.record(step_stats()[0], None)
    logger.record(None, None)
    # Half of 100 blocks of 16 tokens, less two half blocks; before the first step nothing was allocated.
    assert astuple(exported(plugin._series()).step_sums["8"]) == pytest.approx((3, 0.03, 6, 6, 0, 2 * (800 - 15)))


def test_a_block_that_several_gpus_share_has_the_tokens_of_all(plugin: ModuleType) -> None:
    """With decode context parallelism of two."""
    shared = config()
    shared.cache_config.effective_attention_block_size = 32
    logger = plugin.StepStatLogger(shared, 0)
    for _ in range(3):
        logger.record(*step_stats())
    assert exported(plugin._series()).step_sums["8"].kv_tokens == pytest.approx(2 * (1600 - 31))


def test_the_age_of_the_oldest_requests_is_exported(plugin: ModuleType) -> None:
    states = (in_flight(60, 5), in_flight(20, 0), in_flight(1, 0), SimpleNamespace(stats=None))
    processor = OutputProcessor(*states)
    for engine in (0, 1):
        plugin.StepStatLogger(config(), engine)
    found = exported(plugin._series())
    assert found.value("oldest_request") == pytest.approx(60, abs=5)
    assert found.value("oldest_unanswered") == pytest.approx(20, abs=5)
    processor.request_states.clear()
    assert exported(plugin._series()).value("oldest_request") == 0


def finished(prompt: int, queue_s: float, prefill_s: float, output: int = 5) -> Any:
    return SimpleNamespace(
        num_prompt_tokens=prompt, queued_time=queue_s, prefill_time=prefill_s, num_generation_tokens=output
    )


def test_the_wait_for_the_first_token_is_summed_by_the_length_of_prompts(plugin: ModuleType) -> None:
    loggers = [plugin.StepStatLogger(config(), engine) for engine in (0, 1)]
    scheduler, stats = step_stats()
    stats.finished_requests = [finished(256, 0.01, 0.03), finished(257, 0.0, 0.05), finished(100_000, 2.0, 9.0)]
    loggers[0].record(scheduler, stats)
    # The second left before it had a token: it was never scheduled.
    stats.finished_requests = [finished(20, 0.02, 0.04), finished(20, -70.0, -5.0, output=0)]
    loggers[1].record(scheduler, stats)
    found = exported(plugin._series())
    assert found.parts("prompt_requests") == {"256": 2, "1024": 1, "inf": 1}
    assert found.parts("prompt_queue_seconds") == pytest.approx({"256": 0.03, "1024": 0, "inf": 2})
    assert found.parts("prompt_prefill_seconds") == pytest.approx({"256": 0.07, "1024": 0.05, "inf": 9})


def test_one_of_several_api_servers_counts_no_prompts(plugin: ModuleType) -> None:
    logger = plugin.StepStatLogger(config(_api_process_count=2), 0)
    scheduler, stats = step_stats()
    stats.finished_requests = [finished(256, 0.01, 0.03)]
    logger.record(scheduler, stats)
    assert not exported(plugin._series()).parts("prompt_requests")


@pytest.mark.parametrize("parallel", [{"_api_process_count": 2}, {"pipeline_parallel_size": 2}])
def test_steps_that_one_process_cannot_see_whole_are_not_exported(plugin: ModuleType, parallel: dict[str, int]) -> None:
    logger = plugin.StepStatLogger(config(**parallel), 0)
    logger.record(*step_stats())
    found = exported(plugin._series())
    assert (found.step_sums, found.scheduler_limits) == ({}, LIMITS)


@pytest.mark.fault(
    "PL1",
    "A vLLM whose statistics Kneewatch's plugin does not know",
    area="Foreign answers",
    users_see="one line in vLLM's log, and no more steps on its page",
    stays="vLLM serves as without the plugin; capacity is learnt from windows",
)
def test_the_first_error_ends_it_with_one_log_line(plugin: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    processor = OutputProcessor()  # else the plugin says that it sees no ages
    logger = plugin.StepStatLogger(config(), 0)
    assert not processor.request_states
    scheduler, stats = step_stats()
    del stats.prompt_token_stats  # as a later vLLM may
    with caplog.at_level(logging.ERROR, "vllm.kneewatch"):
        for _ in range(3):
            logger.record(scheduler, stats)
        logger.record(*step_stats())
    assert [one.message for one in caplog.records] == ["kneewatch: engine steps are no longer exported"]
    assert exported(plugin._series()).step_sums == {}


def test_a_configuration_it_does_not_know_leaves_vllm_as_without_it(
    plugin: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    logger = plugin.StepStatLogger(SimpleNamespace(), 0)
    logger.record(*step_stats())
    logger.log_engine_initialized()
    assert [one.message for one in caplog.records] == ["kneewatch: engine steps are not exported"]

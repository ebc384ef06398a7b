"""The mock server's /metrics page against one recorded from the real vLLM 0.32."""

from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from probe.mock_server.metrics import Metrics, RequestTimes
from probe.mock_server.profiles import PROFILES
from probe.simulator.engine import SimulatedEngine

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm-0.32" / "metrics.txt"
TINY = PROFILES["tiny"]  # recorded with the same max_model_len, which some bounds follow


def _families(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def _page(metrics: Metrics, engine: SimulatedEngine | None = None) -> dict[str, Metric]:
    return _families(metrics.page(engine or SimulatedEngine(TINY)).decode())


def _value(page: dict[str, Metric], family: str, sample: str, **labels: str) -> float:
    (value,) = [s.value for s in page[family].samples if s.name == sample and labels.items() <= s.labels.items()]
    return value


REAL = _families(GOLDEN.read_text())
OURS = _page(Metrics(TINY, "tiny"))
_HTTP = "http_requests"  # counts as requests come; the test below has some


def test_http_answers_have_the_real_names_and_labels() -> None:
    metrics = Metrics(TINY, "tiny")
    samples = [s for s in REAL[_HTTP].samples if s.name == "http_requests_total"]
    for one in samples:
        for _ in range(int(one.value)):
            metrics.answered(one.labels["method"], one.labels["status"], one.labels["handler"])
    ours = [s for s in _page(metrics)[_HTTP].samples if s.name == "http_requests_total"]
    assert [(s.labels, s.value) for s in ours] == [(s.labels, s.value) for s in samples]


@pytest.mark.parametrize("name", sorted(OURS.keys() - {_HTTP}))
def test_every_family_is_one_of_the_real_servers(name: str) -> None:
    assert name in REAL
    ours, real = OURS[name], REAL[name]
    assert ours.type == real.type
    shape = [(s.name, {k: v for k, v in s.labels.items() if k not in _FREE}) for s in ours.samples]
    expected = [(s.name, {k: v for k, v in s.labels.items() if k not in _FREE}) for s in real.samples]
    key = str
    assert sorted(shape, key=key) == sorted(expected, key=key)
    assert [set(s.labels) for s in ours.samples] == [set(s.labels) for s in real.samples]


# Labels of cache_config_info whose values are the profile's, or say that a feature is not there.
_FREE = (
    *("block_size", "effective_attention_block_size", "kv_cache_max_concurrency", "kv_cache_size_tokens"),
    *("num_gpu_blocks", "num_gpu_blocks_override", "kv_cache_memory_bytes", "enable_prefix_caching"),
    "swa_bounded_replay",
)


def test_the_metrics_that_operators_use_are_there() -> None:
    assert {
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"),
        *("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
        *("vllm:num_preemptions", "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success"),
        *("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
        *("vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"),
        *("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"),
        *("vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds"),
        *("vllm:iteration_tokens_total", "vllm:request_num_preemptions", "vllm:request_prompt_tokens"),
        *("vllm:request_generation_tokens", "vllm:admission_rejections", "vllm:cache_config_info"),
    } <= set(OURS)


def test_cache_config_says_how_large_the_cache_is() -> None:
    labels = OURS["vllm:cache_config_info"].samples[0].labels
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "512")


def test_gauges_are_the_engine_at_the_scrape() -> None:
    engine = SimulatedEngine(TINY)
    for _ in range(10):
        engine.submit(prompt_tokens=16, output_tokens=1)
    engine.plan_step()
    page = _page(Metrics(TINY, "m"), engine)
    assert _value(page, "vllm:num_requests_running", "vllm:num_requests_running", model_name="m") == 8
    assert _value(page, "vllm:num_requests_waiting", "vllm:num_requests_waiting") == 2
    by_reason = "vllm:num_requests_waiting_by_reason"
    assert _value(page, by_reason, by_reason, reason="capacity") == 2
    assert _value(page, by_reason, by_reason, reason="deferred") == 0
    usage = _value(page, "vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc")
    assert usage == pytest.approx(8 / 511)


def test_a_finished_request_is_cut_into_queue_prefill_and_decode() -> None:
    metrics = Metrics(TINY, "m")
    metrics.completed(
        RequestTimes(
            prompt_tokens=7,
            output_tokens=5,
            preemptions=2,
            arrival_s=10.0,
            scheduled_s=10.5,
            first_token_s=12.0,
            last_token_s=16.0,
            answered_s=16.2,
        )
    )
    page = _page(metrics)
    for family, total in (
        ("vllm:e2e_request_latency_seconds", 6.2),
        ("vllm:request_queue_time_seconds", 0.5),
        ("vllm:request_prefill_time_seconds", 1.5),
        ("vllm:request_decode_time_seconds", 4.0),
        ("vllm:request_inference_time_seconds", 5.5),
        ("vllm:request_time_per_output_token_seconds", 1.0),
        ("vllm:request_num_preemptions", 2.0),
        ("vllm:request_prompt_tokens", 7.0),
        ("vllm:request_generation_tokens", 5.0),
    ):
        assert _value(page, family, f"{family}_sum") == pytest.approx(total), family
        assert _value(page, family, f"{family}_count") == 1
    success = "vllm:request_success"
    assert _value(page, success, f"{success}_total", finished_reason="length") == 1


def test_a_step_without_a_token_is_no_iteration_but_its_preemptions_count() -> None:
    metrics = Metrics(TINY, "m")
    metrics.step(prompt_tokens=0, found_tokens=0, emitted=0, preempted=3, has_results=False)
    metrics.step(prompt_tokens=100, found_tokens=64, emitted=4, preempted=0, has_results=True)
    page = _page(metrics)
    iterations = "vllm:iteration_tokens_total"
    assert _value(page, iterations, f"{iterations}_count") == 1
    assert _value(page, iterations, f"{iterations}_sum") == 40, "what was in the prefix cache was not computed"
    assert _value(page, "vllm:num_preemptions", "vllm:num_preemptions_total") == 3
    assert _value(page, "vllm:prompt_tokens", "vllm:prompt_tokens_total") == 100

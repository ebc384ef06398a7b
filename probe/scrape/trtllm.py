"""trtllm-serve's /prometheus/metrics page (`return_perf_metrics`) to a ServerSnapshot: the only file with "trtllm_"
names. Pure.

Written from TensorRT-LLM's source of summer 2026; no page was recorded. Gauges have a `pid` and stay when a process has
ended, so the largest counts; they need `enable_iter_perf_stats` and are updated when a request ends. Tokens
are counted at the end of a request. `time_per_output_token_seconds` is a request's mean.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import (
    EngineMetrics,
    Samples,
    added,
    by_label,
    histograms,
    is_server_error,
    known,
    largest,
    one_of_each,
    parts,
    total,
    values_of,
)

_RUNNING, _WAITING = "trtllm_num_requests_running", "trtllm_num_requests_waiting"
_USAGE = "trtllm_kv_cache_utilization"
_BLOCKS, _PER_BLOCK = "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"
_PROMPT, _OUTPUT = "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"
_FINISHED = "trtllm_request_success_total"
_NOT_OK = ("cancelled", "timeout")
_ERRORS = "trtllm_request_error_total"
_REUSED, _MISSED = "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("trtllm_time_to_first_token_seconds",),
    "tpot": ("trtllm_time_per_output_token_seconds",),
    "e2e": ("trtllm_e2e_request_latency_seconds",),
    "queue": ("trtllm_request_queue_time_seconds",),
    "prefill": ("trtllm_request_prefill_time_seconds",),
    "decode": ("trtllm_request_decode_time_seconds",),
}


def _snapshot(found: Samples) -> ServerSnapshot:
    unique = one_of_each(found, ("pid", "rank"))
    finished, errors = by_label(found, "finished_reason", _FINISHED), by_label(found, "http_code", _ERRORS)
    blocks, each = largest(unique, _BLOCKS), largest(unique, _PER_BLOCK)
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(unique, _RUNNING),
        waiting=total(unique, _WAITING),
        kv_cache_usage=largest(unique, _USAGE),
        prompt_tokens=total(found, _PROMPT),
        generation_tokens=total(found, _OUTPUT),
        finished=finished,
        outcomes=known(
            ok=sum(count for reason, count in finished.items() if reason not in _NOT_OK) if finished else None,
            failed=sum(count for code, count in errors.items() if is_server_error(code)) if errors else None,
            aborted=finished.get("cancelled"),
        ),
        prefix_cache_queries=added(total(found, _REUSED), total(found, _MISSED)),  # blocks; the ratio is what counts
        prefix_cache_hits=total(found, _REUSED),
        kv_cache_tokens=blocks * each if blocks and each else None,
        models=values_of("model_name", (*found.get(_RUNNING, ()), *found.get(_FINISHED, ()))),
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "trtllm",
    ("trtllm_",),
    frozenset(
        (
            *(_RUNNING, _WAITING, _USAGE, _BLOCKS, _PER_BLOCK, _PROMPT, _OUTPUT, _FINISHED, _ERRORS, _REUSED, _MISSED),
            *parts(name for its in _HISTOGRAMS.values() for name in its),
        )
    ),
    _snapshot,
    path="/prometheus/metrics",
)

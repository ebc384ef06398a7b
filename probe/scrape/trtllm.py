"""trtllm-serve's /prometheus/metrics page (`return_perf_metrics`) to a ServerSnapshot: the only file with "trtllm_"
names. Pure.

Written from TensorRT-LLM's source of summer 2026; no page was recorded. Gauges have a `pid` and stay when a process has
ended, so the largest counts; they need `enable_iter_perf_stats` and are updated when a request ends. Tokens
are counted at the end of a request. `time_per_output_token_seconds` is a request's mean.
"""

from collections.abc import Mapping
from typing import Any

from probe.scrape.metrics_parser import (
    Samples,
    added,
    by_label,
    is_server_error,
    known,
    largest,
    one_of_each,
    total,
    values_of,
)
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, labelled

_RUNNING, _WAITING = "trtllm_num_requests_running", "trtllm_num_requests_waiting"
_USAGE = "trtllm_kv_cache_utilization"
_BLOCKS, _PER_BLOCK = "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"
_GAUGES = (_RUNNING, _WAITING, _USAGE, _BLOCKS, _PER_BLOCK)
_FINISHED = "trtllm_request_success_total"
_NOT_OK = ("cancelled", "timeout")
_ERRORS = "trtllm_request_error_total"
_REUSED, _MISSED = "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"


def _outcomes(found: Samples) -> dict[str, float]:
    finished, errors = by_label(found, "finished_reason", _FINISHED), by_label(found, "http_code", _ERRORS)
    return known(
        ok=sum(count for reason, count in finished.items() if reason not in _NOT_OK) if finished else None,
        failed=sum(count for code, count in errors.items() if is_server_error(code)) if errors else None,
        aborted=finished.get("cancelled"),
    )


def _kv_cache_tokens(found: Samples) -> float | None:
    blocks, each = largest(found, _BLOCKS), largest(found, _PER_BLOCK)
    return blocks * each if blocks and each else None


def _more(found: Samples) -> Mapping[str, Any]:
    return {"models": values_of("model_name", (*found.get(_RUNNING, ()), *found.get(_FINISHED, ())))}


def _unique(found: Samples) -> Samples:
    return {**found, **one_of_each({name: found[name] for name in _GAUGES if name in found}, ("pid", "rank"))}


_READS: Reads = {
    "running": (_RUNNING,),
    "waiting": (_WAITING,),
    "kv_cache_usage": (_USAGE,),
    "kv_cache_tokens": Read((_BLOCKS, _PER_BLOCK), _kv_cache_tokens),
    "prompt_tokens": ("trtllm_prompt_tokens_total",),
    "generation_tokens": ("trtllm_generation_tokens_total",),
    "finished": labelled("finished_reason", _FINISHED),
    "outcomes": Read((_FINISHED, _ERRORS), _outcomes),
    # Blocks; the ratio is what counts.
    "prefix_cache_queries": Read((_REUSED, _MISSED), lambda found: added(total(found, _REUSED), total(found, _MISSED))),
    "prefix_cache_hits": (_REUSED,),
    "ttft": ("trtllm_time_to_first_token_seconds",),
    "tpot": ("trtllm_time_per_output_token_seconds",),
    "e2e": ("trtllm_e2e_request_latency_seconds",),
    "queue": ("trtllm_request_queue_time_seconds",),
    "prefill": ("trtllm_request_prefill_time_seconds",),
    "decode": ("trtllm_request_decode_time_seconds",),
}
ENGINE = Engine(
    "trtllm",
    ("trtllm_",),
    _READS,
    facts=Facts(
        "trtllm-serve",
        "summer 2026",
        Proof.SOURCES,
        Counted.AT_THE_END,
        ("finished, but for `cancelled` and `timeout`", "errors 5xx and 429", "`cancelled`"),
        cells={
            "page": "with `return_perf_metrics`, `enable_iter_perf_stats`",
            "running, waiting": "yes, updated when a request ends",
            "model's name": "`model_name`",
            "guarded load": "the guard sees an outdated queue",
        },
    ),
    more=_more,
    path="/prometheus/metrics",
    unique=_unique,
)

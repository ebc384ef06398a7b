"""Triton's /metrics page (port 8002) with the TensorRT-LLM backend to a ServerSnapshot: the only file with "nv_" names.
Pure.

Written from their sources; no page was recorded. One family holds several quantities, distinguished by a label, and
each model of an ensemble counts the same request, so only the backend's own count is used. Durations are sums of
microseconds, without buckets, and are not used; Triton measures neither TTFT nor ITL.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import EngineMetrics, Samples, histograms, known, largest, parts, total

_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
_GENERAL = "nv_trt_llm_general_metrics"
_SUCCESS, _FAILURE = "nv_inference_request_success", "nv_inference_request_failure"  # counters, in spite of the names
_BACKEND = "tensorrt_llm"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "prompt_length": ("nv_llm_input_token_len",),
    "output_length": ("nv_llm_output_token_len",),
}


def _snapshot(found: Samples) -> ServerSnapshot:
    running = total(found, _REQUESTS, request_type="scheduled")
    most, used = (largest(found, _BLOCKS, kv_cache_block_type=kind) for kind in ("max", "used"))
    each = largest(found, _BLOCKS, kv_cache_block_type="tokens_per")
    left = total(found, _FAILURE, model=_BACKEND, reason="CANCELED")  # from 24.05 on
    done, failed = (total(found, name, model=_BACKEND) for name in (_SUCCESS, _FAILURE))
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=running if running is not None else total(found, _REQUESTS, request_type="active"),
        waiting=total(found, _REQUESTS, request_type="waiting"),
        kv_cache_usage=used / most if most and used is not None else None,
        prompt_tokens=total(found, "nv_llm_input_token_len_sum"),
        generation_tokens=total(found, "nv_llm_output_token_len_sum"),
        finished=known(success=done, failure=failed),
        outcomes=known(ok=done, failed=failed if failed is None else failed - (left or 0.0), aborted=left),
        kv_cache_tokens=most * each if most and each else None,
        progress=total(found, _GENERAL, general_type="iteration_counter"),
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "triton",
    ("nv_trt_llm_", "nv_inference_"),
    frozenset(
        (_REQUESTS, _BLOCKS, _GENERAL, _SUCCESS, _FAILURE, *parts(n for its in _HISTOGRAMS.values() for n in its))
    ),
    _snapshot,
)

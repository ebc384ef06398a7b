"""Triton's /metrics page (port 8002) with the TensorRT-LLM backend to a ServerSnapshot: the only file with "nv_" names.
Pure.

Written from their sources; no page was recorded. One family holds several quantities, distinguished by a label, and
each model of an ensemble counts the same request, so only the backend's own count is used. Durations are sums of
microseconds, without buckets, and are not used; Triton measures neither TTFT nor ITL.
"""

from probe.scrape.metrics_parser import Samples, known, largest, total
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads

_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
_GENERAL = "nv_trt_llm_general_metrics"
_SUCCESS, _FAILURE = "nv_inference_request_success", "nv_inference_request_failure"  # counters, in spite of the names
_BACKEND = "tensorrt_llm"
_PROMPT, _OUTPUT = "nv_llm_input_token_len", "nv_llm_output_token_len"


def _running(found: Samples) -> float | None:
    scheduled = total(found, _REQUESTS, request_type="scheduled")
    return scheduled if scheduled is not None else total(found, _REQUESTS, request_type="active")


def _blocks(found: Samples, kind: str) -> float | None:
    return largest(found, _BLOCKS, kv_cache_block_type=kind)


def _kv_cache_usage(found: Samples) -> float | None:
    most, used = _blocks(found, "max"), _blocks(found, "used")
    return used / most if most and used is not None else None


def _kv_cache_tokens(found: Samples) -> float | None:
    most, each = _blocks(found, "max"), _blocks(found, "tokens_per")
    return most * each if most and each else None


def _finished(found: Samples) -> dict[str, float]:
    return known(
        success=total(found, _SUCCESS, model=_BACKEND),
        failure=total(found, _FAILURE, model=_BACKEND),
    )


def _outcomes(found: Samples) -> dict[str, float]:
    finished = _finished(found)
    left = total(found, _FAILURE, model=_BACKEND, reason="CANCELED")  # from 24.05 on
    failed = finished.get("failure")
    return known(ok=finished.get("success"), failed=failed if failed is None else failed - (left or 0.0), aborted=left)


_READS: Reads = {
    "running": Read((_REQUESTS,), _running),
    "waiting": Read((_REQUESTS,), lambda found: total(found, _REQUESTS, request_type="waiting")),
    "kv_cache_usage": Read((_BLOCKS,), _kv_cache_usage),
    "kv_cache_tokens": Read((_BLOCKS,), _kv_cache_tokens),
    "prompt_tokens": (f"{_PROMPT}_sum",),
    "generation_tokens": (f"{_OUTPUT}_sum",),
    "progress": Read((_GENERAL,), lambda found: total(found, _GENERAL, general_type="iteration_counter")),
    "finished": Read((_SUCCESS, _FAILURE), _finished),
    "outcomes": Read((_SUCCESS, _FAILURE), _outcomes),
    "prompt_length": (_PROMPT,),
    "output_length": (_OUTPUT,),
}
ENGINE = Engine(
    "triton",
    ("nv_trt_llm_", "nv_inference_"),
    _READS,
    facts=Facts(
        "Triton (TensorRT-LLM)",
        "November 2026",
        Proof.SOURCES,
        Counted.AT_THE_END,
        ("success", "failure, but for `CANCELED`", "`CANCELED`"),
        cells={"page": "on port 8002: set `metrics_url`", "progress": "steps"},
    ),
)

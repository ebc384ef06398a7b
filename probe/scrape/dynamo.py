"""The /metrics page of NVIDIA Dynamo's frontend to a ServerSnapshot: the only file with "dynamo_" names. Pure.

The frontend counts what passes through it to all its workers: requests in flight, those of them that wait for their
first token (in a worker's queue or in its prefill), tokens, TTFT and ITL. It says how its workers were started, and
nothing of their KV cache or preemptions; those are on the workers' own pages.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import ServerSnapshot
from probe.scrape.metrics_parser import (
    EngineMetrics,
    Samples,
    by_label,
    histograms,
    largest,
    parts,
    total,
    values_of,
)

_IN_FLIGHT, _QUEUED = "dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests"
_REQUESTS = "dynamo_frontend_requests_total"
_OUTPUT = "dynamo_frontend_output_tokens_total"
_PROMPT = "dynamo_frontend_input_sequence_tokens"
# How the workers were started: the scheduler's limits of one, which are in its flags too.
_LIMITS = {
    "max_num_seqs": "dynamo_frontend_model_max_num_seqs",
    "max_num_batched_tokens": "dynamo_frontend_model_max_num_batched_tokens",
}
_LONGEST = "dynamo_frontend_model_context_length"
# Of each worker that has answered.
_OF_A_WORKER = "dynamo_frontend_worker_last_time_to_first_token_seconds"
_BLOCKS, _PER_BLOCK = "dynamo_frontend_model_total_kv_blocks", "dynamo_frontend_model_kv_cache_block_size"
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("dynamo_frontend_time_to_first_token_seconds",),
    "itl": ("dynamo_frontend_inter_token_latency_seconds",),
    "e2e": ("dynamo_frontend_request_duration_seconds",),
    "prompt_length": (_PROMPT,),
    "output_length": ("dynamo_frontend_output_sequence_tokens",),
}
_FAILED = ("overload", "internal", "unavailable")


def _snapshot(found: Samples) -> ServerSnapshot:
    # Before the first request there are no such series.
    is_fresh = not (found.get(_IN_FLIGHT) or found.get(_QUEUED) or found.get(_REQUESTS))
    none_yet = 0.0 if is_fresh else None
    in_flight = none_yet if is_fresh else total(found, _IN_FLIGHT)
    waiting = none_yet if is_fresh else total(found, _QUEUED)
    limits = {name: int(value) for name, its in _LIMITS.items() if (value := largest(found, its))}
    longest, blocks, each = largest(found, _LONGEST), largest(found, _BLOCKS), largest(found, _PER_BLOCK)
    finished, errors = by_label(found, "status", _REQUESTS), by_label(found, "error_type", _REQUESTS)
    running = max(in_flight - (waiting or 0.0), 0.0) if in_flight is not None else None
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=running,
        waiting=waiting,
        prompt_tokens=none_yet if is_fresh else total(found, f"{_PROMPT}_sum"),
        generation_tokens=none_yet if is_fresh else total(found, _OUTPUT),
        finished=finished,
        outcomes={
            "ok": finished.get("success", 0.0),
            "failed": sum(errors.get(kind, 0.0) for kind in _FAILED),
            "aborted": errors.get("cancelled", 0.0),
        }
        if finished
        else {},
        engines=max(len(values_of("worker_id", found.get(_OF_A_WORKER, ()))), 1),
        models=values_of("model", found.get(_IN_FLIGHT, ())),
        progress=total(found, _OUTPUT),
        kv_cache_tokens=blocks * each if blocks and each else None,
        flags={name: str(value) for name, value in limits.items()}
        | ({"max_model_len": f"{longest:.0f}"} if longest else {}),
        scheduler_limits=limits,
        histograms=histograms(found, _HISTOGRAMS),
    )


ENGINE = EngineMetrics(
    "dynamo",
    ("dynamo_frontend_",),
    frozenset(
        (
            *(_IN_FLIGHT, _QUEUED, _REQUESTS, _OUTPUT, _LONGEST, _OF_A_WORKER, _BLOCKS, _PER_BLOCK, *_LIMITS.values()),
            *parts(name for its in _HISTOGRAMS.values() for name in its),
        )
    ),
    _snapshot,
)

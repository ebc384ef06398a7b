"""The /metrics page of NVIDIA Dynamo's frontend to a ServerSnapshot: the only file with "dynamo_" names. Pure.

The frontend counts what passes through it to all its workers: requests in flight, how many of them wait for their
first token (in a worker's queue or in its prefill), tokens, TTFT and ITL. It says how its workers were started, and
nothing of their KV cache or preemptions; those are on the workers' own pages.
"""

from collections.abc import Mapping
from typing import Any

from probe.scrape.metrics_parser import Samples, by_label, largest, total, values_of
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, labelled

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
_FAILED = ("overload", "internal", "unavailable")
# Before the first request there are no such series.
_FIRST = (_IN_FLIGHT, _QUEUED, _REQUESTS)


def _from_zero(name: str) -> Read:
    """Read a value that is zero before the first request."""
    return Read((name, *_FIRST), lambda found: 0.0 if _is_fresh(found) else total(found, name))


def _is_fresh(found: Samples) -> bool:
    return not any(found.get(name) for name in _FIRST)


def _running(found: Samples) -> float | None:
    """Return the requests in flight that do not wait."""
    in_flight = 0.0 if _is_fresh(found) else total(found, _IN_FLIGHT)
    return max(in_flight - (total(found, _QUEUED) or 0.0), 0.0) if in_flight is not None else None


def _outcomes(found: Samples) -> dict[str, float]:
    finished, errors = by_label(found, "status", _REQUESTS), by_label(found, "error_type", _REQUESTS)
    if not finished:
        return {}
    return {
        "ok": finished.get("success", 0.0),
        "failed": sum(errors.get(kind, 0.0) for kind in _FAILED),
        "aborted": errors.get("cancelled", 0.0),
    }


def _kv_cache_tokens(found: Samples) -> float | None:
    blocks, each = largest(found, _BLOCKS), largest(found, _PER_BLOCK)
    return blocks * each if blocks and each else None


def _more(found: Samples) -> Mapping[str, Any]:
    limits = {name: int(value) for name, its in _LIMITS.items() if (value := largest(found, its))}
    longest = largest(found, _LONGEST)
    return {
        "engines": max(len(values_of("worker_id", found.get(_OF_A_WORKER, ()))), 1),
        "models": values_of("model", found.get(_IN_FLIGHT, ())),
        "flags": {name: str(value) for name, value in limits.items()}
        | ({"max_model_len": f"{longest:.0f}"} if longest else {}),
        "scheduler_limits": limits,
    }


_READS: Reads = {
    "running": Read(_FIRST, _running),
    "waiting": _from_zero(_QUEUED),
    "kv_cache_tokens": Read((_BLOCKS, _PER_BLOCK), _kv_cache_tokens),
    "prompt_tokens": _from_zero(f"{_PROMPT}_sum"),
    "generation_tokens": _from_zero(_OUTPUT),
    "progress": (_OUTPUT,),
    "finished": labelled("status", _REQUESTS),
    "outcomes": Read((_REQUESTS,), _outcomes),
    "ttft": ("dynamo_frontend_time_to_first_token_seconds",),
    "itl": ("dynamo_frontend_inter_token_latency_seconds",),
    "e2e": ("dynamo_frontend_request_duration_seconds",),
    "prompt_length": (_PROMPT,),
    "output_length": ("dynamo_frontend_output_sequence_tokens",),
}
ENGINE = Engine(
    "dynamo",
    ("dynamo_frontend_",),
    _READS,
    facts=Facts(
        "Dynamo frontend",
        "1.6",
        Proof.RECORDED,
        Counted.EACH_STEP,
        ("`success`", "`overload`, `internal`, `unavailable`", "`cancelled`"),
        cells={
            "running, waiting": "yes; waiting is in a queue or in prefill",
            "model's name": "`model`",
            "progress": "tokens",
            "guarded load": "the guard sees the queue, with prefills",
            "forecast, verified capacity": "a forecast was made; not compared with a known capacity",
        },
    ),
    more=_more,
    also=(*_LIMITS.values(), _LONGEST, _OF_A_WORKER),
)

"""SGLang's /metrics page (`--enable-metrics`) to a ServerSnapshot: the only file with "sglang:" names. Pure.

Written from its source, 0.5.1 to 0.5.8 and the main branch of autumn 2026; no page was recorded. Schedulers of all
pipeline and tensor ranks may report the same values, so the largest counts, and only data-parallel ranks are added.
With priorities, the series without one is the total. Tokens are counted when a request ends, except in
`realtime_tokens_total`, which counts them by rank at each step, including prompt tokens.
"""

from collections.abc import Mapping
from typing import Any

from probe.core.snapshot import EngineSnapshot, Histogram
from probe.scrape.metrics_parser import (
    Samples,
    added,
    by_engine,
    by_label,
    histogram,
    known,
    one_of_each,
    parts,
    total,
    values_of,
)
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, positive

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "cp_rank", "pid")
_RUNNING, _USAGE = "sglang:num_running_reqs", "sglang:token_usage"
_QUEUES = ("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs")
_RETRACTED, _RETRACTIONS = "sglang:num_retracted_reqs", "sglang:num_retracted_requests_total"
_STEP_TOKENS = "sglang:realtime_tokens_total"
_PROMPT, _OUTPUT = "sglang:prompt_tokens_total", "sglang:generation_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_FINISHED, _ABORTED = "sglang:num_requests_total", "sglang:num_aborted_requests_total"
_QUEUE, _STAGES = "sglang:queue_time_seconds", "sglang:per_stage_req_latency_seconds"
_TTFT = "sglang:time_to_first_token_seconds"
# Of the process that tokenises, which are added up; everything else is of schedulers.
_COUNTERS = (_PROMPT, _OUTPUT, _CACHED, _FINISHED, _ABORTED)
_OF_REQUESTS = {
    "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),  # the second to March 2025
    "tpot": ("sglang:request_time_per_output_token_seconds",),
    "e2e": ("sglang:e2e_request_latency_seconds",),
    "prompt_length": ("sglang:prompt_tokens_histogram",),
    "output_length": ("sglang:generation_tokens_histogram",),
}
_TOKENISERS = {*_COUNTERS, *parts((_TTFT, *(name for its in _OF_REQUESTS.values() for name in its)))}


def _unique(found: Samples) -> Samples:
    of_schedulers = {
        name: [one for one in its if not one.labels.get("priority")]
        for name, its in found.items()
        if name not in _TOKENISERS
    }
    return {**found, **one_of_each(of_schedulers, _RANKS)}


def _retractions(found: Samples) -> float | None:
    """Return the retracted requests: the counter appears with the first one."""
    return added(total(found, _RETRACTIONS), 0.0 if found.get(_RETRACTED) else None)


def _ttft(found: Samples) -> Histogram | None:
    """Return the TTFT of streamed requests, where they are told apart; of others, it is the whole answer's time."""
    streamed = histogram(found, _TTFT, is_streaming="true")
    return streamed if streamed is not None else histogram(found, _TTFT)


def _more(found: Samples) -> Mapping[str, Any]:
    running = found.get(_RUNNING, ())
    return {
        "engines": max(len({one.labels.get("dp_rank", "") for one in running}), 1),
        "by_engine": _by_rank(found),
        "models": values_of("model_name", running),
    }


def _by_rank(found: Samples) -> dict[str, EngineSnapshot]:
    """Return the data-parallel ranks separately. The count of retractions appears with a rank's first one."""
    tokens = found.get(_STEP_TOKENS, ())
    zeros = [one._replace(value=0.0) for one in found.get(_RETRACTED, ())]
    return by_engine(
        "dp_rank",
        running=found.get(_RUNNING, ()),
        waiting=[one for name in _QUEUES for one in found.get(name, ())],
        kv_cache_usage=found.get(_USAGE, ()),
        preemptions=(*zeros, *found.get(_RETRACTIONS, ())),
        generation_tokens=[one for one in tokens if one.labels.get("mode") == "decode"],
    )


def _cached(found: Samples) -> float | None:
    """Return the tokens from the prefix cache; newer versions report its levels as well as their total."""
    levels = by_label(found, "cache_source", _CACHED)
    return levels.get("total", sum(levels.values())) if levels else None


_READS: Reads = {
    "running": (_RUNNING,),
    "waiting": Read(_QUEUES, lambda found: added(*(total(found, name) for name in _QUEUES))),
    "kv_cache_usage": (_USAGE,),
    "kv_cache_tokens": ("sglang:max_total_num_tokens",),
    "preemptions": Read((_RETRACTED, _RETRACTIONS), _retractions),
    "prompt_tokens": (_PROMPT,),
    "generation_tokens": (_OUTPUT,),
    "progress": (_STEP_TOKENS,),
    "finished": Read(
        (_FINISHED, _ABORTED), lambda found: known(finished=total(found, _FINISHED), abort=total(found, _ABORTED))
    ),
    "outcomes": Read(
        (_FINISHED, _ABORTED), lambda found: known(ok=total(found, _FINISHED), aborted=total(found, _ABORTED))
    ),
    "prefix_cache_queries": (_PROMPT,),
    "prefix_cache_hits": Read((_CACHED,), _cached),
    "estimated_flops": positive("sglang:estimated_flops_per_gpu_total"),
    "estimated_read_bytes": positive("sglang:estimated_read_bytes_per_gpu_total"),
    "estimated_write_bytes": positive("sglang:estimated_write_bytes_per_gpu_total"),
    "ttft": Read(tuple(parts((_TTFT,))), _ttft),
    **_OF_REQUESTS,
    "queue": (_QUEUE,),
    "prefill": Read(tuple(parts((_STAGES,))), lambda found: histogram(found, _STAGES, stage="prefill_forward")),
}
ENGINE = Engine(
    "sglang",
    ("sglang:",),
    _READS,
    facts=Facts(
        "SGLang",
        "0.5.1 to autumn 2026",
        Proof.SOURCES,
        Counted.AT_THE_END,
        ("finished", "", "aborted"),
        streamed_only=True,
        cells={
            "page": "with `--enable-metrics`",
            "preemptions": "yes, since December 2025",
            "each data-parallel engine": "by `dp_rank`",
            "model's name": "`model_name`",
            "progress": "tokens, including prompts'",
        },
    ),
    more=_more,
    unique=_unique,
    apart="dp_rank",
)

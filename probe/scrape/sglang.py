"""SGLang's /metrics page (`--enable-metrics`) to a ServerSnapshot: the only file with "sglang:" names. Pure.

Written from its source, 0.5.1 to 0.5.8 and the main branch of autumn 2026; no page was recorded. Schedulers of all
pipeline and tensor ranks may report the same values, so the largest counts, and only data-parallel ranks are added.
With priorities, the series without one is the total. Tokens are counted when a request ends, except in
`realtime_tokens_total`, which counts them by rank at each step, including prompt tokens.
"""

from collections.abc import Mapping, Sequence

from probe.core.snapshot import EngineSnapshot, ServerSnapshot
from probe.scrape.metrics_parser import (
    EngineMetrics,
    Samples,
    added,
    by_engine,
    by_label,
    histogram,
    histograms,
    known,
    largest,
    one_of_each,
    parts,
    total,
    values_of,
)

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "cp_rank", "pid")
# Of schedulers, as opposed to those of the process that tokenises, which are added up.
_GAUGES = (
    "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs", "sglang:token_usage",
    "sglang:max_total_num_tokens", "sglang:num_retracted_reqs", "sglang:num_retracted_requests_total",
    "sglang:realtime_tokens_total", "sglang:estimated_flops_per_gpu_total", "sglang:estimated_read_bytes_per_gpu_total",
    "sglang:estimated_write_bytes_per_gpu_total",
)  # fmt: skip
_COUNTERS = (
    "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:cached_tokens_total",
    "sglang:num_requests_total", "sglang:num_aborted_requests_total",
)  # fmt: skip
_STREAMED: Mapping[str, Sequence[str]] = {  # of one that is not, it is the whole answer's time
    "ttft": ("sglang:time_to_first_token_seconds",),
}
_HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("sglang:time_to_first_token_seconds",),
    "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),  # the second to March 2025
    "tpot": ("sglang:request_time_per_output_token_seconds",),
    "e2e": ("sglang:e2e_request_latency_seconds",),
    "prompt_length": ("sglang:prompt_tokens_histogram",),
    "output_length": ("sglang:generation_tokens_histogram",),
}
_QUEUE = "sglang:queue_time_seconds"  # by scheduler
_STAGES = "sglang:per_stage_req_latency_seconds"


def _snapshot(found: Samples) -> ServerSnapshot:
    scheduled = {
        name: [one for one in its if not one.labels.get("priority") or name in _COUNTERS] for name, its in found.items()
    }
    unique = one_of_each(scheduled, _RANKS)
    retracted = total(unique, "sglang:num_retracted_requests_total")
    if retracted is None and unique.get("sglang:num_retracted_reqs"):
        retracted = 0.0  # the counter appears with the first one
    finished = total(found, "sglang:num_requests_total")
    aborted = total(found, "sglang:num_aborted_requests_total")
    every = histograms(found, _HISTOGRAMS) | histograms(found, _STREAMED, is_streaming="true")
    for key, one in (
        ("queue", histogram(unique, _QUEUE)),
        ("prefill", histogram(unique, _STAGES, stage="prefill_forward")),
    ):
        if one is not None:
            every[key] = one
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        running=total(unique, "sglang:num_running_reqs"),
        waiting=added(total(unique, "sglang:num_queue_reqs"), total(unique, "sglang:num_grammar_queue_reqs")),
        kv_cache_usage=largest(unique, "sglang:token_usage"),
        preemptions=retracted,
        prompt_tokens=total(found, "sglang:prompt_tokens_total"),
        generation_tokens=total(found, "sglang:generation_tokens_total"),
        finished=known(finished=finished, abort=aborted),
        outcomes=known(ok=finished, aborted=aborted),
        prefix_cache_queries=total(found, "sglang:prompt_tokens_total"),
        prefix_cache_hits=_cached(found),
        kv_cache_tokens=total(unique, "sglang:max_total_num_tokens"),
        estimated_flops=total(unique, "sglang:estimated_flops_per_gpu_total") or None,
        estimated_read_bytes=total(unique, "sglang:estimated_read_bytes_per_gpu_total") or None,
        estimated_write_bytes=total(unique, "sglang:estimated_write_bytes_per_gpu_total") or None,
        engines=max(len({one.labels.get("dp_rank", "") for one in unique.get("sglang:num_running_reqs", ())}), 1),
        by_engine=_by_rank(unique),
        models=values_of("model_name", unique.get("sglang:num_running_reqs", ())),
        progress=total(unique, "sglang:realtime_tokens_total"),
        histograms=every,
    )


def _by_rank(unique: Samples) -> dict[str, EngineSnapshot]:
    """Return the data-parallel ranks separately. The count of retractions appears with a rank's first one."""
    tokens = unique.get("sglang:realtime_tokens_total", ())
    zeros = [one._replace(value=0.0) for one in unique.get("sglang:num_retracted_reqs", ())]
    return by_engine(
        "dp_rank",
        running=unique.get("sglang:num_running_reqs", ()),
        waiting=(*unique.get("sglang:num_queue_reqs", ()), *unique.get("sglang:num_grammar_queue_reqs", ())),
        kv_cache_usage=unique.get("sglang:token_usage", ()),
        preemptions=(*zeros, *unique.get("sglang:num_retracted_requests_total", ())),
        generation_tokens=[one for one in tokens if one.labels.get("mode") == "decode"],
    )


def _cached(found: Samples) -> float | None:
    """Return the tokens from the prefix cache; newer versions report its levels beside their total."""
    levels = by_label(found, "cache_source", "sglang:cached_tokens_total")
    return levels.get("total", sum(levels.values())) if levels else None


ENGINE = EngineMetrics(
    "sglang",
    ("sglang:",),
    frozenset(
        (*_GAUGES, *_COUNTERS, *parts(name for its in _HISTOGRAMS.values() for name in its), *parts((_QUEUE, _STAGES)))
    ),
    _snapshot,
)

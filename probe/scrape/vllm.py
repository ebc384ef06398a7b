"""vLLM's /metrics page, from 0.8 on, to a ServerSnapshot. The only file with "vllm:" names. Pure.

Names moved between versions; each value is looked for under today's name first. Values are summed over
the engines of a data-parallel server, except KV cache usage: the fullest engine is the one that preempts.

Several API servers of one vLLM share a page. The page then has no process_*, counters are sums, and gauges have
the last value of any server; in versions that label gauges by `pid` some are outdated, and the largest counts.
"""

import math
from collections.abc import Mapping, Sequence

from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot
from probe.scrape import http_answers, vllm_steps
from probe.scrape.metrics_parser import (
    MAX_VALUE,
    MAX_VALUES,
    EngineMetrics,
    Samples,
    added,
    by_engine,
    by_label,
    first,
    histograms,
    known,
    largest,
    one_of_each,
    parts,
    total,
    values_of,
)

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
WAITING_BY_REASON = ("vllm:num_requests_waiting_by_reason",)  # from 0.20
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # a ratio, despite the name; the second to 0.11
PREEMPTIONS = ("vllm:num_preemptions_total",)
REJECTIONS = ("vllm:admission_rejections_total",)  # from 0.32
CORRUPTED = ("vllm:corrupted_requests_total",)  # NaN in logits; only with VLLM_COMPUTE_NANS_IN_LOGITS=1
PROMPT_TOKENS = ("vllm:prompt_tokens_total",)
GENERATION_TOKENS = ("vllm:generation_tokens_total",)
# Counts errors and aborts too, by finished_reason; but not clients that leave (measured on 0.32).
FINISHED = ("vllm:request_success_total",)
_NOT_OK = ("error", "abort")
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
EXTERNAL_QUERIES = ("vllm:external_prefix_cache_queries_total",)
EXTERNAL_HITS = ("vllm:external_prefix_cache_hits_total",)  # counts a transfer that then failed, too (seen on 0.32)
# Of the NIXL connector, on the server that fetches; the last one on the server that computed.
KV_TRANSFERS = ("vllm:nixl_xfer_time_seconds_count",)
KV_TRANSFER_SECONDS = ("vllm:nixl_xfer_time_seconds_sum",)
KV_TRANSFER_BYTES = ("vllm:nixl_bytes_transferred_sum",)
KV_TRANSFER_FAILURES = ("vllm:nixl_num_failed_transfers_total",)
KV_TRANSFERS_EXPIRED = ("vllm:nixl_num_kv_expired_reqs_total",)
ADAPTERS = ("vllm:lora_requests_info",)
# Of speculative decoding; the first one from 0.9 on, and only where there is speculation.
DRAFTS = ("vllm:spec_decode_num_drafts_total",)
DRAFT_TOKENS = ("vllm:spec_decode_num_draft_tokens_total",)
ACCEPTED_TOKENS = ("vllm:spec_decode_num_accepted_tokens_total",)
SLEEP_STATE = ("vllm:engine_sleep_state",)  # from 0.11: each engine has 0 or 1 for awake and for the levels of sleep
SLEEP_OPERATIONS = ("vllm:sleep_mode_operations_in_flight",)  # from 0.32, once there has been one
CACHE_CONFIG = ("vllm:cache_config_info",)
# Of one GPU, whatever the number of them that an engine has. Zero without --enable-mfu-metrics (seen on 0.32).
ESTIMATED_FLOPS = ("vllm:estimated_flops_per_gpu_total",)
ESTIMATED_READ_BYTES = ("vllm:estimated_read_bytes_per_gpu_total",)
ESTIMATED_WRITE_BYTES = ("vllm:estimated_write_bytes_per_gpu_total",)
# The labels of cache_config_info that say how the server was started. Left out: num_gpu_blocks, kv_cache_memory_bytes
# and what follows from them. They vary with the memory that is free at the start, so that every restart would be
# another server; and a KV cache that has shrunk is a cause of a lower knee, which a new baseline would hide.
FLAGS = (
    "block_size", "cache_dtype", "cpu_offload_gb", "enable_prefix_caching", "gpu_memory_utilization",
    "kv_cache_dtype_skip_layers", "kv_offloading_size", "num_gpu_blocks_override", "sliding_window", "swap_space",
)  # fmt: skip
HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),  # the second to 0.14
    "tpot": ("vllm:request_time_per_output_token_seconds",),  # from 0.11
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "preemptions": ("vllm:request_num_preemptions",),  # a request; from 0.30
    "prompt_length": ("vllm:request_prompt_tokens",),
    "output_length": ("vllm:request_generation_tokens",),
    "iteration_tokens": ("vllm:iteration_tokens_total",),
    # Of blocks drawn by chance, with --kv-cache-metrics: how long they were there, unused before they went, and between
    # two uses.
    "kv_block_lifetime": ("vllm:kv_block_lifetime_seconds",),
    "kv_block_idle": ("vllm:kv_block_idle_before_evict_seconds",),
    "kv_block_reuse_gap": ("vllm:kv_block_reuse_gap_seconds",),
}
_PLAIN = (
    *RUNNING, *WAITING, *WAITING_BY_REASON, *KV_USAGE, *PREEMPTIONS, *REJECTIONS, *CORRUPTED, *PROMPT_TOKENS,
    *GENERATION_TOKENS, *FINISHED, *http_answers.NAMES, *PREFIX_QUERIES, *PREFIX_HITS, *CACHE_CONFIG, *ADAPTERS,
    *EXTERNAL_QUERIES, *EXTERNAL_HITS, *KV_TRANSFERS, *KV_TRANSFER_SECONDS, *KV_TRANSFER_BYTES, *KV_TRANSFER_FAILURES,
    *KV_TRANSFERS_EXPIRED,
    *DRAFTS, *DRAFT_TOKENS, *ACCEPTED_TOKENS, *ESTIMATED_FLOPS, *ESTIMATED_READ_BYTES, *ESTIMATED_WRITE_BYTES,
    *SLEEP_STATE, *SLEEP_OPERATIONS, *vllm_steps.NAMES,
)  # fmt: skip
_LATEST_S = 3e9  # the year 2065: a time beyond it is a sum of several


def _snapshot(found: Samples) -> ServerSnapshot:
    if any("pid" in sample.labels for sample in first(found, RUNNING)):
        found = one_of_each(found, ("pid",))
    drafts = total(found, *DRAFTS)
    external = total(found, *EXTERNAL_QUERIES) or None  # zero on the page of every server without a connector
    every = histograms(found, HISTOGRAMS)
    finished = by_label(found, "finished_reason", *FINISHED)
    return ServerSnapshot(
        at_ns=0,
        wall_s=0.0,
        engine="vllm",
        running=total(found, *RUNNING),
        waiting=total(found, *WAITING),
        waiting_by_reason=by_label(found, "reason", *WAITING_BY_REASON),
        kv_cache_usage=largest(found, *KV_USAGE),
        preemptions=total(found, *PREEMPTIONS),
        rejections=total(found, *REJECTIONS),
        corrupted=total(found, *CORRUPTED),
        prompt_tokens=total(found, *PROMPT_TOKENS),
        generation_tokens=total(found, *GENERATION_TOKENS),
        finished=finished,
        outcomes=_outcomes(found, finished),
        http_errors=http_answers.errors(found),
        prefix_cache_queries=total(found, *PREFIX_QUERIES),
        prefix_cache_hits=total(found, *PREFIX_HITS),
        external_cache_queries=external,
        external_cache_hits=total(found, *EXTERNAL_HITS) if external is not None else None,
        kv_transfers=total(found, *KV_TRANSFERS),
        kv_transfer_seconds=total(found, *KV_TRANSFER_SECONDS),
        kv_transfer_bytes=total(found, *KV_TRANSFER_BYTES),
        kv_transfer_failures=total(found, *KV_TRANSFER_FAILURES),
        kv_transfers_expired=total(found, *KV_TRANSFERS_EXPIRED),
        kv_cache_tokens=_kv_cache_tokens(found),
        estimated_flops=total(found, *ESTIMATED_FLOPS) or None,
        estimated_read_bytes=total(found, *ESTIMATED_READ_BYTES) or None,
        estimated_write_bytes=total(found, *ESTIMATED_WRITE_BYTES) or None,
        engines=max(len(first(found, RUNNING)), 1),
        by_engine=_by_engine(found),
        models=values_of("model_name", first(found, RUNNING)),
        is_asleep=_is_asleep(found),
        progress=_progress(found, every),
        drafts=drafts,
        draft_tokens=total(found, *DRAFT_TOKENS) if drafts is not None else None,
        accepted_tokens=total(found, *ACCEPTED_TOKENS) if drafts is not None else None,
        adapters=_adapters(found),
        flags=_flags(found),
        histograms=every,
        step_sums=vllm_steps.step_sums(found),
        scheduler_limits=vllm_steps.scheduler_limits(found),
    )


def _outcomes(found: Samples, finished: Mapping[str, float]) -> dict[str, float]:
    """Return the requests by what became of them, as far as they are counted."""
    return known(
        ok=sum(count for reason, count in finished.items() if reason not in _NOT_OK) if finished else None,
        # A rejected request has reached no engine, so it has not finished.
        failed=added(finished.get("error"), total(found, *REJECTIONS)),
        aborted=finished.get("abort"),
    )


def _progress(found: Samples, every: Mapping[str, Histogram]) -> float | None:
    """Return a number that grows while the engine works.

    A step is counted with its outputs: one that only reads on in a long prompt has none (0.32, async_llm.py and
    scheduler.py), and then the KV cache's use alone shows that the engine lives.
    """
    steps = every["iteration_tokens"].count if "iteration_tokens" in every else None
    return added(total(found, *GENERATION_TOKENS), steps)


def _by_engine(found: Samples) -> dict[str, EngineSnapshot]:
    return by_engine(
        "engine",
        running=first(found, RUNNING),
        waiting=first(found, WAITING),
        kv_cache_usage=first(found, KV_USAGE),
        preemptions=first(found, PREEMPTIONS),
        generation_tokens=first(found, GENERATION_TOKENS),
    )


def _is_asleep(found: Samples) -> bool | None:
    """Return whether all engines sleep, at any level (0 is a pause), or are about to. None: the page does not show it.

    The state changes when the weights have left the GPU; the requests that ran were aborted seconds before.
    """
    awake = largest(found, *SLEEP_STATE, sleep_state="awake")
    is_falling_asleep = bool(total(found, *SLEEP_OPERATIONS, operation="sleep"))
    return None if awake is None else awake == 0 or is_falling_asleep


def _adapters(found: Samples) -> tuple[str, ...]:
    """Return the LoRA adapters that run. The value is when that was so, and series of the past stay: the latest counts.

    Several API servers, each of which knows its own requests alone, have the sum of their times: it tells nothing.
    """
    latest = max(first(found, ADAPTERS), key=lambda sample: sample.value, default=None)
    if latest is None or latest.value > _LATEST_S:
        return ()
    running = latest.labels.get("running_lora_adapters", "").split(",")
    return tuple(sorted({name.strip()[:MAX_VALUE] for name in running if name.strip()}))[:MAX_VALUES]


def _kv_cache_tokens(found: Samples) -> float | None:
    """Return the KV cache size of all engines in tokens: blocks times block size, from cache_config_info's labels.

    Each data-parallel engine has a line, and each line the blocks of all engines: vLLM adds them up before (0.32,
    v1/engine/core_client.py).
    """
    tokens = 0.0
    for sample in first(found, CACHE_CONFIG):
        try:
            tokens = max(tokens, float(sample.labels["num_gpu_blocks"]) * float(sample.labels["block_size"]))
        except (KeyError, ValueError):
            return None
    return tokens if math.isfinite(tokens) and tokens > 0 else None


def _flags(found: Samples) -> dict[str, str]:
    """Return the server's start options, as far as the page shows them; all its engines have the same."""
    engines = first(found, CACHE_CONFIG)
    if not engines:
        return {}
    labels = engines[0].labels
    shown = {name: labels[name][:MAX_VALUE] for name in FLAGS if labels.get(name, "None") not in ("None", "[]")}
    return shown | {"engines": str(len(engines))}


ENGINE = EngineMetrics(
    "vllm",
    ("vllm:",),
    frozenset((*_PLAIN, *parts(name for names in HISTOGRAMS.values() for name in names))),
    _snapshot,
)

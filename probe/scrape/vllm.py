"""vLLM's /metrics page, from 0.8 on, to a ServerSnapshot. The only file with "vllm:" names. Pure.

Names moved between versions; each value is looked for under today's name first. Values are summed over
the engines of a data-parallel server, except KV cache usage: the fullest engine is the one that preempts.

Several API servers of one vLLM share a page. The page then has no process_*, counters are sums, and gauges have
the last value of any server; in versions that label gauges by `pid` some are outdated, and the largest counts.

The page also has the series of Kneewatch's plugin for vLLM (exporters/vllm_plugin), and answers by status, as
prometheus-fastapi-instrumentator counts them: an answer at its end, by status class, so that 429 is "4xx" like any
fault of the client, and one that a client does not wait for is a 2xx. Before the first answer there is no such series.

On the page of a Ray node (Ray Serve, `RayPrometheusStatLogger`) the colon in vLLM's names is replaced, and there are
more labels, `ReplicaId` among them. The page has all replicas of the node; each is an engine, as a data-parallel one
is. Processes report to it every ten seconds (`metrics_report_interval_ms`).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from prometheus_client.samples import Sample

from probe.core.snapshot import EngineSnapshot, StepSums
from probe.core.vllm_flags import FLAGS, PLUGIN_FLAGS
from probe.scrape.kv_connectors import KV_TRANSFERS
from probe.scrape.metrics_parser import (
    MAX_VALUE,
    MAX_VALUES,
    Samples,
    added,
    by_engine,
    by_label,
    first,
    histogram,
    known,
    largest,
    one_of_each,
    parts,
    total,
    values_of,
)
from probe.scrape.reads import Counted, Engine, Facts, Proof, Read, Reads, beside, labelled, positive

_PLUGIN_STEPS = "kneewatch_vllm_steps_total"
_STEP_SUMS = {
    "seconds": "kneewatch_vllm_step_seconds_total",
    "requests": "kneewatch_vllm_step_requests_total",
    "decode_tokens": "kneewatch_vllm_step_decode_tokens_total",
    "prefill_tokens": "kneewatch_vllm_step_prefill_tokens_total",
    "kv_tokens": "kneewatch_vllm_step_kv_tokens_total",
}
_PLUGIN_LIMITS = "kneewatch_vllm_scheduler_limit"
_OLDEST, _OLDEST_UNANSWERED = "kneewatch_vllm_oldest_request_seconds", "kneewatch_vllm_oldest_unanswered_seconds"
STEP_SERIES = (_PLUGIN_STEPS, *_STEP_SUMS.values(), _PLUGIN_LIMITS)
_MAX_LIMIT = 10**9
_MOST = 1e18  # blocks, tokens or bytes: more than any server has, and products of such numbers are finite


def _step_sums(found: Samples) -> dict[str, StepSums]:
    """Return the sums over steps of all engines by their label. Incomplete sums are left out."""
    steps = by_label(found, "up_to_tokens", _PLUGIN_STEPS)
    sums = {field: by_label(found, "up_to_tokens", name) for field, name in _STEP_SUMS.items()}
    return {
        bound: StepSums(steps=count, **{field: of[bound] for field, of in sums.items()})
        for bound, count in steps.items()
        if all(bound in of for of in sums.values())
    }


def _scheduler_limits(found: Samples) -> Mapping[str, int]:
    """Return the scheduler's limits by flag, by the first engine: all engines have the same."""
    limits: dict[str, int] = {}
    for sample in first(found, (_PLUGIN_LIMITS,)):
        flag = sample.labels.get("flag", "")
        if flag in PLUGIN_FLAGS and 1 <= sample.value <= _MAX_LIMIT:
            limits.setdefault(flag, int(sample.value))
    return limits


HTTP_ANSWERS = ("http_requests_total",)
# POST requests that make an engine work. Adapters are loaded at a path of the same beginning.
_GENERATING, _NOT_GENERATING = ("/v1/", "/generate", "/invocations", "/inference/v1/generate"), "_lora_adapter"


def _http_errors(found: Samples) -> float | None:
    """Return the answers with status 5xx to requests that generate: 0 if there is none among the answers."""
    answers = [answer for answer in first(found, HTTP_ANSWERS) if "handler" in answer.labels]  # not another program's
    return sum(answer.value for answer in answers if _is_http_error(answer.labels)) if answers else None


def _is_http_error(labels: Mapping[str, str]) -> bool:
    handler = labels.get("handler", "")
    is_generating = handler.startswith(_GENERATING) and not handler.endswith(_NOT_GENERATING)
    return is_generating and labels.get("method") == "POST" and labels.get("status", "").startswith("5")


RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # a ratio, despite the name; the second to 0.11
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_REJECTIONS = ("vllm:admission_rejections_total",)  # from 0.32
_GENERATION_TOKENS = ("vllm:generation_tokens_total",)
# Counts errors and aborts too, by finished_reason; but not clients that leave (measured on 0.32).
_FINISHED = ("vllm:request_success_total",)
_NOT_OK = ("error", "abort")
# Zero on the page of every server without a connector.
_EXTERNAL_QUERIES = positive("vllm:external_prefix_cache_queries_total")
_ADAPTERS = ("vllm:lora_requests_info",)
# Of speculative decoding, from 0.9 on, and only where there is speculation.
_DRAFTS = ("vllm:spec_decode_num_drafts_total",)
_SLEEP_STATE = ("vllm:engine_sleep_state",)  # from 0.11: each engine has 0 or 1 for awake and for the levels of sleep
_SLEEP_OPERATIONS = ("vllm:sleep_mode_operations_in_flight",)  # from 0.32, once there has been one
CACHE_CONFIG = ("vllm:cache_config_info",)
_STEPS = "vllm:iteration_tokens_total"
_LATEST_S = 3e9  # the year 2065: a time beyond it is a sum of several
_LABELS = {flag.label: flag for flag in FLAGS if flag.label}  # of cache_config_info


def _outcomes(found: Samples) -> dict[str, float]:
    """Return the requests by outcome; an outcome that the page does not count is absent."""
    finished = by_label(found, "finished_reason", *_FINISHED)
    return known(
        ok=sum(count for reason, count in finished.items() if reason not in _NOT_OK) if finished else None,
        # A rejected request has reached no engine, so it has not finished.
        failed=added(finished.get("error"), total(found, *_REJECTIONS)),
        aborted=finished.get("abort"),
    )


def _progress(found: Samples) -> float | None:
    """Return a number that grows while the engine works.

    A step is counted with its outputs: one that only reads on in a long prompt has none (0.32, async_llm.py and
    scheduler.py), and then the KV cache's use alone shows that the engine lives.
    """
    steps = histogram(found, _STEPS)
    return added(total(found, *_GENERATION_TOKENS), steps.count if steps is not None else None)


def _by_engine(found: Samples) -> dict[str, EngineSnapshot]:
    return by_engine(
        "engine",
        running=first(found, RUNNING),
        waiting=first(found, _WAITING),
        kv_cache_usage=first(found, _KV_USAGE),
        preemptions=first(found, _PREEMPTIONS),
        generation_tokens=first(found, _GENERATION_TOKENS),
    )


def _is_asleep(found: Samples) -> bool | None:
    """Return whether all engines sleep, at any level (0 is a pause), or are about to. None: the page does not show it.

    The state changes when the weights have left the GPU; the requests that ran were aborted seconds before.
    """
    awake = largest(found, *_SLEEP_STATE, sleep_state="awake")
    is_falling_asleep = bool(total(found, *_SLEEP_OPERATIONS, operation="sleep"))
    return is_falling_asleep or (None if awake is None else awake == 0)


def _adapters(found: Samples) -> tuple[str, ...]:
    """Return the LoRA adapters that run. The value is when that was so, and series of the past stay: the latest counts.

    Several API servers report the sum of their timestamps, which is useless: each knows its own requests alone.
    """
    latest = max(first(found, _ADAPTERS), key=lambda sample: sample.value, default=None)
    if latest is None or latest.value > _LATEST_S:
        return ()
    running = latest.labels.get("running_lora_adapters", "").split(",")
    return tuple(sorted({name.strip()[:MAX_VALUE] for name in running if name.strip()}))[:MAX_VALUES]


def _label(sample: Sample, name: str) -> float | None:
    """Return a label that is a number above 0, and one that a server can have; None for any other, such as "None"."""
    try:
        value = float(sample.labels[name])
    except (KeyError, ValueError):
        return None
    return value if 0 < value <= _MOST else None


def _of_all_engines(found: Samples, name: str) -> float | None:
    """Return the sum of a label of cache_config_info that each engine has for itself; None if one has none."""
    values = [_label(line, name) for line in first(found, CACHE_CONFIG)]
    return added(*values) if values and None not in values else None


def _block_size(line: Sample) -> float | None:
    return _label(line, "effective_attention_block_size") or _label(line, "block_size")


def _kv_block_tokens(found: Samples) -> float | None:
    """Return the tokens that the blocks of all engines have room for, if all layers share them.

    Each data-parallel engine has a line, and each line the blocks of all engines: vLLM adds them up before (0.32,
    v1/engine/core_client.py). Replicas on the page of a Ray node each have their own. With decode context parallelism
    a block holds the tokens of `effective_attention_block_size`.
    """
    servers: dict[str, float] = {}
    for line in first(found, CACHE_CONFIG):
        blocks = _label(line, "num_gpu_blocks")
        size = _block_size(line)
        if blocks is None or size is None:
            return None
        replica = line.labels.get("ReplicaId", "")
        servers[replica] = max(servers.get(replica, 0.0), blocks * size)
    return sum(servers.values()) or None


def _kv_cache_tokens(found: Samples) -> float | None:
    """Return the size of the KV cache of all engines, as vLLM states it for requests of max_model_len.

    In a model with several kinds of attention a request takes blocks of each kind's group, so that fewer tokens fit
    than blocks have room for (vllm-project/vllm#51163). Versions without that label: the room of the blocks.
    """
    stated = _of_all_engines(found, "kv_cache_size_tokens")
    return _kv_block_tokens(found) if stated is None else stated


def _kv_longest_requests(found: Samples) -> float | None:
    """Return how many requests of max_model_len fit if each takes more blocks than its tokens fill: of several kinds.

    None where one kind of attention uses the cache, whose size then is the same for all requests.
    """
    size, blocks = _of_all_engines(found, "kv_cache_size_tokens"), _kv_block_tokens(found)
    requests = _of_all_engines(found, "kv_cache_max_concurrency")
    if size is None or blocks is None or requests is None:
        return None
    (block, *_) = [_block_size(line) or 0.0 for line in first(found, CACHE_CONFIG)]
    rounded_up = math.ceil(round(size / requests) / block) * block
    return None if abs(blocks / requests - rounded_up) < block / 2 else requests


def _kv_cache_bytes(found: Samples) -> float | None:
    """Return the bytes of KV cache on each GPU if they were set; unknown if the blocks were counted out instead."""
    lines = first(found, CACHE_CONFIG)
    if any(_label(line, "num_gpu_blocks_override") for line in lines):
        return None
    values = [_label(line, "kv_cache_memory_bytes") for line in lines]
    known_bytes = [value for value in values if value is not None]
    return max(known_bytes) if known_bytes and None not in values else None


def _flags(found: Samples) -> dict[str, str]:
    """Return the start options that the page shows; all engines have the same."""
    engines = first(found, CACHE_CONFIG)
    if not engines:
        return {}
    labels = engines[0].labels
    shown = {
        flag.name: labels[label][:MAX_VALUE]
        for label, flag in _LABELS.items()
        if labels.get(label, "None") not in ("None", "[]", flag.default)
    }
    return shown | {"engines": str(len(engines))}


def _more(found: Samples) -> Mapping[str, Any]:
    return {
        "engines": max(len(first(found, RUNNING)), 1),
        "by_engine": _by_engine(found),
        "models": values_of("model_name", first(found, RUNNING)),
        "is_asleep": _is_asleep(found),
        "adapters": _adapters(found),
        "flags": _flags(found),
        "step_sums": _step_sums(found),
        "scheduler_limits": _scheduler_limits(found),
    }


def _seen(label: str, name: str) -> Read:
    """Read a counter by its label without the parts at zero: a page has a part for each tier that a cache may have."""
    return Read((name,), lambda found: {part: value for part, value in by_label(found, label, name).items() if value})


def _unique(found: Samples) -> Samples:
    return one_of_each(found, ("pid",)) if any("pid" in one.labels for one in first(found, RUNNING)) else found


READS: Reads = {
    "running": RUNNING,
    "waiting": _WAITING,
    "waiting_by_reason": labelled("reason", "vllm:num_requests_waiting_by_reason"),  # from 0.20
    "kv_cache_usage": _KV_USAGE,
    "kv_cache_tokens": Read(CACHE_CONFIG, _kv_cache_tokens),
    "kv_block_tokens": Read(CACHE_CONFIG, _kv_block_tokens),
    "kv_longest_requests": Read(CACHE_CONFIG, _kv_longest_requests),
    "kv_cache_bytes": Read(CACHE_CONFIG, _kv_cache_bytes),
    "preemptions": _PREEMPTIONS,
    "rejections": _REJECTIONS,
    "rejections_by_reason": labelled("reason", *_REJECTIONS),
    "corrupted": ("vllm:corrupted_requests_total",),  # NaN in logits; only with VLLM_COMPUTE_NANS_IN_LOGITS=1
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": _GENERATION_TOKENS,
    "progress": Read((*_GENERATION_TOKENS, *parts((_STEPS,))), _progress),
    "finished": labelled("finished_reason", *_FINISHED),
    "outcomes": Read((*_FINISHED, *_REJECTIONS), _outcomes),
    "http_errors": Read(HTTP_ANSWERS, _http_errors),
    "prefix_cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "external_cache_queries": _EXTERNAL_QUERIES,
    # Counts a transfer that then failed, too (seen on 0.32).
    "external_cache_hits": beside(_EXTERNAL_QUERIES, "vllm:external_prefix_cache_hits_total"),
    "prompt_tokens_by_source": _seen("source", "vllm:prompt_tokens_by_source_total"),
    "cached_tokens_by_source": _seen("source", "vllm:prompt_tokens_cached_by_source_total"),
    "kv_fetches": labelled("stage", "vllm:num_requests_kv_fetch_by_stage"),  # from 0.32, where caches are fetched
    **KV_TRANSFERS,
    "prompt_requests": labelled("up_to_tokens", "kneewatch_vllm_prompt_requests_total"),
    "prompt_queue_seconds": labelled("up_to_tokens", "kneewatch_vllm_prompt_queue_seconds_total"),
    "prompt_prefill_seconds": labelled("up_to_tokens", "kneewatch_vllm_prompt_prefill_seconds_total"),
    "oldest_request": (_OLDEST,),
    "oldest_unanswered": (_OLDEST_UNANSWERED,),
    "drafts": _DRAFTS,
    "draft_tokens": beside(_DRAFTS, "vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": beside(_DRAFTS, "vllm:spec_decode_num_accepted_tokens_total"),
    # Of one GPU, whatever the number of them that an engine has. Zero without --enable-mfu-metrics (seen on 0.32).
    "estimated_flops": positive("vllm:estimated_flops_per_gpu_total"),
    "estimated_read_bytes": positive("vllm:estimated_read_bytes_per_gpu_total"),
    "estimated_write_bytes": positive("vllm:estimated_write_bytes_per_gpu_total"),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),  # the second to 0.14
    "tpot": ("vllm:request_time_per_output_token_seconds",),  # from 0.11
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "preemptions_per_request": ("vllm:request_num_preemptions",),  # from 0.30
    "prompt_length": ("vllm:request_prompt_tokens",),
    "output_length": ("vllm:request_generation_tokens",),
    "iteration_tokens": (_STEPS,),
    # Of blocks drawn by chance, with --kv-cache-metrics: how long they were there, unused before they went, and between
    # two uses.
    "kv_block_lifetime": ("vllm:kv_block_lifetime_seconds",),
    "kv_block_idle": ("vllm:kv_block_idle_before_evict_seconds",),
    "kv_block_reuse_gap": ("vllm:kv_block_reuse_gap_seconds",),
}
ENGINE = Engine(
    "vllm",
    ("vllm:",),
    READS,
    facts=Facts(
        "vLLM",
        "0.8 to 0.32; 0.33 by its sources",
        Proof.RECORDED,
        Counted.EACH_STEP,
        (
            "finished for any reason but `error` and `abort`",
            "finished with `error`, or rejected; 5xx of POST requests that generate, if there are more",
            "finished with `abort`. vLLM 0.32 counts no client that leaves (measured), so this stays 0",
        ),
        cells={
            "each data-parallel engine": "by `engine`",
            "model's name": "`model_name`",
            "progress": "tokens and steps",
            "guarded load": "yes",
            "forecast, verified capacity": "yes",
        },
    ),
    more=_more,
    also=(*_ADAPTERS, *_SLEEP_STATE, *_SLEEP_OPERATIONS, *STEP_SERIES),
    unique=_unique,
    apart="engine",
)


_RAY_LINE = re.compile(r"^ray_vllm_(\w+)\{(.*)\} ", re.MULTILINE)
_RAY_REPLICA = re.compile(r'(?:^|,)ReplicaId="([^"]*)"')
_RAY_ENGINE = re.compile(r'(^|,)engine="[^"]*"')
_RAY_SIGN = "ray_vllm_"
RAY_DELAY_S = 15.0


def is_of_ray(page: str) -> bool:
    """Return whether a page has vLLM's series by Ray's names."""
    return page.startswith(_RAY_SIGN) or f"\n{_RAY_SIGN}" in page


def as_vllm(page: str) -> str:
    """Return the page with vLLM's own names. With several replicas, `engine` is the replica's id."""
    labels = {found[2] for found in _RAY_LINE.finditer(page)}
    replicas = {found[1] for text in labels if (found := _RAY_REPLICA.search(text))}
    new = {text: _with_replica(text) if len(replicas) > 1 else text for text in labels}
    return _RAY_LINE.sub(lambda found: f"vllm:{found[1]}{{{new[found[2]]}}} ", page)


def _with_replica(labels: str) -> str:
    found = _RAY_REPLICA.search(labels)
    if found is None:
        return labels
    engine = f'engine="{found[1]}"'
    return (
        _RAY_ENGINE.sub(lambda before: before[1] + engine, labels)
        if _RAY_ENGINE.search(labels)
        else f"{labels},{engine}"
    )

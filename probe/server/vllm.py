"""vLLM's /metrics page to a ServerSnapshot. The only file with "vllm:" names. Pure.

Names moved between versions; each value is looked for under today's name first. Values are summed over
the engines of a data-parallel server, but for the KV cache, where the fullest engine is the one that preempts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from probe.records import Histogram, ServerSnapshot

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
WAITING_BY_REASON = ("vllm:num_requests_waiting_by_reason",)  # from 0.20
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # a ratio, despite the name; the second to 0.11
PREEMPTIONS = ("vllm:num_preemptions_total",)
REJECTIONS = ("vllm:admission_rejections_total",)  # from 0.32
PROMPT_TOKENS = ("vllm:prompt_tokens_total",)
GENERATION_TOKENS = ("vllm:generation_tokens_total",)
FINISHED = ("vllm:request_success_total",)  # counts errors and aborts too, by finished_reason
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
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
    "prompt_length": ("vllm:request_prompt_tokens",),
    "output_length": ("vllm:request_generation_tokens",),
    "iteration_tokens": ("vllm:iteration_tokens_total",),
}
_PLAIN = (
    *RUNNING, *WAITING, *WAITING_BY_REASON, *KV_USAGE, *PREEMPTIONS, *REJECTIONS, *PROMPT_TOKENS,
    *GENERATION_TOKENS, *FINISHED, *PREFIX_QUERIES, *PREFIX_HITS, *CACHE_CONFIG,
    *ESTIMATED_FLOPS, *ESTIMATED_READ_BYTES, *ESTIMATED_WRITE_BYTES,
)  # fmt: skip
_PARTS = tuple(name + part for names in HISTOGRAMS.values() for name in names for part in ("_bucket", "_sum"))
_WANTED = frozenset((*_PLAIN, *_PARTS))
# Every bucket and every value of a label is a series of ours: a few times what vLLM has.
_MAX_BUCKETS, _MAX_VALUES, _MAX_VALUE = 100, 20, 64
_MAX_LINE = 16_384  # the parser's time grows with the square of a line's labels; vLLM's longest line has 1 to 2 kB
# What a forecast needs of the past: gauges, counters, and of histograms their sums and counts.
_FORECAST_HISTOGRAMS = ("ttft", "itl", "prefill", "prompt_length", "iteration_tokens")
HISTORY = (
    *RUNNING, *WAITING, *KV_USAGE, *PREEMPTIONS, *PROMPT_TOKENS, *GENERATION_TOKENS, *PREFIX_HITS, *CACHE_CONFIG,
    *ESTIMATED_FLOPS, *ESTIMATED_READ_BYTES, *ESTIMATED_WRITE_BYTES,
    *(name + part for key in _FORECAST_HISTOGRAMS for name in HISTOGRAMS[key] for part in ("_sum", "_count")),
)  # fmt: skip
_SCRAPED = "kneewatch_scraped"
_Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]


def history_query(matchers: str) -> str:
    """PromQL for HISTORY, and beside it the times of the scrapes.

    A range query gives what was scraped last before each of its steps, and not when: with scrapes every 20 s, the
    tokens of 20 s would seem to be of one step of 15 s, and none of another.
    """
    names = f'{{__name__=~"{"|".join(HISTORY)}", {matchers}}}'
    # `or` compares labels without the name, so the times need a label that nothing on its left has.
    return f'{names} or label_replace(timestamp({RUNNING[0]}{{{matchers}}}), "{_SCRAPED}", "at", "", "")'


def from_history(series: Iterable[_Series]) -> list[ServerSnapshot]:
    """A snapshot for each scrape in the answer to `history_query`: labels (with the name as `__name__`) and values by
    wall time, in seconds. Oldest first; a moment at which a server's gauges are missing is left out.
    """
    read: dict[float, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    scraped: dict[float, float] = {}
    for labels, values in series:
        own = {key: value for key, value in labels.items() if key != "__name__"}
        name = labels.get("__name__", "")
        base = name.removesuffix("_count")
        if base != name and any(base in names for names in HISTOGRAMS.values()):
            name, own = f"{base}_bucket", {**own, "le": "+Inf"}  # all of its samples lie below infinity
        if _SCRAPED in labels:
            scraped.update(values)
            continue
        for at_s, value in values:
            if math.isfinite(value):
                read[at_s][name].append(Sample(name, own, value))
    moments = sorted(at_s for at_s, samples in read.items() if _first(samples, RUNNING))
    found: dict[float, ServerSnapshot] = {}
    for at_s in moments:
        scraped_s = scraped.get(at_s, at_s)
        if scraped_s not in found:
            found[scraped_s] = _snapshot(read[at_s], round(scraped_s * 1e9), scraped_s, "unknown")
    return list(found.values())


def differing_labels(series: Iterable[_Series]) -> dict[str, list[str]]:
    """The labels, but for the engine's, in which series of one moment differ, with their values.

    They are of several servers, which would add up to one that does not exist; without any they are of one.
    """
    at: dict[float, list[Mapping[str, str]]] = defaultdict(list)
    for labels, values in series:
        if labels.get("__name__") in RUNNING:
            for at_s, _ in values:
                at[at_s].append(labels)
    for together in at.values():
        names = {name for labels in together for name in labels} - {"engine"}
        told = {name: sorted({labels.get(name, "") for labels in together}) for name in sorted(names)}
        if differ := {name: values for name, values in told.items() if len(values) > 1}:
            return differ
    return {}


def parse(page: str, at_ns: int, wall_s: float, version: str = "unknown") -> ServerSnapshot:
    """The snapshot of one page. Raises ValueError where the page is not Prometheus text or not vLLM's."""
    try:
        return _snapshot(_samples(page), at_ns, wall_s, version)
    except (LookupError, ArithmeticError) as error:  # a bucket without `le`, an integer beyond any float, ...
        raise ValueError(f"a damaged page: {error!r}") from None


def _snapshot(samples: Mapping[str, list[Sample]], at_ns: int, wall_s: float, version: str) -> ServerSnapshot:
    if not samples:
        raise ValueError("no vllm: series on the page")
    running = _total(samples, RUNNING)
    return ServerSnapshot(
        at_ns=at_ns,
        wall_s=wall_s,
        engine="vllm",
        version=version,
        running=running,
        waiting=_total(samples, WAITING),
        waiting_by_reason=_by_label(samples, WAITING_BY_REASON, "reason"),
        kv_cache_usage=_largest(samples, KV_USAGE),
        preemptions=_total(samples, PREEMPTIONS),
        rejections=_total(samples, REJECTIONS),
        prompt_tokens=_total(samples, PROMPT_TOKENS),
        generation_tokens=_total(samples, GENERATION_TOKENS),
        finished=_by_label(samples, FINISHED, "finished_reason"),
        prefix_cache_queries=_total(samples, PREFIX_QUERIES),
        prefix_cache_hits=_total(samples, PREFIX_HITS),
        kv_cache_tokens=_kv_cache_tokens(samples),
        estimated_flops=_total(samples, ESTIMATED_FLOPS) or None,
        estimated_read_bytes=_total(samples, ESTIMATED_READ_BYTES) or None,
        estimated_write_bytes=_total(samples, ESTIMATED_WRITE_BYTES) or None,
        engines=max(len(_first(samples, RUNNING)), 1),
        tokens_by_engine=_by_engine(samples, GENERATION_TOKENS),
        running_by_engine=_by_engine(samples, RUNNING),
        flags=_flags(samples),
        histograms={key: found for key, names in HISTOGRAMS.items() if (found := _histogram(samples, names))},
    )


def _samples(page: str) -> dict[str, list[Sample]]:
    """The wanted samples by name. Lines are chosen before they are parsed: a page has ten times as many.

    Only a line feed ends a line: str.splitlines() would also cut at characters that a label may contain.
    """
    lines = [line for line in page.split("\n") if line.partition("{")[0].partition(" ")[0] in _WANTED]
    if any(len(line) > _MAX_LINE for line in lines):
        raise ValueError(f"a line of more than {_MAX_LINE} characters")
    found: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                found[sample.name].append(sample)
    return found


def _first(samples: Mapping[str, list[Sample]], names: Iterable[str]) -> list[Sample]:
    return next((samples[name] for name in names if samples.get(name)), [])


def _total(samples: Mapping[str, list[Sample]], names: Iterable[str]) -> float | None:
    found = _first(samples, names)
    return sum(sample.value for sample in found) if found else None


def _largest(samples: Mapping[str, list[Sample]], names: Iterable[str]) -> float | None:
    return max((sample.value for sample in _first(samples, names)), default=None)


def _by_label(samples: Mapping[str, list[Sample]], names: Iterable[str], label: str) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for sample in _first(samples, names):
        value = sample.labels.get(label, "")[:_MAX_VALUE]
        totals[value if value in totals or len(totals) < _MAX_VALUES else "other"] += sample.value
    return dict(totals)


def _by_engine(samples: Mapping[str, list[Sample]], names: Iterable[str]) -> tuple[float, ...]:
    """The values in the order of the engines' labels; nothing where there is one engine."""
    found = sorted((sorted(sample.labels.items()), sample.value) for sample in _first(samples, names))
    return tuple(value for _, value in found) if len(found) > 1 else ()


def _histogram(samples: Mapping[str, list[Sample]], names: Iterable[str]) -> Histogram | None:
    for name in names:
        buckets: dict[float, float] = defaultdict(float)
        for sample in samples.get(f"{name}_bucket", ()):
            buckets[float(sample.labels["le"])] += sample.value
        if len(buckets) > _MAX_BUCKETS:
            raise ValueError(f"{name} has more than {_MAX_BUCKETS} buckets")
        if buckets:
            total = sum(sample.value for sample in samples.get(f"{name}_sum", ()))
            return Histogram(buckets=tuple(sorted(buckets.items())), sum=total)
    return None


def _kv_cache_tokens(samples: Mapping[str, list[Sample]]) -> float | None:
    """Tokens the KV cache of all engines holds: blocks times block size, from the labels of cache_config_info."""
    total = 0.0
    for sample in _first(samples, CACHE_CONFIG):
        try:
            total += float(sample.labels["num_gpu_blocks"]) * float(sample.labels["block_size"])
        except (KeyError, ValueError):
            return None
    return total if math.isfinite(total) and total > 0 else None


def _flags(samples: Mapping[str, list[Sample]]) -> dict[str, str]:
    """How the server was started, as far as it shows: what is not set is absent. All engines of a server are alike."""
    engines = _first(samples, CACHE_CONFIG)
    if not engines:
        return {}
    labels = engines[0].labels
    shown = {name: labels[name][:_MAX_VALUE] for name in FLAGS if labels.get(name, "None") not in ("None", "[]")}
    return shown | {"engines": str(len(engines))}

"""The mock server's /metrics page: vLLM 0.32's names, types, labels and bucket bounds.

Input: what the driver reports (tokens, steps, finished requests) and the engine's state at the scrape. Output: the
page. It has only the families that a mock server can fill truthfully; a test compares each with a page recorded from
the real server. Values are observed when vLLM observes them, as measured there: prompt tokens when the prefill ends;
`iteration_tokens_total` (a histogram, despite its name) only in steps that produced a token, and without tokens from
the prefix cache; a request's times when it finishes. TTFT and E2E begin when the front end has passed a request on, and
end when it begins to send the tokens; all other times are the engine's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.metrics_model import REQUEST_S, STEP_TOKENS, TOKEN_S, TTFT_S, one_two_five

ENGINE = "0"  # vLLM numbers its data-parallel engines; the mock server has one
_M = TypeVar("_M", Gauge, Counter)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")

_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

# vLLM's cache_config_info for features that the mock server does not have. The label set is part of the contract: a
# query or a parser for the real page breaks if one is missing.
_CACHE_CONFIG = {
    **dict.fromkeys(
        (
            *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size"),
            *("kv_cache_memory_bytes", "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks"),
            *("prefix_match_unit", "skip_page_size_padded", "sliding_window"),
        ),
        "None",
    ),
    **dict.fromkeys(
        (
            *("enable_mamba_shared_prefix_checkpoint", "is_attention_free"),
            *("kv_sharing_fast_prefill", "swa_bounded_replay", "use_kda_recoverssm", "use_replayssm"),
        ),
        "False",
    ),
    **dict.fromkeys(("_block_size_resolved", "user_specified_block_size"), "True"),
    **dict.fromkeys(("cache_dtype", "mamba_cache_dtype"), "auto"),
    "gpu_memory_utilization": "0.92",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "float32",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
}


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times and lengths of a finished request. Times are seconds on one monotonic clock.

    The engine's times are when the first and the last token came; `answered_s` is when the front end began to send the
    last one.
    """

    prompt_tokens: int
    output_tokens: int
    preemptions: int
    arrival_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    answered_s: float


class Metrics:
    """Every series of one simulated server, in a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, profile: Profile, model: str) -> None:
        self._registry = CollectorRegistry()
        self._refused: dict[str, Counter] = {}  # by the limit
        self._labels = {"model_name": model, "engine": ENGINE}
        self._running = self._gauge("num_requests_running", "Requests in the batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        by_reason = self._family(Gauge, "num_requests_waiting_by_reason", "Requests that wait.", "reason")
        self._capacity = by_reason.labels(**self._labels, reason="capacity")
        by_reason.labels(**self._labels, reason="deferred")  # nothing is ever deferred here: stays 0
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV cache in use; 1 is all of it.")
        self._queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens processed.")
        self._generation = self._counter("generation_tokens", "Tokens generated.")
        finished = self._family(Counter, "request_success", "Requests that ended.", "finished_reason")
        self._finished = {r: finished.labels(**self._labels, finished_reason=r) for r in FINISHED_REASONS}
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to the first token.", TTFT_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Time between tokens.", TOKEN_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "A request's mean.", TOKEN_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_S)
        self._queue = self._histogram("request_queue_time_seconds", "Time before the batch.", REQUEST_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "Batch to first token.", REQUEST_S)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token.", REQUEST_S)
        self._inference = self._histogram("request_inference_time_seconds", "Batch to last token.", REQUEST_S)
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens of a step.", STEP_TOKENS)
        self._preempted = self._histogram("request_num_preemptions", "Preemptions of a request.", _PREEMPTIONS)
        counts = one_two_five(profile.max_model_len)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", counts)
        self._output_length = self._histogram("request_generation_tokens", "Output tokens of a request.", counts)
        states = self._family(Gauge, "engine_sleep_state", "1 for the state that the engine is in.", "sleep_state")
        self._sleep_states = {s: states.labels(**self._labels, sleep_state=s) for s in SLEEP_STATES}
        self.sleep("awake")
        # Not vLLM's own: no prefix, and no label of the model.
        names = ("method", "status", "handler")
        self._answers = Counter("http_requests", "HTTP answers.", names, registry=self._registry)
        self._constants(profile, model)

    def answered(self, method: str, status: str, handler: str) -> None:
        """Count an HTTP answer; `status` is its class, such as 5xx."""
        self._answers.labels(method, status, handler).inc()

    def sleep(self, state: str) -> None:
        """Set the sleep state: one of SLEEP_STATES, or another word for level 0, which sets all of them to 0."""
        for name, gauge in self._sleep_states.items():
            gauge.set(name == state)

    def looked_up(self, prompt_tokens: int, found_tokens: int) -> None:
        """Count a prefix cache lookup, for a request that is new to the batch.

        vLLM does not count re-admissions after a preemption, and nothing if the cache is off.
        """
        self._queries.inc(prompt_tokens)
        self._hits.inc(found_tokens)

    def step(self, *, prompt_tokens: int, found_tokens: int, emitted: int, preempted: int, has_results: bool) -> None:
        """Count a step: tokens of prompts that it finished, the ones found in the prefix cache, and output tokens.

        `has_results`: it produced a token, or an embedding; vLLM counts no other steps.
        """
        self._preemptions.inc(preempted)
        if has_results:
            self._prompt.inc(prompt_tokens)
            self._generation.inc(emitted)
            self._step_tokens.observe(prompt_tokens - found_tokens + emitted)

    def first_tokens(self, waits_s: Iterable[float]) -> None:
        for wait_s in waits_s:
            self._ttft.observe(wait_s)

    def later_tokens(self, gaps_s: Iterable[float]) -> None:
        for gap_s in gaps_s:
            self._itl.observe(gap_s)

    def completed(self, times: RequestTimes) -> None:
        """Count a finished request (finish reason "length": the mock server has no end-of-text token)."""
        decode_s = times.last_token_s - times.first_token_s
        self._finished["length"].inc()
        self._e2e.observe(times.answered_s - times.arrival_s)
        self._queue.observe(times.scheduled_s - times.arrival_s)
        self._prefill.observe(times.first_token_s - times.scheduled_s)
        self._decode.observe(decode_s)
        self._inference.observe(times.last_token_s - times.scheduled_s)
        # vLLM observes 0 for a request of one token, where the mean is undefined.
        self._tpot.observe(decode_s / (times.output_tokens - 1) if times.output_tokens > 1 else 0.0)
        self._preempted.observe(times.preemptions)
        self._prompt_length.observe(times.prompt_tokens)
        self._output_length.observe(times.output_tokens)

    def refused(self, limit: str) -> None:
        """Count a request that a limit of the queue refused."""
        self._refused[limit].inc()

    def page(self, engine: SimulatedEngine) -> bytes:
        """Return the page in Prometheus' text format, with gauges of the engine's present state."""
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._capacity.set(engine.waiting)
        self._kv_usage.set(engine.kv_usage)
        return generate_latest(self._registry)

    def _constants(self, profile: Profile, model: str) -> None:
        """Set the constant series: the cache's configuration, and refusals at zero."""
        names = ("model_name", "reason")  # no engine label: the API server refuses, not an engine
        text = "Requests refused because the queue was full."
        refused = Counter("vllm:admission_rejections", text, names, registry=self._registry)
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            self._refused[reason] = refused.labels(model_name=model, reason=reason)
        size = profile.usable_blocks * profile.block_size
        config = _CACHE_CONFIG | {
            "engine": ENGINE,
            "enable_prefix_caching": str(profile.prefix_caching),
            "block_size": str(profile.block_size),
            "effective_attention_block_size": str(profile.block_size),
            "kv_cache_max_concurrency": str(round(size / profile.max_model_len, 2)),
            "kv_cache_size_tokens": str(size),
            "num_gpu_blocks": str(profile.num_blocks),
            "num_gpu_blocks_override": str(profile.num_blocks),
        }
        text = "Configuration of the KV cache."
        Gauge("vllm:cache_config_info", text, tuple(config), registry=self._registry).labels(**config).set(1)

    def _family(self, kind: type[_M], name: str, text: str, *labels: str) -> _M:
        return kind(f"vllm:{name}", text, (*self._labels, *labels), registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._family(Gauge, name, text).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return self._family(Counter, name, text).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", text, tuple(self._labels), buckets=buckets, registry=self._registry)
        return family.labels(**self._labels)

"""Every series Kneewatch exports, once: name, kind, help, labels, buckets, stability.

Exporters, dashboards, rules and tests take names from here, so a renamed series is an error in the
type check and not an empty panel. `stability` is a promise: "stable" changes only with a major version
and a deprecation; "experimental" may change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from probe.gpu import fields

PREFIX = "kneewatch_"


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `name` is the name in queries: counters end in `_total`, histograms have no suffix."""

    name: str
    kind: str  # counter, gauge, histogram, or unknown for another exporter's untyped series
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # empty for a histogram with the server's own bounds
    stability: str = "stable"
    source: str = ""  # a key of SOURCES

    @property
    def bucket(self) -> str:
        """Return the name of the histogram's bucket series."""
        return f"{self.name}_bucket"


# From 1 ms to 1 minute in factors of about 1.5 to 2.5; the objectives' thresholds are added (with_bounds).
_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0,
    20.0, 60.0,
)  # fmt: skip
# Gaps between tokens are shorter. vLLM's own histogram starts at 10 ms, which all samples of a fast server are below.
_TOKEN_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 10.0,
)  # fmt: skip
_LATENESS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_REQUEST = ("target", "model", "workload", "traffic")
_TARGET = ("target",)
_ENGINE = ("target", "engine_index")
_KNEE = ("target", "model", "workload", "mode")


# Origin of the series, with its description in docs/metrics.md.
SOURCES: Mapping[str, str] = {
    "client": "Kneewatch's own requests, timed by Kneewatch: what a user of the server would see",
    "server": "the server's own metrics, under names that do not change with its version",
    "users": "user traffic: the server's metrics minus Kneewatch's own requests",
    "joined": "comparisons of client, server and GPU; absent while they cannot be made",
    "gpu": "dcgm-exporter, or the driver of this machine (NVML), under dcgm-exporter's own names and units",
    "capacity": "capacity runs and forecasts: the knee, by the last one that found it",
    "monitor": "Kneewatch itself",
}
# Meanings of the labels. There are no others; each has few values.
LABELS: Mapping[str, str] = {
    "target": "the target's name in the configuration",
    "model": "the model's name in the request",
    "workload": "the workload's name in the configuration",
    "traffic": "why a request was sent: canary, capacity or ondemand",
    "outcome": "the outcome of a request or a capacity run",
    "objective": "availability, ttft, tpot or all",
    "verdict": "valid, or why a load level is not judged: client_bound, too_few, cut_short or lost",
    "bottleneck": "max_num_seqs, kv_cache, front_end, prefill, memory_bandwidth, host or client",
    "kind": "kind of tokens: prompt or output",
    "reason": "the reason, a short word that does not change between versions",
    "source": "histogram: the server's own; counters: only sum and count are known",
    "engine": "vllm, sglang, tgi, trtllm, triton, nim or litellm",
    "version": "version of the server, or of Kneewatch",
    "engine_index": "the server's number for a data-parallel engine",
    "adapter": "a LoRA adapter's name",
    "method": "the method of the comparison or the detection",
    "sign": "usage, waiting, preemptions or rejections",
    "mode": "forecast (no probe load), empirical (load levels only) or verified (load levels that agree with a model)",
    "hash": "digest of the configuration without its secrets",
    "discovery": "the name of the configuration's entry that discovers targets",
    "task": "canary, scrape, gpu, forecast or capacity",
    "gpu": "index of the GPU on its node",
    "UUID": "UUID of the GPU; for a MIG instance, of the GPU that contains it",
    "device": "device name, such as nvidia0",
    "modelName": "the GPU's model",
    "Hostname": "the node",
    "GPU_I_ID": "ID of a MIG instance",
    "GPU_I_PROFILE": "profile of the MIG instance, such as 1g.10gb",
    "pod": "pod that uses the GPU, by dcgm-exporter",
    "namespace": "namespace of that pod",
    "container": "container of that pod",
}


def _series(  # noqa: PLR0917 - a table reads best in columns
    source: str,
    kind: str,
    name: str,
    help_: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
    *,
    stability: str = "stable",
) -> Series:
    return Series(PREFIX + name, kind, help_, labels, buckets, stability, source)


_client = partial(_series, "client")
_server = partial(_series, "server")
_users = partial(_series, "users", stability="experimental")
_joined = partial(_series, "joined", stability="experimental")
_gpu = partial(_series, "gpu")
_capacity = partial(_series, "capacity")
_monitor = partial(_series, "monitor")


# Client: what a user of the server would see.
REQUESTS = _client("counter", "requests_total", "Finished requests by outcome", (*_REQUEST, "outcome"))
GOOD_REQUESTS = _client(
    "counter",
    "good_requests_total",
    "Requests that met an objective: availability, ttft, tpot or all",
    (*_REQUEST, "objective"),
)
TTFT = _client(
    "histogram",
    "ttft_seconds",
    "Time to first token (TTFT), from the scheduled send",
    _REQUEST,
    _LATENCY_BUCKETS,
)
ITL = _client(
    "histogram",
    "itl_seconds",
    "Inter-token latency (ITL): gap between successive token events of a stream",
    _REQUEST,
    _TOKEN_BUCKETS,
)
TPOT = _client(
    "histogram",
    "tpot_seconds",
    "Time per output token (TPOT): mean after the first token, one sample per request",
    _REQUEST,
    _TOKEN_BUCKETS,
)
E2E = _client(
    "histogram",
    "e2e_seconds",
    "End-to-end latency (E2E), from the scheduled send to the last token",
    _REQUEST,
    _LATENCY_BUCKETS,
)
SCHEDULE_LAG = _client("histogram", "schedule_lag_seconds", "How late a request was sent", _REQUEST, _LAG_BUCKETS)
TOKENS = _client(
    "counter",
    "tokens_total",
    "Tokens of Kneewatch's own requests; cancelled requests count in full",
    ("target", "model", "traffic", "kind"),
)
LAST_SUCCESS = _client("gauge", "last_success_timestamp_seconds", "Time of the last successful request", _REQUEST)
TARGET_UP = _client("gauge", "target_up", "1 if the last canary received all requested tokens, else 0", ("target",))
OBJECTIVE_RATIO = _client(
    "gauge", "objective_ratio", "Share of requests that must meet the objective", ("target", "objective")
)
OBJECTIVE_SECONDS = _client("gauge", "objective_seconds", "Latency threshold of the objective", ("target", "objective"))

# Server: its own metrics, under names that do not change with its version.
SERVER_UP = _server(
    "gauge", "server_scrape_up", "1 if the last scrape of the server's metrics succeeded, else 0", _TARGET
)
SERVER_RUNNING = _server("gauge", "server_running_requests", "Running requests in the server's batch", _TARGET)
SERVER_WAITING = _server(
    "gauge",
    "server_waiting_requests",
    "Requests in the server's queue, by reason if the server reports it",
    (*_TARGET, "reason"),
)
SERVER_KV = _server(
    "gauge",
    "server_kv_cache_usage_ratio",
    "Share of the KV cache in use, of the engine with the highest usage",
    _TARGET,
)
SERVER_PREEMPTIONS = _server(
    "counter", "server_preemptions_total", "Requests pushed out of the KV cache and computed again", _TARGET
)
SERVER_PROMPT_TOKENS = _server(
    "counter", "server_prompt_tokens_total", "Prompt tokens that the server processed", _TARGET
)
SERVER_GENERATION_TOKENS = _server(
    "counter", "server_generation_tokens_total", "Output tokens that the server generated", _TARGET
)
SERVER_PREFIX_QUERIES = _server(
    "counter", "server_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", _TARGET
)
SERVER_PREFIX_HITS = _server(
    "counter", "server_prefix_cache_hits_total", "Prompt tokens found in the prefix cache", _TARGET
)
SERVER_REJECTIONS = _server("counter", "server_rejections_total", "Requests that the server refused to queue", _TARGET)
SERVER_TTFT = _server("histogram", "server_ttft_seconds", "TTFT of all requests, measured by the server", _TARGET)
SERVER_ITL = _server("histogram", "server_itl_seconds", "ITL of all requests, measured by the server", _TARGET)
SERVER_TPOT = _server("histogram", "server_tpot_seconds", "TPOT of all requests, measured by the server", _TARGET)
SERVER_E2E = _server("histogram", "server_e2e_seconds", "E2E latency of all requests, measured by the server", _TARGET)
SERVER_QUEUE = _server("histogram", "server_queue_seconds", "Time that requests waited in the server's queue", _TARGET)
SERVER_PREFILL = _server("histogram", "server_prefill_seconds", "Time that requests spent in prefill", _TARGET)
SERVER_DECODE = _server("histogram", "server_decode_seconds", "Time that requests spent in decode", _TARGET)
SERVER_ITERATION_TOKENS = _server(
    "histogram", "server_iteration_tokens", "Tokens that the server computed per engine step", _TARGET
)
SERVER_PREEMPTIONS_PER_REQUEST = _server(
    "histogram",
    "server_preemptions_per_request",
    "Preemptions per request; source: the server's own histogram, or counters, which give only sum and count",
    (*_TARGET, "source"),
)
SERVER_DRAFTS = _server("counter", "server_speculation_drafts_total", "Drafts of speculative decoding", _TARGET)
SERVER_DRAFT_TOKENS = _server(
    "counter", "server_speculation_draft_tokens_total", "Draft tokens of speculative decoding", _TARGET
)
SERVER_ACCEPTED_TOKENS = _server(
    "counter", "server_speculation_accepted_tokens_total", "Accepted draft tokens of speculative decoding", _TARGET
)
SERVER_FLOPS = _server(
    "counter",
    "server_estimated_flops_total",
    "Floating-point operations per GPU of each engine, by the server's own estimate, if that option is on",
    _TARGET,
)
SERVER_READ_BYTES = _server(
    "counter", "server_estimated_read_bytes_total", "Bytes read from GPU memory, by the same estimate", _TARGET
)
SERVER_WRITE_BYTES = _server(
    "counter", "server_estimated_write_bytes_total", "Bytes written to GPU memory, by the same estimate", _TARGET
)
SERVER_KV_LIFETIME = _server(
    "histogram", "server_kv_block_lifetime_seconds", "Time from a KV block's allocation to its eviction", _TARGET
)
SERVER_KV_IDLE = _server(
    "histogram", "server_kv_block_idle_seconds", "Time from a KV block's last use to its eviction", _TARGET
)
SERVER_KV_REUSE = _server(
    "histogram", "server_kv_block_reuse_gap_seconds", "Time between two uses of a KV block", _TARGET
)
SERVER_ADAPTER = _server(
    "gauge", "server_adapter_running", "1 for each LoRA adapter with running requests", (*_TARGET, "adapter")
)
# For servers with several data-parallel engines. The series above cover all engines, except for the KV cache usage.
ENGINE_RUNNING = _server("gauge", "server_engine_running_requests", "Running requests in an engine's batch", _ENGINE)
ENGINE_WAITING = _server("gauge", "server_engine_waiting_requests", "Requests in an engine's queue", _ENGINE)
ENGINE_KV = _server("gauge", "server_engine_kv_cache_usage_ratio", "Share of an engine's KV cache in use", _ENGINE)
ENGINE_PREEMPTIONS = _server(
    "counter", "server_engine_preemptions_total", "Requests pushed out of an engine's KV cache", _ENGINE
)
ENGINE_GENERATION_TOKENS = _server(
    "counter", "server_engine_generation_tokens_total", "Output tokens that an engine generated", _ENGINE
)
SERVER_INFO = _server(
    "gauge", "server_info", "1, labelled with the engine and its version", (*_TARGET, "engine", "version")
)
SERVER_STARTED = _server(
    "gauge", "server_started_timestamp_seconds", "Start time of the server's process, if the server exports it", _TARGET
)
SERVER_SCRAPE_ERRORS = _server(
    "counter",
    "server_scrape_errors_total",
    "Failed scrapes of the server's metrics by reason",
    (*_TARGET, "reason"),
)
SERVER_SCRAPE_SECONDS = _server(
    "gauge", "server_scrape_duration_seconds", "Duration of the last scrape of the server's metrics", _TARGET
)
SERVER_SCRAPE_BYTES = _server("gauge", "server_scrape_page_bytes", "Size of the server's metrics page", _TARGET)

# Users: the server's counters minus probe requests.
USERS_REQUESTS = _users(
    "counter", "users_requests_total", "User requests since Kneewatch started to watch the server", _TARGET
)
USERS_TOKENS = _users("counter", "users_tokens_total", "Tokens of user requests", (*_TARGET, "kind"))
USERS_TTFT = _users("histogram", "users_ttft_seconds", "TTFT of user requests, measured by the server", _TARGET)
USERS_TPOT = _users("histogram", "users_tpot_seconds", "TPOT of user requests, measured by the server", _TARGET)
USERS_GOOD = _users(
    "counter",
    "users_good_requests_total",
    "User requests within a latency objective, by the server's histogram bound in users_objective_seconds",
    (*_TARGET, "objective"),
)
USERS_OBJECTIVE_SECONDS = _users(
    "gauge",
    "users_objective_seconds",
    "Bound that user requests are judged by: the server's lowest histogram bound at or above the objective",
    (*_TARGET, "objective"),
)

# Joined: comparisons of client, server and GPU; absent while they cannot be made.
TTFT_GAP = _joined(
    "gauge",
    "ttft_gap_seconds",
    "Canaries' TTFT minus the server's (network and gateway): canaries alone on the server (matched), or means (mean)",
    (*_TARGET, "method"),
)
QUEUE_SHARE = _joined(
    "gauge",
    "server_queue_share_ratio",
    "Queue time as a share of queue and prefill time, means over five minutes",
    _TARGET,
)
COUNTED_TOKENS = _joined(
    "gauge",
    "server_counted_tokens_ratio",
    "Tokens by the server's counters relative to the client's, for canaries alone on it; not 1 means another server",
    (*_TARGET, "kind"),
)
GPU_NEIGHBOUR = _joined(
    "gauge",
    "gpu_neighbour_utilization_ratio",
    "GPU load beyond canaries in five minutes without user traffic: work of other processes",
    _TARGET,
)
STALLED = _joined(
    "gauge", "server_stalled_seconds", "Time that an engine has had requests without making progress", _TARGET
)
AMBIGUOUS = _joined(
    "gauge",
    "server_ambiguous",
    "1 if several servers answer at the address: counters are mixed, so user traffic and cross-checks are not computed",
    _TARGET,
)
KV_PRESSURE = _joined(
    "gauge",
    "kv_pressure",
    "1 while there is a sign of KV cache pressure in the last minute: usage, waiting, preemptions or rejections",
    (*_TARGET, "sign"),
)

# GPU: dcgm-exporter's own names and units, also for values read by NVML.
GPU_UP = _gpu("gauge", "gpu_scrape_up", "1 if the last scrape of the target's GPUs succeeded, else 0", _TARGET)
GPU_COUNT = _gpu("gauge", "gpus", "GPUs or MIG instances in the last scrape", _TARGET)
GPU_SCRAPE_ERRORS = _gpu("counter", "gpu_scrape_errors_total", "Failed scrapes of the GPUs", _TARGET)
# Untyped, because counters must end in `_total` and those of dcgm-exporter do not.
GPU: tuple[Series, ...] = tuple(
    Series(
        each.name,
        "unknown" if each.kind == "counter" else each.kind,
        each.help,
        ("target", *fields.LABELS),
        stability="as dcgm-exporter's",
        source="gpu",
    )
    for each in fields.FIELDS
)
_GPU_BY_NAME = {series.name: series for series in GPU}

# Capacity: the knee, as the last run that found one measured it.
CAPACITY_RPS = _capacity(
    "gauge",
    "capacity_requests_per_second",
    "Capacity: requests per second that the server sustains within every objective",
    _KNEE,
)
CAPACITY_RPS_LOWER = _capacity("gauge", "capacity_requests_per_second_lower", "Lower bound of the capacity", _KNEE)
CAPACITY_RPS_UPPER = _capacity(
    "gauge",
    "capacity_requests_per_second_upper",
    "Upper bound of the capacity; absent if no load missed an objective",
    _KNEE,
)
CAPACITY_TOKENS = _capacity("gauge", "capacity_output_tokens_per_second", "Output tokens per second at the knee", _KNEE)
HEADROOM = _capacity(
    "gauge",
    "capacity_headroom_ratio",
    "1 minus users' share of the capacity in requests or output tokens, whichever is more; below 0: over capacity",
    _KNEE,
)
BOTTLENECK = _capacity(
    "gauge",
    "capacity_bottleneck",
    "1 for the resource that limits the server by the last result of this mode, 0 for others",
    (*_KNEE, "bottleneck"),
)
CAPACITY_STEPS = _capacity(
    "counter", "capacity_steps_total", "Load levels of capacity runs by verdict", ("target", "verdict")
)
MODEL_RESIDUAL = _capacity(
    "gauge",
    "capacity_model_residual_ratio",
    "Last forecast before a measuring run, relative to the run's result, minus 1",
    ("target", "model", "workload"),
)
KNEE_CONCURRENCY = _capacity("gauge", "knee_concurrency", "Requests in flight at the knee", _KNEE)
CAPACITY_LAST_SUCCESS = _capacity(
    "gauge", "capacity_last_success_timestamp_seconds", "Time of the last capacity result", _KNEE
)
CAPACITY_FINGERPRINT = _capacity(
    "gauge",
    "capacity_fingerprint",
    "Digest of the setup (model, engine, flags, workload, objectives) as a number, for comparison only",
    _KNEE,
)
KNEE_BASELINE = _capacity(
    "gauge", "knee_baseline_requests_per_second", "Baseline: median of earlier capacities with the same setup", _KNEE
)
KNEE_BASELINE_SINCE = _capacity(
    "gauge", "knee_baseline_since_timestamp_seconds", "Time of the first run in the baseline", _KNEE
)
KNEE_SHIFT = _capacity(
    "gauge", "knee_shift_ratio", "Last capacity relative to its baseline, minus 1: -0.1 is 10 % less", _KNEE
)
KNEE_SHIFTED = _capacity(
    "gauge",
    "knee_shifted",
    "1 while this method detects a shift of the knee, else 0; rise is upwards, the others downwards",
    (*_KNEE, "method"),
)
CAPACITY_RUNS = _capacity("counter", "capacity_runs_total", "Capacity runs by outcome", ("target", "outcome"))
CAPACITY_REFUSALS = _capacity(
    "counter",
    "capacity_refusals_total",
    "Refused scheduled capacity runs by reason",
    ("target", "reason"),
)
GUARD_TRIPS = _capacity(
    "counter", "guard_trips_total", "Times that the guard stopped the load of a capacity run", ("target", "reason")
)
OVER_OBJECTIVE = _capacity(
    "counter",
    "capacity_over_objective_seconds_total",
    "Seconds in which requests of capacity runs missed an objective",
    ("target",),
)

# Kneewatch itself. The label is `task`, because Prometheus adds its own `job` to every series.
BUILD_INFO = _monitor("gauge", "build_info", "1, labelled with Kneewatch's version", ("version",))
CONFIG_HASH = _monitor("gauge", "config_hash_info", "1, labelled with a digest of the configuration", ("hash",))
CONFIG_TAKEN = _monitor(
    "gauge",
    "config_last_reload_successful",
    "1 if the last reload of the configuration file succeeded, 0 if it was refused",
)
CONFIG_TAKEN_AT = _monitor(
    "gauge", "config_last_reload_success_timestamp_seconds", "Time of the last successful reload of the configuration"
)
DISCOVERED = _monitor(
    "gauge", "discovered_targets", "Servers that a discovery has found, including those of other shards", ("discovery",)
)
DISCOVERY_FAILING = _monitor(
    "gauge",
    "discovery_failing",
    "1 while a discovery fails (its last result stays in effect), or could not use some of its servers",
    ("discovery",),
)
SHARD = _monitor("gauge", "shard", "Index of this Kneewatch's shard, from 0; absent without sharding")
SHARDS = _monitor("gauge", "shards", "Number of shards; absent without sharding")
TARGET_INFO = _monitor(
    "gauge",
    "target_info",
    "1, labelled with the labels that discovery found: label_... for each label of the target's pod",
    ("target", "discovery"),
)
CPU = _monitor("counter", "process_cpu_seconds_total", "CPU time of the monitor's process, without child processes")
MEMORY = _monitor("gauge", "process_resident_memory_bytes", "Resident memory of the monitor's process")
STARTED = _monitor("gauge", "process_start_time_seconds", "Start time of the monitor")
TASK_FAILURES = _monitor(
    "counter", "task_failures_total", "Scheduled tasks that failed, started late or were skipped", ("task", "target")
)
TASK_LAST_SUCCESS = _monitor(
    "gauge", "task_last_success_timestamp_seconds", "Time when a scheduled task last completed", ("task", "target")
)
TASK_INTERVAL = _monitor("gauge", "task_interval_seconds", "Interval of a scheduled task", ("task", "target"))
TASK_LATENESS = _monitor(
    "histogram", "task_lateness_seconds", "How late a scheduled task started", ("task",), _LATENESS_BUCKETS
)
LOOP_LAG = _monitor(
    "histogram", "event_loop_lag_seconds", "How late the monitor's event loop woke up", (), _LAG_BUCKETS
)

ALL: tuple[Series, ...] = (*(value for value in list(globals().values()) if isinstance(value, Series)), *GPU)


def gpu(name: str) -> Series:
    """Return the relayed GPU series of that name. Raises KeyError for others."""
    return _GPU_BY_NAME[name]


def with_bounds(series: Series, thresholds: Iterable[float]) -> tuple[float, ...]:
    """Return the histogram's bounds with every threshold included, so that objectives are counted, not interpolated."""
    return tuple(sorted({*series.buckets, *thresholds}))

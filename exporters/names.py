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
    """One series. `name` is what a query says: counters end in `_total`, histograms have no suffix."""

    name: str
    kind: str  # counter, gauge or histogram; unknown: as another exporter has it
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # empty for a histogram whose bounds the server decides
    stability: str = "stable"
    source: str = ""  # who tells it: one of SOURCES

    @property
    def bucket(self) -> str:
        """The name of a histogram's buckets."""
        return f"{self.name}_bucket"


# From 1 ms to 1 minute, about 1.5 to 2.5 apart; the objectives' thresholds are added (with_bounds).
_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0,
    20.0, 60.0,
)  # fmt: skip
# Gaps between tokens are shorter: vLLM's own histogram starts at 10 ms, where a fast server has every sample.
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


# Who tells a series, and what about.
SOURCES: Mapping[str, str] = {
    "client": "our own requests, timed by us: what a user of the server would have seen",
    "server": "the server's own metrics page, under names that do not change with its version",
    "users": "the server's page less our own requests: what others asked of it",
    "joined": "client, server and GPU together; absent where it cannot be told",
    "gpu": "dcgm-exporter's page, or the driver of this machine (NVML), under dcgm-exporter's own names and units",
    "capacity": "capacity runs and forecasts: the knee, as the last one that found it has it",
    "monitor": "Kneewatch itself",
}
# What labels mean. No other is used; each has few values.
LABELS: Mapping[str, str] = {
    "target": "the target's name in the configuration",
    "model": "the model that was asked for",
    "workload": "the workload's name in the configuration",
    "traffic": "why a request was sent: canary, capacity or ondemand",
    "outcome": "how a request, or a run, ended",
    "objective": "availability, ttft, tpot or all",
    "verdict": "valid, or why it judges nothing: client_bound, too_few, cut_short or lost",
    "bottleneck": "max_num_seqs, kv_cache, front_end, prefill, memory_bandwidth, host or client",
    "kind": "of tokens: prompt or output",
    "reason": "why: a short word, the same for ever",
    "source": "histogram: as the server has it; counters: only sum and count are known",
    "engine": "vllm, sglang, tgi, trtllm, triton, nim or litellm",
    "version": "of the server, or of Kneewatch",
    "engine_index": "a data-parallel engine, by the server's own number for it",
    "adapter": "a LoRA adapter's name",
    "method": "how it was told",
    "sign": "usage, waiting, preemptions or rejections",
    "mode": "forecast (no load), empirical (steps alone) or verified (steps and a model that agree)",
    "hash": "digest of the configuration, secrets left out",
    "discovery": "the entry of the configuration whose discovery found the target",
    "task": "canary, scrape, gpu, forecast or capacity",
    "gpu": "index of the GPU on its node",
    "UUID": "the GPU's; of an instance, that of the GPU it is a part of",
    "device": "such as nvidia0",
    "modelName": "the GPU's model",
    "Hostname": "the node",
    "GPU_I_ID": "an instance of a divided GPU (MIG)",
    "GPU_I_PROFILE": "its size, such as 1g.10gb",
    "pod": "that has the GPU, as dcgm-exporter says",
    "namespace": "of that pod",
    "container": "of that pod",
}


def _told(  # noqa: PLR0917 - a table reads best in columns
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


_client = partial(_told, "client")
_server = partial(_told, "server")
_users = partial(_told, "users", stability="experimental")
_joined = partial(_told, "joined", stability="experimental")
_gpu = partial(_told, "gpu")
_capacity = partial(_told, "capacity")
_monitor = partial(_told, "monitor")


# Client: what a user of the server would have seen.
REQUESTS = _client("counter", "requests_total", "Requests that ended, by how they ended", (*_REQUEST, "outcome"))
GOOD_REQUESTS = _client(
    "counter",
    "good_requests_total",
    "Requests that met an objective: availability, ttft, tpot, or all of them",
    (*_REQUEST, "objective"),
)
TTFT = _client(
    "histogram",
    "ttft_seconds",
    "Time from the scheduled send to the first content",
    _REQUEST,
    _LATENCY_BUCKETS,
)
ITL = _client("histogram", "itl_seconds", "Gap between successive token events of a stream", _REQUEST, _TOKEN_BUCKETS)
TPOT = _client(
    "histogram",
    "tpot_seconds",
    "Mean time per output token after the first, one sample a request",
    _REQUEST,
    _TOKEN_BUCKETS,
)
E2E = _client("histogram", "e2e_seconds", "Time from the scheduled send to the last token", _REQUEST, _LATENCY_BUCKETS)
SCHEDULE_LAG = _client("histogram", "schedule_lag_seconds", "How late a request was sent", _REQUEST, _LAG_BUCKETS)
TOKENS = _client(
    "counter",
    "tokens_total",
    "Tokens of our own requests; in full for those that were cancelled",
    ("target", "model", "traffic", "kind"),
)
LAST_SUCCESS = _client("gauge", "last_success_timestamp_seconds", "When a request last succeeded", _REQUEST)
TARGET_UP = _client(
    "gauge", "target_up", "1 when the last canary generated the tokens it asked for, else 0", ("target",)
)
OBJECTIVE_RATIO = _client(
    "gauge", "objective_ratio", "Share of requests that has to meet the objective", ("target", "objective")
)
OBJECTIVE_SECONDS = _client("gauge", "objective_seconds", "The objective's latency threshold", ("target", "objective"))

# Server: its own metrics, under names that do not change with its version.
SERVER_UP = _server("gauge", "server_scrape_up", "1 when the server's metrics were read at the last attempt", _TARGET)
SERVER_RUNNING = _server("gauge", "server_running_requests", "Requests the server is generating for", _TARGET)
SERVER_WAITING = _server(
    "gauge",
    "server_waiting_requests",
    "Requests in the server's queue, by reason where it says",
    (*_TARGET, "reason"),
)
SERVER_KV = _server(
    "gauge", "server_kv_cache_usage_ratio", "Share of the KV cache in use, of the fullest engine", _TARGET
)
SERVER_PREEMPTIONS = _server(
    "counter", "server_preemptions_total", "Requests pushed out of the KV cache and computed again", _TARGET
)
SERVER_PROMPT_TOKENS = _server("counter", "server_prompt_tokens_total", "Prompt tokens the server processed", _TARGET)
SERVER_GENERATION_TOKENS = _server("counter", "server_generation_tokens_total", "Tokens the server generated", _TARGET)
SERVER_PREFIX_QUERIES = _server(
    "counter", "server_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", _TARGET
)
SERVER_PREFIX_HITS = _server(
    "counter", "server_prefix_cache_hits_total", "Prompt tokens found in the prefix cache", _TARGET
)
SERVER_REJECTIONS = _server("counter", "server_rejections_total", "Requests the server refused to queue", _TARGET)
SERVER_TTFT = _server(
    "histogram", "server_ttft_seconds", "TTFT of all users' requests, as the server measures it", _TARGET
)
SERVER_ITL = _server(
    "histogram", "server_itl_seconds", "ITL of all users' requests, as the server measures it", _TARGET
)
SERVER_TPOT = _server(
    "histogram", "server_tpot_seconds", "TPOT of all users' requests, as the server measures it", _TARGET
)
SERVER_E2E = _server(
    "histogram", "server_e2e_seconds", "E2E of all users' requests, as the server measures it", _TARGET
)
SERVER_QUEUE = _server("histogram", "server_queue_seconds", "Time requests waited in the server's queue", _TARGET)
SERVER_PREFILL = _server("histogram", "server_prefill_seconds", "Time the server read requests' prompts for", _TARGET)
SERVER_DECODE = _server("histogram", "server_decode_seconds", "Time the server generated for requests", _TARGET)
SERVER_ITERATION_TOKENS = _server(
    "histogram", "server_iteration_tokens", "Tokens the server computed in a step of its engine", _TARGET
)
SERVER_PREEMPTIONS_PER_REQUEST = _server(
    "histogram",
    "server_preemptions_per_request",
    "How often a request was preempted; source: the server's own histogram, or counters, which give sum and count only",
    (*_TARGET, "source"),
)
SERVER_DRAFTS = _server(
    "counter", "server_speculation_drafts_total", "Steps of the server in which it speculated", _TARGET
)
SERVER_DRAFT_TOKENS = _server(
    "counter", "server_speculation_draft_tokens_total", "Tokens the server speculated on", _TARGET
)
SERVER_ACCEPTED_TOKENS = _server(
    "counter", "server_speculation_accepted_tokens_total", "Tokens it speculated on and kept", _TARGET
)
SERVER_FLOPS = _server(
    "counter",
    "server_estimated_flops_total",
    "Floating-point operations of a GPU of each engine, by the server's own estimate, where it is asked to make one",
    _TARGET,
)
SERVER_READ_BYTES = _server(
    "counter", "server_estimated_read_bytes_total", "Bytes read from that GPU's memory, by the same estimate", _TARGET
)
SERVER_WRITE_BYTES = _server(
    "counter", "server_estimated_write_bytes_total", "Bytes written to that GPU's memory, by the same estimate", _TARGET
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
    "gauge", "server_adapter_running", "1 for each LoRA adapter that has requests running", (*_TARGET, "adapter")
)
# Of servers with several data-parallel engines; all above are of all of them together, but for the KV cache's usage.
ENGINE_RUNNING = _server(
    "gauge", "server_engine_running_requests", "Requests that an engine is generating for", _ENGINE
)
ENGINE_WAITING = _server("gauge", "server_engine_waiting_requests", "Requests in an engine's queue", _ENGINE)
ENGINE_KV = _server("gauge", "server_engine_kv_cache_usage_ratio", "Share of an engine's KV cache in use", _ENGINE)
ENGINE_PREEMPTIONS = _server(
    "counter", "server_engine_preemptions_total", "Requests pushed out of an engine's KV cache", _ENGINE
)
ENGINE_GENERATION_TOKENS = _server(
    "counter", "server_engine_generation_tokens_total", "Tokens that an engine generated", _ENGINE
)
SERVER_INFO = _server(
    "gauge", "server_info", "1, labelled with the engine and its version", (*_TARGET, "engine", "version")
)
SERVER_STARTED = _server(
    "gauge", "server_started_timestamp_seconds", "When the server's process began, where its page says so", _TARGET
)
SERVER_SCRAPE_ERRORS = _server(
    "counter",
    "server_scrape_errors_total",
    "Attempts to read the server's metrics that failed, by why",
    (*_TARGET, "reason"),
)
SERVER_SCRAPE_SECONDS = _server(
    "gauge", "server_scrape_duration_seconds", "How long the last reading of the server's metrics took", _TARGET
)
SERVER_SCRAPE_BYTES = _server("gauge", "server_scrape_page_bytes", "Size of the server's metrics page", _TARGET)

# Users: the server's counters less our own requests.
USERS_REQUESTS = _users(
    "counter", "users_requests_total", "Requests of others, since Kneewatch watches the server", _TARGET
)
USERS_TOKENS = _users("counter", "users_tokens_total", "Tokens of others' requests", (*_TARGET, "kind"))
USERS_TTFT = _users("histogram", "users_ttft_seconds", "TTFT of others' requests, as the server measures it", _TARGET)
USERS_TPOT = _users("histogram", "users_tpot_seconds", "TPOT of others' requests, as the server measures it", _TARGET)
USERS_GOOD = _users(
    "counter",
    "users_good_requests_total",
    "Others' requests within a latency objective, as far as the server's buckets tell (users_objective_seconds)",
    (*_TARGET, "objective"),
)
USERS_OBJECTIVE_SECONDS = _users(
    "gauge",
    "users_objective_seconds",
    "What others' requests are judged by: the lowest bound of the server's buckets at or above the objective",
    (*_TARGET, "objective"),
)

# Joined: what only client, server and GPU together tell; absent where it cannot be told.
TTFT_GAP = _joined(
    "gauge",
    "ttft_gap_seconds",
    "Canaries' TTFT less the server's: network and gateway; of canaries alone on it (matched), or mean less mean",
    (*_TARGET, "method"),
)
QUEUE_SHARE = _joined(
    "gauge", "server_queue_share_ratio", "Queue over queue and prefill, the server's means of five minutes", _TARGET
)
COUNTED_TOKENS = _joined(
    "gauge",
    "server_counted_tokens_ratio",
    "Tokens by the server's counters over ours, of canaries that were alone on it; not 1: another server's page",
    (*_TARGET, "kind"),
)
GPU_NEIGHBOUR = _joined(
    "gauge",
    "gpu_neighbour_utilization_ratio",
    "How busy the GPU was beyond our canaries, in five minutes without users: somebody else's work",
    _TARGET,
)
STALLED = _joined(
    "gauge", "server_stalled_seconds", "For how long an engine has had requests and generated nothing", _TARGET
)
AMBIGUOUS = _joined(
    "gauge",
    "server_ambiguous",
    "1 where several servers answer at the target's address, of whose mixed counters nothing follows",
    _TARGET,
)
KV_PRESSURE = _joined(
    "gauge",
    "kv_pressure",
    "1 while a sign of a KV cache that is too small shows: usage, waiting, preemptions or rejections, in a minute",
    (*_TARGET, "sign"),
)

# GPU: dcgm-exporter's own names and units, whoever has read them.
GPU_UP = _gpu("gauge", "gpu_scrape_up", "1 when the target's GPUs were read at the last attempt", _TARGET)
GPU_COUNT = _gpu("gauge", "gpus", "GPUs, or instances of them, that the last reading found", _TARGET)
GPU_SCRAPE_ERRORS = _gpu("counter", "gpu_scrape_errors_total", "Attempts to read the GPUs that failed", _TARGET)
# Untyped, since counters are to end in `_total` and those of dcgm-exporter do not.
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
    "Requests per second the server takes within every objective",
    _KNEE,
)
CAPACITY_RPS_LOWER = _capacity("gauge", "capacity_requests_per_second_lower", "Lower bound of the same", _KNEE)
CAPACITY_RPS_UPPER = _capacity(
    "gauge",
    "capacity_requests_per_second_upper",
    "Upper bound of the same; absent where no load broke an objective",
    _KNEE,
)
CAPACITY_TOKENS = _capacity("gauge", "capacity_output_tokens_per_second", "Output tokens per second at the knee", _KNEE)
HEADROOM = _capacity(
    "gauge",
    "capacity_headroom_ratio",
    "1 less users' share of the capacity, in requests or in output tokens, whichever is more; below 0: beyond it",
    _KNEE,
)
BOTTLENECK = _capacity(
    "gauge",
    "capacity_bottleneck",
    "1 for what limits the server, as the last result of this mode says, 0 for what does not",
    (*_KNEE, "bottleneck"),
)
CAPACITY_STEPS = _capacity(
    "counter", "capacity_steps_total", "Steps of capacity runs, by whether they judge anything", ("target", "verdict")
)
MODEL_RESIDUAL = _capacity(
    "gauge",
    "capacity_model_residual_ratio",
    "The forecast before the last run that measured capacity over what it measured, less 1",
    ("target", "model", "workload"),
)
KNEE_CONCURRENCY = _capacity("gauge", "knee_concurrency", "Requests in flight at the knee", _KNEE)
CAPACITY_LAST_SUCCESS = _capacity(
    "gauge", "capacity_last_success_timestamp_seconds", "When capacity was last measured", _KNEE
)
CAPACITY_FINGERPRINT = _capacity(
    "gauge",
    "capacity_fingerprint",
    "Digest of what the capacity holds for (model, engine, flags, workload, objectives) as a number: equal or not",
    _KNEE,
)
KNEE_BASELINE = _capacity(
    "gauge", "knee_baseline_requests_per_second", "Median capacity that the knee is compared with", _KNEE
)
KNEE_BASELINE_SINCE = _capacity(
    "gauge", "knee_baseline_since_timestamp_seconds", "When the first run of that baseline was made", _KNEE
)
KNEE_SHIFT = _capacity(
    "gauge", "knee_shift_ratio", "The last capacity over its baseline, less 1: -0.1 is 10 % less", _KNEE
)
KNEE_SHIFTED = _capacity(
    "gauge",
    "knee_shifted",
    "1 while this method says that the knee has shifted, else 0; rise: upwards, the others: down",
    (*_KNEE, "method"),
)
CAPACITY_RUNS = _capacity("counter", "capacity_runs_total", "Capacity runs by how they ended", ("target", "outcome"))
CAPACITY_REFUSALS = _capacity(
    "counter",
    "capacity_refusals_total",
    "Scheduled capacity runs that were not allowed to begin, by the reason",
    ("target", "reason"),
)
GUARD_TRIPS = _capacity("counter", "guard_trips_total", "Times the guard stopped our load", ("target", "reason"))
OVER_OBJECTIVE = _capacity(
    "counter",
    "capacity_over_objective_seconds_total",
    "Seconds in which our load had requests over an objective",
    ("target",),
)

# Self. The label is `task`, because Prometheus puts its own `job` on every series.
BUILD_INFO = _monitor("gauge", "build_info", "1, labelled with Kneewatch's version", ("version",))
CONFIG_HASH = _monitor("gauge", "config_hash_info", "1, labelled with a digest of the configuration", ("hash",))
CONFIG_TAKEN = _monitor(
    "gauge",
    "config_last_reload_successful",
    "1 while what is watched is what the configuration file says; 0: its last change was refused",
)
CONFIG_TAKEN_AT = _monitor(
    "gauge", "config_last_reload_success_timestamp_seconds", "When the configuration was last taken"
)
DISCOVERED = _monitor(
    "gauge", "discovered_targets", "Servers that a target's discovery has found, of all shards", ("target",)
)
DISCOVERY_FAILING = _monitor(
    "gauge",
    "discovery_failing",
    "1 while a target's discovery cannot be asked and what it said last stands, or while it leaves something out",
    ("target",),
)
SHARD = _monitor("gauge", "shard", "Which share of the targets this Kneewatch watches, from 0; none without shards")
SHARDS = _monitor("gauge", "shards", "Among how many Kneewatches the targets are shared; none without shards")
TARGET_INFO = _monitor(
    "gauge",
    "target_info",
    "1, labelled with what discovery knows of a target: label_... for each label of its pod",
    ("target", "discovery"),
)
CPU = _monitor("counter", "process_cpu_seconds_total", "CPU time of the monitor's process, its children apart")
MEMORY = _monitor("gauge", "process_resident_memory_bytes", "Memory of the monitor's process")
STARTED = _monitor("gauge", "process_start_time_seconds", "When the monitor began")
TASK_FAILURES = _monitor(
    "counter", "job_failures_total", "Scheduled tasks that failed, were late or were skipped", ("task", "target")
)
TASK_LAST_SUCCESS = _monitor(
    "gauge", "job_last_success_timestamp_seconds", "When a scheduled task last ran to its end", ("task", "target")
)
TASK_INTERVAL = _monitor("gauge", "job_interval_seconds", "How often a scheduled task is due", ("task", "target"))
TASK_LATENESS = _monitor(
    "histogram", "job_lateness_seconds", "How late a scheduled task began", ("task",), _LATENESS_BUCKETS
)
LOOP_LAG = _monitor(
    "histogram", "event_loop_lag_seconds", "How late the monitor's own event loop woke", (), _LAG_BUCKETS
)

ALL: tuple[Series, ...] = (*(value for value in list(globals().values()) if isinstance(value, Series)), *GPU)


def gpu(name: str) -> Series:
    """The relayed GPU value of that name. Raises KeyError for one that is not relayed."""
    return _GPU_BY_NAME[name]


def with_bounds(series: Series, thresholds: Iterable[float]) -> tuple[float, ...]:
    """The histogram's bucket bounds with every threshold among them, so an objective is counted, not interpolated."""
    return tuple(sorted({*series.buckets, *thresholds}))

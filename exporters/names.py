"""Every series Kneewatch exports, once: name, kind, help, labels, buckets, stability.

Exporters, dashboards, rules and tests take names from here, so a renamed series is an error in the
type check and not an empty panel. `stability` is a promise: "stable" changes only with a major version
and a deprecation; "experimental" may change.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "kneewatch_"


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `name` is what a query says: counters end in `_total`, histograms have no suffix."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # empty for a histogram whose bounds the server decides
    stability: str = "stable"

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
_LAG_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_REQUEST = ("target", "model", "workload", "traffic")
_SERVER = ("target",)
_CAPACITY = ("target", "model", "workload", "mode")


def _series(kind: str, name: str, help_: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()) -> Series:
    return Series(PREFIX + name, kind, help_, labels, buckets)


# Client: what a user of the server would have seen.
REQUESTS = _series("counter", "requests_total", "Requests that ended, by how they ended", (*_REQUEST, "outcome"))
GOOD_REQUESTS = _series(
    "counter",
    "good_requests_total",
    "Requests that met an objective: availability, ttft, tpot, or all of them",
    (*_REQUEST, "objective"),
)
TTFT = _series(
    "histogram",
    "ttft_seconds",
    "Time from the scheduled send to the first content",
    _REQUEST,
    _LATENCY_BUCKETS,
)
ITL = _series("histogram", "itl_seconds", "Gap between successive token events of a stream", _REQUEST, _TOKEN_BUCKETS)
TPOT = _series(
    "histogram",
    "tpot_seconds",
    "Mean time per output token after the first, one sample a request",
    _REQUEST,
    _TOKEN_BUCKETS,
)
E2E = _series("histogram", "e2e_seconds", "Time from the scheduled send to the last token", _REQUEST, _LATENCY_BUCKETS)
SCHEDULE_LAG = _series("histogram", "schedule_lag_seconds", "How late a request was sent", _REQUEST, _LAG_BUCKETS)
TOKENS = _series(
    "counter",
    "tokens_total",
    "Tokens of our own requests; in full for those that were cancelled",
    ("target", "model", "traffic", "kind"),
)
LAST_SUCCESS = _series("gauge", "last_success_timestamp_seconds", "When a request last succeeded", _REQUEST)
TARGET_UP = _series(
    "gauge", "target_up", "1 when the last canary generated the tokens it asked for, else 0", ("target",)
)
OBJECTIVE_RATIO = _series(
    "gauge", "objective_ratio", "Share of requests that has to meet the objective", ("target", "objective")
)
OBJECTIVE_SECONDS = _series("gauge", "objective_seconds", "The objective's latency threshold", ("target", "objective"))

# Server: its own metrics, under names that do not change with its version.
SERVER_UP = _series("gauge", "server_scrape_up", "1 when the server's metrics were read at the last attempt", _SERVER)
SERVER_RUNNING = _series("gauge", "server_running_requests", "Requests the server is generating for", _SERVER)
SERVER_WAITING = _series(
    "gauge",
    "server_waiting_requests",
    "Requests in the server's queue, by reason where it says",
    (*_SERVER, "reason"),
)
SERVER_KV = _series(
    "gauge", "server_kv_cache_usage_ratio", "Share of the KV cache in use, of the fullest engine", _SERVER
)
SERVER_PREEMPTIONS = _series(
    "counter", "server_preemptions_total", "Requests pushed out of the KV cache and computed again", _SERVER
)
SERVER_PROMPT_TOKENS = _series("counter", "server_prompt_tokens_total", "Prompt tokens the server processed", _SERVER)
SERVER_GENERATION_TOKENS = _series("counter", "server_generation_tokens_total", "Tokens the server generated", _SERVER)
SERVER_PREFIX_QUERIES = _series(
    "counter", "server_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", _SERVER
)
SERVER_PREFIX_HITS = _series(
    "counter", "server_prefix_cache_hits_total", "Prompt tokens found in the prefix cache", _SERVER
)
SERVER_REJECTIONS = _series("counter", "server_rejections_total", "Requests the server refused to queue", _SERVER)
SERVER_TTFT = _series(
    "histogram", "server_ttft_seconds", "TTFT of all users' requests, as the server measures it", _SERVER
)
SERVER_ITL = _series(
    "histogram", "server_itl_seconds", "ITL of all users' requests, as the server measures it", _SERVER
)
SERVER_TPOT = _series(
    "histogram", "server_tpot_seconds", "TPOT of all users' requests, as the server measures it", _SERVER
)
SERVER_E2E = _series(
    "histogram", "server_e2e_seconds", "E2E of all users' requests, as the server measures it", _SERVER
)
SERVER_QUEUE = _series("histogram", "server_queue_seconds", "Time requests waited in the server's queue", _SERVER)
SERVER_PREFILL = _series("histogram", "server_prefill_seconds", "Time the server read requests' prompts for", _SERVER)
SERVER_DECODE = _series("histogram", "server_decode_seconds", "Time the server generated for requests", _SERVER)
SERVER_ITERATION_TOKENS = _series(
    "histogram", "server_iteration_tokens", "Tokens the server computed in a step of its engine", _SERVER
)
SERVER_PREEMPTIONS_PER_REQUEST = _series(
    "histogram",
    "server_preemptions_per_request",
    "How often a request was preempted; source: the server's own histogram, or counters, which give sum and count only",
    (*_SERVER, "source"),
)
SERVER_DRAFTS = _series(
    "counter", "server_speculation_drafts_total", "Steps of the server in which it speculated", _SERVER
)
SERVER_DRAFT_TOKENS = _series(
    "counter", "server_speculation_draft_tokens_total", "Tokens the server speculated on", _SERVER
)
SERVER_ACCEPTED_TOKENS = _series(
    "counter", "server_speculation_accepted_tokens_total", "Tokens it speculated on and kept", _SERVER
)
SERVER_INFO = _series(
    "gauge", "server_info", "1, labelled with the engine and its version", (*_SERVER, "engine", "version")
)
SERVER_SCRAPE_ERRORS = _series(
    "counter", "server_scrape_errors_total", "Attempts to read the server's metrics that failed", _SERVER
)

# Capacity: the knee, as the last run that found one measured it.
CAPACITY_RPS = _series(
    "gauge",
    "capacity_requests_per_second",
    "Requests per second the server takes within every objective",
    _CAPACITY,
)
CAPACITY_RPS_LOWER = _series("gauge", "capacity_requests_per_second_lower", "Lower bound of the same", _CAPACITY)
CAPACITY_RPS_UPPER = _series(
    "gauge",
    "capacity_requests_per_second_upper",
    "Upper bound of the same; absent where no load broke an objective",
    _CAPACITY,
)
CAPACITY_TOKENS = _series(
    "gauge", "capacity_output_tokens_per_second", "Output tokens per second at the knee", _CAPACITY
)
MODEL_RESIDUAL = _series(
    "gauge",
    "capacity_model_residual_ratio",
    "The forecast before the last run that measured capacity over what it measured, less 1",
    ("target", "model", "workload"),
)
KNEE_CONCURRENCY = _series("gauge", "knee_concurrency", "Requests in flight at the knee", _CAPACITY)
CAPACITY_LAST_SUCCESS = _series(
    "gauge", "capacity_last_success_timestamp_seconds", "When capacity was last measured", _CAPACITY
)
CAPACITY_FINGERPRINT = _series(
    "gauge",
    "capacity_fingerprint",
    "Digest of what the capacity holds for (model, engine, flags, workload, objectives) as a number: equal or not",
    _CAPACITY,
)
KNEE_BASELINE = _series(
    "gauge", "knee_baseline_requests_per_second", "Median capacity that the knee is compared with", _CAPACITY
)
KNEE_BASELINE_SINCE = _series(
    "gauge", "knee_baseline_since_timestamp_seconds", "When the first run of that baseline was made", _CAPACITY
)
KNEE_SHIFT = _series(
    "gauge", "knee_shift_ratio", "The last capacity over its baseline, less 1: -0.1 is 10 % less", _CAPACITY
)
KNEE_SHIFTED = _series(
    "gauge",
    "knee_shifted",
    "1 while this method says that the knee has shifted, else 0; rise: upwards, the others: down",
    (*_CAPACITY, "method"),
)
CAPACITY_RUNS = _series("counter", "capacity_runs_total", "Capacity runs by how they ended", ("target", "outcome"))
CAPACITY_REFUSALS = _series(
    "counter",
    "capacity_refusals_total",
    "Scheduled capacity runs that were not allowed to begin, by the reason",
    ("target", "reason"),
)
GUARD_TRIPS = _series("counter", "guard_trips_total", "Times the guard stopped our load", ("target", "reason"))
OVER_OBJECTIVE = _series(
    "counter",
    "capacity_over_objective_seconds_total",
    "Seconds in which our load had requests over an objective",
    ("target",),
)

# Self. The label is `task`, because Prometheus puts its own `job` on every series.
BUILD_INFO = _series("gauge", "build_info", "1, labelled with Kneewatch's version", ("version",))
CONFIG_HASH = _series("gauge", "config_hash_info", "1, labelled with a digest of the configuration", ("hash",))
TASK_FAILURES = _series(
    "counter", "job_failures_total", "Scheduled tasks that failed, were late or were skipped", ("task", "target")
)
TASK_LAST_SUCCESS = _series(
    "gauge", "job_last_success_timestamp_seconds", "When a scheduled task last ran to its end", ("task", "target")
)
TASK_INTERVAL = _series("gauge", "job_interval_seconds", "How often a scheduled task is due", ("task", "target"))
LOOP_LAG = _series(
    "histogram", "event_loop_lag_seconds", "How late the monitor's own event loop woke", (), _LAG_BUCKETS
)

ALL: tuple[Series, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Series))


def with_bounds(series: Series, thresholds: Iterable[float]) -> tuple[float, ...]:
    """The histogram's bucket bounds with every threshold among them, so an objective is counted, not interpolated."""
    return tuple(sorted({*series.buckets, *thresholds}))

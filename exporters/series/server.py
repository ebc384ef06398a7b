"""Series of the server's own metrics, under names that do not change with its version."""

from functools import partial

from exporters.series.declaration import TARGET, declare

_ENGINE = ("target", "engine_index")
_declare = partial(declare, "server")

SERVER_UP = _declare(
    "gauge", "server_scrape_up", "1 if the last scrape of the server's metrics succeeded, else 0", TARGET
)
SERVER_TARGETS = _declare(
    "gauge",
    "server_targets",
    "Targets with this server's metrics page, the target itself included. They have the same kneewatch_server_* and"
    " kneewatch_users_*: divide by it before a sum over targets",
    TARGET,
)
SERVER_RUNNING = _declare("gauge", "server_running_requests", "Running requests in the server's batch", TARGET)
SERVER_WAITING = _declare(
    "gauge",
    "server_waiting_requests",
    "Requests in the server's queue, by reason if the server reports it",
    (*TARGET, "reason"),
)
SERVER_KV = _declare(
    "gauge",
    "server_kv_cache_usage_ratio",
    "Share of the KV cache in use, of the engine with the highest usage",
    TARGET,
)
SERVER_PREEMPTIONS = _declare(
    "counter", "server_preemptions_total", "Requests pushed out of the KV cache and computed again", TARGET
)
SERVER_PROMPT_TOKENS = _declare(
    "counter", "server_prompt_tokens_total", "Prompt tokens that the server processed", TARGET
)
SERVER_GENERATION_TOKENS = _declare(
    "counter", "server_generation_tokens_total", "Output tokens that the server generated", TARGET
)
SERVER_PREFIX_QUERIES = _declare(
    "counter", "server_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", TARGET
)
SERVER_PREFIX_HITS = _declare(
    "counter", "server_prefix_cache_hits_total", "Prompt tokens found in the prefix cache", TARGET
)
SERVER_EXTERNAL_QUERIES = _declare(
    "counter",
    "server_external_cache_queries_total",
    "Prompt tokens looked up in the KV caches of other servers, or in a store",
    TARGET,
)
SERVER_EXTERNAL_HITS = _declare(
    "counter",
    "server_external_cache_hits_total",
    "Prompt tokens found there, whose KV cache is fetched and not computed; those of a transfer that fails included",
    TARGET,
)
SERVER_KV_TRANSFERS = _declare(
    "counter", "server_kv_transfers_total", "KV caches that the server fetched from another one", TARGET
)
SERVER_KV_TRANSFER_SECONDS = _declare(
    "counter", "server_kv_transfer_seconds_total", "Duration of these transfers", TARGET
)
SERVER_KV_TRANSFER_BYTES = _declare("counter", "server_kv_transfer_bytes_total", "Size of these transfers", TARGET)
SERVER_KV_TRANSFER_FAILURES = _declare(
    "counter",
    "server_kv_transfer_failures_total",
    "Failed transfers, handshakes and notifications; one request may count twice",
    TARGET,
)
SERVER_KV_TRANSFERS_EXPIRED = _declare(
    "counter",
    "server_kv_transfers_expired_total",
    "KV caches that this server computed and that no other one fetched in time",
    TARGET,
)
SERVER_ROLE = _declare(
    "gauge",
    "server_role",
    "1, labelled with the part of each request that the server computes: prefill or decode; absent for both",
    (*TARGET, "role"),
)
SERVER_REJECTIONS = _declare("counter", "server_rejections_total", "Requests that the server refused to queue", TARGET)
SERVER_CORRUPTED = _declare(
    "counter",
    "server_corrupted_requests_total",
    "Finished requests with NaN in their logits (vLLM with VLLM_COMPUTE_NANS_IN_LOGITS=1)",
    TARGET,
)
SERVER_TTFT = _declare("histogram", "server_ttft_seconds", "TTFT of all requests, measured by the server", TARGET)
SERVER_ITL = _declare("histogram", "server_itl_seconds", "ITL of all requests, measured by the server", TARGET)
SERVER_TPOT = _declare("histogram", "server_tpot_seconds", "TPOT of all requests, measured by the server", TARGET)
SERVER_E2E = _declare("histogram", "server_e2e_seconds", "E2E latency of all requests, measured by the server", TARGET)
SERVER_QUEUE = _declare("histogram", "server_queue_seconds", "Time that requests waited in the server's queue", TARGET)
SERVER_PREFILL = _declare("histogram", "server_prefill_seconds", "Time that requests spent in prefill", TARGET)
SERVER_DECODE = _declare("histogram", "server_decode_seconds", "Time that requests spent in decode", TARGET)
SERVER_ITERATION_TOKENS = _declare(
    "histogram", "server_iteration_tokens", "Tokens that the server computed per engine step", TARGET
)
SERVER_PREEMPTIONS_PER_REQUEST = _declare(
    "histogram",
    "server_preemptions_per_request",
    "Preemptions per request; source: the server's own histogram, or counters, which give only sum and count",
    (*TARGET, "source"),
)
SERVER_DRAFTS = _declare("counter", "server_speculation_drafts_total", "Drafts of speculative decoding", TARGET)
SERVER_DRAFT_TOKENS = _declare(
    "counter", "server_speculation_draft_tokens_total", "Draft tokens of speculative decoding", TARGET
)
SERVER_ACCEPTED_TOKENS = _declare(
    "counter", "server_speculation_accepted_tokens_total", "Accepted draft tokens of speculative decoding", TARGET
)
SERVER_FLOPS = _declare(
    "counter",
    "server_estimated_flops_total",
    "Floating-point operations per GPU of each engine, by the server's own estimate, if that option is on",
    TARGET,
)
SERVER_READ_BYTES = _declare(
    "counter", "server_estimated_read_bytes_total", "Bytes read from GPU memory, by the same estimate", TARGET
)
SERVER_WRITE_BYTES = _declare(
    "counter", "server_estimated_write_bytes_total", "Bytes written to GPU memory, by the same estimate", TARGET
)
SERVER_KV_LIFETIME = _declare(
    "histogram", "server_kv_block_lifetime_seconds", "Time from a KV block's allocation to its eviction", TARGET
)
SERVER_KV_IDLE = _declare(
    "histogram", "server_kv_block_idle_seconds", "Time from a KV block's last use to its eviction", TARGET
)
SERVER_KV_REUSE = _declare(
    "histogram", "server_kv_block_reuse_gap_seconds", "Time between two uses of a KV block", TARGET
)
SERVER_ADAPTER = _declare(
    "gauge", "server_adapter_running", "1 for each LoRA adapter with running requests", (*TARGET, "adapter")
)
# For servers with several data-parallel engines. The series above cover all engines, except for the KV cache usage.
ENGINE_RUNNING = _declare("gauge", "server_engine_running_requests", "Running requests in an engine's batch", _ENGINE)
ENGINE_WAITING = _declare("gauge", "server_engine_waiting_requests", "Requests in an engine's queue", _ENGINE)
ENGINE_KV = _declare("gauge", "server_engine_kv_cache_usage_ratio", "Share of an engine's KV cache in use", _ENGINE)
ENGINE_PREEMPTIONS = _declare(
    "counter", "server_engine_preemptions_total", "Requests pushed out of an engine's KV cache", _ENGINE
)
ENGINE_GENERATION_TOKENS = _declare(
    "counter", "server_engine_generation_tokens_total", "Output tokens that an engine generated", _ENGINE
)
SERVER_INFO = _declare(
    "gauge", "server_info", "1, labelled with the engine and its version", (*TARGET, "engine", "version")
)
SERVER_STARTED = _declare(
    "gauge", "server_started_timestamp_seconds", "Start time of the server's process, if the server exports it", TARGET
)
SERVER_ASLEEP = _declare(
    "gauge",
    "server_asleep",
    "1 while the server sleeps, or is paused by /sleep?level=0, and so gets no requests from Kneewatch; 0 while it is"
    " awake; absent if its metrics do not show it",
    TARGET,
)
SERVER_SCRAPE_ERRORS = _declare(
    "counter",
    "server_scrape_errors_total",
    "Failed scrapes of the server's metrics by reason",
    (*TARGET, "reason"),
)
SERVER_SCRAPE_SECONDS = _declare(
    "gauge", "server_scrape_duration_seconds", "Duration of the last scrape of the server's metrics", TARGET
)
SERVER_SCRAPE_BYTES = _declare("gauge", "server_scrape_page_bytes", "Size of the server's metrics page", TARGET)

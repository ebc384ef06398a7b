"""The values of a server's metrics page, a row for each: its meaning, its series, and how replicas' values are merged.

An engine's file in `probe/scrape` says by which names its page has a value. Everything else follows from the row: the
exported series (`names.SERVER[key]` for rules and panels), the merged value of replicas, the counters to splice gaps
out of, and the signs of a restart.
"""

from dataclasses import dataclass
from enum import StrEnum


class ValueKind(StrEnum):
    """What a value is, in Prometheus' words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the values of replicas, or of engines on one page, become one."""

    SUM = "sum"  # unknown if it is unknown for one replica
    LARGEST = "largest"  # unknown if it is unknown for one replica
    PRESENT = "present"  # the sum over the replicas that have it: a value that appears with its first event


@dataclass(frozen=True, slots=True)
class Value:
    """One value. `series` is its name after `kneewatch_server_`; without one it is not exported.

    `label`: of a value that has several parts, what tells them apart. `whole`: the value that is exported in its place,
    with the label "unknown", where a page does not have the parts. `shows_restart`: a lower count than before is of
    another process.
    """

    key: str
    kind: ValueKind
    series: str = ""
    help: str = ""
    merge: Merge = Merge.SUM
    label: str = ""
    whole: str = ""
    shows_restart: bool = False


_G, _C, _H = ValueKind.GAUGE, ValueKind.COUNTER, ValueKind.HISTOGRAM
VALUES: tuple[Value, ...] = (
    Value("running", _G, "running_requests", "Running requests in the server's batch"),
    Value("waiting", _G),
    Value("waiting_by_reason", _G, "waiting_requests",
          "Requests in the server's queue, by reason if the server reports it", Merge.PRESENT, label="reason",
          whole="waiting"),
    Value("kv_cache_usage", _G, "kv_cache_usage_ratio",
          "Share of the KV cache in use; of several engines, in the fullest", Merge.LARGEST),
    Value("kv_cache_tokens", _G, "kv_cache_tokens",
          "Tokens that the KV cache has room for, of all engines, by the server's own figure"),
    Value("kv_cache_bytes", _G, "kv_cache_bytes", "KV cache on each GPU in bytes, if --kv-cache-memory-bytes sets it",
          Merge.LARGEST),
    Value("kv_block_tokens", _G),  # that all blocks have room for, if one kind of attention takes them all
    Value("kv_longest_requests", _G),  # of max_model_len, that fit, if several kinds of attention use the cache
    Value("preemptions", _C, "preemptions_total", "Requests pushed out of the KV cache and computed again",
          shows_restart=True),
    Value("prompt_tokens", _C, "prompt_tokens_total", "Prompt tokens that the server processed", shows_restart=True),
    Value("generation_tokens", _C, "generation_tokens_total", "Output tokens that the server generated",
          shows_restart=True),
    Value("progress", _C),  # tokens or steps: grows with each step while there is work
    Value("finished", _C, merge=Merge.PRESENT, label="reason"),
    Value("outcomes", _C, label="outcome"),  # ok, failed by the server's fault, aborted by the client; absent: unknown
    Value("http_errors", _C, merge=Merge.PRESENT),  # answers with status 5xx; some of them are among the failed, too
    Value("prefix_cache_queries", _C, "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
          shows_restart=True),
    Value("prefix_cache_hits", _C, "prefix_cache_hits_total", "Prompt tokens found in the prefix cache"),
    Value("external_cache_queries", _C, "external_cache_queries_total",
          "Prompt tokens looked up in the KV caches of other servers, or in a store"),
    Value("external_cache_hits", _C, "external_cache_hits_total",
          "Prompt tokens whose KV cache was found on another server or in a store (failed transfers included)"),
    Value("prompt_tokens_by_source", _C, "prompt_tokens_by_source_total",
          "Prompt tokens by where the server got their KV cache", label="origin"),
    Value("cached_tokens_by_source", _C, "cached_prompt_tokens_total",
          "Prompt tokens whose KV cache was found, by the tier that had it", label="tier"),
    Value("kv_fetches", _G, "kv_fetch_requests", "Waiting requests whose KV cache is fetched, by stage",
          label="stage"),
    Value("kv_transfers", _C, "kv_transfers_total",
          "KV caches that the server fetched from other servers or from a store"),
    Value("kv_transfer_seconds", _C, "kv_transfer_seconds_total", "Seconds spent fetching them"),
    Value("kv_transfer_bytes", _C, "kv_transfer_bytes_total", "Bytes fetched with them"),
    Value("kv_transfer_failures", _C, "kv_transfer_failures_total",
          "Failed KV cache transfers, handshakes and notifications; one request may count twice"),
    Value("kv_transfers_expired", _C, "kv_transfers_expired_total",
          "KV caches that this server computed and that no other server fetched in time"),
    Value("kv_offload_read_bytes", _C, "kv_offload_read_bytes_total",
          "Bytes of KV cache that came back from host memory or disk"),
    Value("kv_offload_written_bytes", _C, "kv_offload_written_bytes_total",
          "Bytes of KV cache that left for host memory or disk"),
    Value("kv_offload_failures", _C, "kv_offload_failures_total",
          "Writes and reads of KV cache in host memory, on disk or in a store that came to nothing, by reason",
          Merge.PRESENT, label="reason"),
    Value("prompt_requests", _C, "requests_by_prompt_total",
          "Requests that ended, by the most tokens that their prompts have (Kneewatch's plugin for vLLM)",
          Merge.PRESENT, label="up_to_tokens"),
    Value("prompt_queue_seconds", _C, "queue_seconds_by_prompt_total",
          "Time that they waited in the queue (Kneewatch's plugin for vLLM)", Merge.PRESENT, label="up_to_tokens"),
    Value("prompt_prefill_seconds", _C, "prefill_seconds_by_prompt_total",
          "Time from then to their first token (Kneewatch's plugin for vLLM)", Merge.PRESENT, label="up_to_tokens"),
    Value("oldest_request", _G, "oldest_request_seconds",
          "Age of the oldest request in flight (Kneewatch's plugin for vLLM)", Merge.LARGEST),
    Value("oldest_unanswered", _G, "oldest_unanswered_request_seconds",
          "Age of the oldest request that has no token yet (Kneewatch's plugin for vLLM)", Merge.LARGEST),
    Value("rejections", _C, merge=Merge.PRESENT, shows_restart=True),
    Value("rejections_by_reason", _C, "rejections_total",
          "Requests that the server refused to queue, by reason if the server reports it", Merge.PRESENT,
          label="reason", whole="rejections"),
    Value("corrupted", _C, "corrupted_requests_total",
          "Finished requests with NaN in their logits (vLLM with VLLM_COMPUTE_NANS_IN_LOGITS=1)", Merge.PRESENT),
    Value("drafts", _C, "speculation_drafts_total", "Drafts of speculative decoding"),
    Value("draft_tokens", _C, "speculation_draft_tokens_total", "Draft tokens of speculative decoding"),
    Value("accepted_tokens", _C, "speculation_accepted_tokens_total", "Accepted draft tokens of speculative decoding"),
    Value("estimated_flops", _C, "estimated_flops_total",
          "Floating-point operations per GPU of each engine, estimated by the server if that option is on"),
    Value("estimated_read_bytes", _C, "estimated_read_bytes_total",
          "Bytes read from GPU memory per GPU of each engine, estimated by the server if that option is on"),
    Value("estimated_write_bytes", _C, "estimated_write_bytes_total",
          "Bytes written to GPU memory per GPU of each engine, estimated by the server if that option is on"),
    Value("ttft", _H, "ttft_seconds", "TTFT of all requests, measured by the server"),
    Value("itl", _H, "itl_seconds", "ITL of all requests, measured by the server"),
    Value("tpot", _H, "tpot_seconds", "TPOT of all requests, measured by the server"),
    Value("e2e", _H, "e2e_seconds", "E2E latency of all requests, measured by the server"),
    Value("queue", _H, "queue_seconds", "Time that requests waited in the server's queue"),
    Value("prefill", _H, "prefill_seconds", "Time that requests spent in prefill"),
    Value("decode", _H, "decode_seconds", "Time that requests spent in decode"),
    Value("iteration_tokens", _H, "iteration_tokens", "Tokens that the server computed in an engine step"),
    Value("preemptions_per_request", _H),  # exported with its source: preemptions and finished are one, too
    Value("prompt_length", _H),
    Value("output_length", _H),
    Value("kv_block_lifetime", _H, "kv_block_lifetime_seconds", "Time from a KV block's allocation to its eviction"),
    Value("kv_block_idle", _H, "kv_block_idle_seconds", "Time from a KV block's last use to its eviction"),
    Value("kv_block_reuse_gap", _H, "kv_block_reuse_gap_seconds", "Time between two uses of a KV block"),
)  # fmt: skip
BY_KEY = {value.key: value for value in VALUES}
# Values of one of a server's data-parallel engines: the fields of EngineSnapshot.
ENGINE_VALUES: tuple[Value, ...] = (
    Value("running", _G, "engine_running_requests", "Running requests in an engine's batch"),
    Value("waiting", _G, "engine_waiting_requests", "Requests in an engine's queue"),
    Value("kv_cache_usage", _G, "engine_kv_cache_usage_ratio", "Share of an engine's KV cache in use"),
    Value("preemptions", _C, "engine_preemptions_total", "Requests pushed out of an engine's KV cache"),
    Value("generation_tokens", _C, "engine_generation_tokens_total", "Output tokens that an engine generated"),
)  # fmt: skip


def plain(values: tuple[Value, ...] = VALUES) -> tuple[Value, ...]:
    """Return the rows with a single number as value."""
    return tuple(value for value in values if value.kind is not ValueKind.HISTOGRAM and not value.label)


def plain_counters(values: tuple[Value, ...] = VALUES) -> tuple[str, ...]:
    """Return the keys of the counters that are one number each."""
    return tuple(value.key for value in plain(values) if value.kind is ValueKind.COUNTER)

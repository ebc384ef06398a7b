"""What vLLM's page says of KV caches that move: to and from other servers, a store, host memory or disk. Pure.

Each connector has names of its own, and a server may have several (MultiConnector), so their values are summed. NIXL
and Mooncake fetch from other servers; 3FS, LMCache and Mooncake's store keep caches for all. The names are those of
vLLM 0.32 and 0.33 (`distributed/kv_transfer/kv_connector/v1`, `v1/kv_offload`, `v1/simple_kv_offload`) and of LMCache
0.5 (`observability.py`); only NIXL's pages were recorded.
"""

from collections.abc import Mapping

from probe.scrape.metrics_parser import Samples, added, known, total
from probe.scrape.reads import Read, Reads

_STORE_CALLS = "vllm:mooncake_store_operation_total"
_STORE_BYTES = "vllm:mooncake_store_operation_bytes_total"
_STORE_SECONDS = "vllm:mooncake_store_operation_time_seconds_sum"
_STORE_READ, _STORE_WRITE = "load_get", "save_put"
_LMCACHE_READ_MS = "lmcache:remote_time_to_get_sum"

_FETCHED = (
    "vllm:nixl_xfer_time_seconds_count",
    "vllm:mooncake_xfer_time_seconds_count",
    "vllm:hf3fs_load_duration_seconds_count",
    "lmcache:num_remote_read_requests_total",
)
_FETCH_SECONDS = (
    "vllm:nixl_xfer_time_seconds_sum",
    "vllm:mooncake_xfer_time_seconds_sum",
    "vllm:hf3fs_load_duration_seconds_sum",
)
_FETCHED_BYTES = (
    "vllm:nixl_bytes_transferred_sum",
    "vllm:mooncake_bytes_transferred_sum",
    "lmcache:num_remote_read_bytes_total",
)
_NOT_FETCHED = (
    "vllm:nixl_num_failed_transfers_total",  # failed notifications are among them
    "vllm:mooncake_num_failed_transfers_total",
    "vllm:mooncake_num_failed_recvs_total",
    "vllm:hf3fs_num_failed_load_total",
    "lmcache:get_blocking_failed_count",
)
_EXPIRED = ("vllm:nixl_num_kv_expired_reqs_total", "vllm:mooncake_num_kv_expired_reqs_total")
# To 0.31 one series had both directions.
_OFFLOADED, _READ_BACK, _WRITTEN_OUT = "vllm:kv_offload_total_bytes_total", "CPU_to_GPU", "GPU_to_CPU"
_OFFLOAD_READ, _OFFLOAD_WRITTEN = "vllm:kv_offload_load_bytes_total", "vllm:kv_offload_store_bytes_total"
_SIMPLE_OUTCOMES = "vllm:simple_kv_offload_save_outcomes_total"
# By reason: the tier was full, or an operation failed, or was given up since the tier was behind.
_OFFLOAD_FAILURES: Mapping[str, tuple[str, ...]] = {
    "full": (
        "vllm:kv_offload_allocation_failure_total",
        "vllm:kv_offload_tiering_promotion_allocation_failures_total",
    ),
    "failed": (
        "vllm:kv_offload_tiering_promotion_job_failures_total",
        "vllm:kv_offload_tiering_cascade_job_failures_total",
        "vllm:hf3fs_num_failed_save_total",
        "lmcache:put_failed_count",
    ),
    "behind": ("vllm:kv_offload_tiering_backpressure_stores_dropped_total",),
}


def _sum(found: Samples, names: tuple[str, ...]) -> float | None:
    return added(*(total(found, name) for name in names))


def _store_failures(found: Samples, operation: str) -> float | None:
    calls = total(found, _STORE_CALLS, operation=operation)
    return None if calls is None else calls - (total(found, _STORE_CALLS, operation=operation, status="ok") or 0.0)


def _fetched(found: Samples) -> float | None:
    return added(_sum(found, _FETCHED), total(found, _STORE_CALLS, operation=_STORE_READ, status="ok"))


def _fetch_seconds(found: Samples) -> float | None:
    milliseconds = total(found, _LMCACHE_READ_MS)
    of_store = total(found, _STORE_SECONDS, operation=_STORE_READ)
    return added(_sum(found, _FETCH_SECONDS), of_store, None if milliseconds is None else milliseconds / 1000)


def _fetched_bytes(found: Samples) -> float | None:
    return added(_sum(found, _FETCHED_BYTES), total(found, _STORE_BYTES, operation=_STORE_READ))


def _not_fetched(found: Samples) -> float | None:
    return added(_sum(found, _NOT_FETCHED), _store_failures(found, _STORE_READ))


def _offloaded(found: Samples, name: str, direction: str) -> float | None:
    today = total(found, name)
    return total(found, _OFFLOADED, transfer_type=direction) if today is None else today


def _offload_failures(found: Samples) -> dict[str, float]:
    counts = {reason: _sum(found, names) for reason, names in _OFFLOAD_FAILURES.items()}
    counts["full"] = added(counts["full"], total(found, _SIMPLE_OUTCOMES, outcome="dropped_cpu_full"))
    counts["failed"] = added(counts["failed"], _store_failures(found, _STORE_WRITE))
    return known(**counts)


KV_TRANSFERS: Reads = {
    "kv_transfers": Read((*_FETCHED, _STORE_CALLS), _fetched),
    "kv_transfer_seconds": Read((*_FETCH_SECONDS, _STORE_SECONDS, _LMCACHE_READ_MS), _fetch_seconds),
    "kv_transfer_bytes": Read((*_FETCHED_BYTES, _STORE_BYTES), _fetched_bytes),
    "kv_transfer_failures": Read((*_NOT_FETCHED, _STORE_CALLS), _not_fetched),
    "kv_transfers_expired": Read(_EXPIRED, lambda found: _sum(found, _EXPIRED)),
    "kv_offload_read_bytes": Read(
        (_OFFLOAD_READ, _OFFLOADED), lambda found: _offloaded(found, _OFFLOAD_READ, _READ_BACK)
    ),
    "kv_offload_written_bytes": Read(
        (_OFFLOAD_WRITTEN, _OFFLOADED), lambda found: _offloaded(found, _OFFLOAD_WRITTEN, _WRITTEN_OUT)
    ),
    "kv_offload_failures": Read(
        (*(name for names in _OFFLOAD_FAILURES.values() for name in names), _SIMPLE_OUTCOMES, _STORE_CALLS),
        _offload_failures,
    ),
}

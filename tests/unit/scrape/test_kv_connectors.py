"""KV caches that move: every connector's names, alone and together."""

import pytest

from probe.core.snapshot import ServerSnapshot
from probe.scrape import vllm
from probe.scrape.metrics_parser import samples

_LABELS = 'engine="0",model_name="m"'
NIXL = f"""
vllm:nixl_xfer_time_seconds_count{{{_LABELS}}} 10
vllm:nixl_xfer_time_seconds_sum{{{_LABELS}}} 2.5
vllm:nixl_bytes_transferred_sum{{{_LABELS}}} 8e6
vllm:nixl_num_failed_transfers_total{{{_LABELS}}} 2
vllm:nixl_num_kv_expired_reqs_total{{{_LABELS}}} 1
"""
MOONCAKE = f"""
vllm:mooncake_xfer_time_seconds_count{{{_LABELS}}} 20
vllm:mooncake_xfer_time_seconds_sum{{{_LABELS}}} 1.5
vllm:mooncake_bytes_transferred_sum{{{_LABELS}}} 4e6
vllm:mooncake_num_failed_transfers_total{{{_LABELS}}} 3
vllm:mooncake_num_failed_recvs_total{{{_LABELS}}} 4
vllm:mooncake_num_kv_expired_reqs_total{{{_LABELS}}} 5
"""
MOONCAKE_STORE = "".join(
    f'vllm:mooncake_store_operation_{name}{{{_LABELS},operation="{operation}",status="{status}"}} {value}\n'
    for operation, status, counts in (
        ("load_get", "ok", (7, 7e6, 0.5)),
        ("load_get", "partial_failure", (2, 1e6, 0.25)),
        ("load_get", "error", (1, 0, 0.25)),
        ("save_put", "ok", (9, 9e6, 1)),
        ("save_put", "error", (6, 0, 1)),
        ("save_exists", "error", (50, 0, 1)),  # a look-up moves no cache
    )
    for name, value in zip(("total", "bytes_total", "time_seconds_sum"), counts, strict=True)
)
LMCACHE = """
lmcache:num_remote_read_requests_total{model_name="m",worker_id="0"} 100
lmcache:num_remote_read_requests_total{model_name="m",worker_id="1"} 100
lmcache:num_remote_read_bytes_total{model_name="m",worker_id="0"} 5e6
lmcache:remote_time_to_get_sum{model_name="m",worker_id="0"} 1500
lmcache:get_blocking_failed_count{model_name="m",worker_id="0"} 8
lmcache:put_failed_count{model_name="m",worker_id="0"} 9
"""
HF3FS = f"""
vllm:hf3fs_load_duration_seconds_count{{{_LABELS}}} 4
vllm:hf3fs_load_duration_seconds_sum{{{_LABELS}}} 0.5
vllm:hf3fs_num_failed_load_total{{{_LABELS}}} 1
vllm:hf3fs_num_failed_save_total{{{_LABELS}}} 2
"""
NOTHING = 'vllm:num_requests_running{engine="0",model_name="m"} 0\n'


def page(text: str) -> ServerSnapshot:
    return vllm.ENGINE.snapshot(samples(NOTHING + text, vllm.ENGINE.wanted))


@pytest.mark.parametrize(
    ("text", "fetched", "seconds", "size", "failed", "expired"),
    [
        (NIXL, 10, 2.5, 8e6, 2, 1),
        (MOONCAKE, 20, 1.5, 4e6, 7, 5),
        (MOONCAKE_STORE, 7, 1.0, 8e6, 3, None),
        (LMCACHE, 200, 1.5, 5e6, 8, None),
        (HF3FS, 4, 0.5, None, 1, None),
        (NIXL + MOONCAKE + LMCACHE, 230, 5.5, 17e6, 17, 6),  # MultiConnector
        ("", None, None, None, None, None),
    ],
)
def test_transfers_of_all_connectors_are_summed(  # noqa: PLR0917 - a table
    text: str,
    fetched: float | None,
    seconds: float | None,
    size: float | None,
    failed: float | None,
    expired: float | None,
) -> None:
    found = page(text)
    assert found.value("kv_transfers") == fetched
    assert found.value("kv_transfer_seconds") == seconds
    assert found.value("kv_transfer_bytes") == size
    assert found.value("kv_transfer_failures") == failed
    assert found.value("kv_transfers_expired") == expired


def test_what_offloading_lost_has_its_reason() -> None:
    offload = f"""
vllm:kv_offload_load_bytes_total{{{_LABELS}}} 3e6
vllm:kv_offload_store_bytes_total{{{_LABELS}}} 9e6
vllm:kv_offload_total_bytes_total{{{_LABELS},transfer_type="CPU_to_GPU"}} 3e6
vllm:kv_offload_allocation_failure_total{{{_LABELS}}} 1
vllm:kv_offload_tiering_promotion_allocation_failures_total{{{_LABELS},tier="fs"}} 2
vllm:kv_offload_tiering_cascade_job_failures_total{{{_LABELS},tier="fs"}} 4
vllm:kv_offload_tiering_backpressure_stores_dropped_total{{{_LABELS},tier="fs"}} 8
vllm:simple_kv_offload_save_outcomes_total{{{_LABELS},outcome="stored"}} 1000
vllm:simple_kv_offload_save_outcomes_total{{{_LABELS},outcome="dropped_cpu_full"}} 16
"""
    found = page(offload + LMCACHE + MOONCAKE_STORE)
    assert found.parts("kv_offload_failures") == {"full": 19, "failed": 4 + 9 + 6, "behind": 8}
    assert (found.value("kv_offload_read_bytes"), found.value("kv_offload_written_bytes")) == (3e6, 9e6)
    assert page("").parts("kv_offload_failures") == {}


def test_an_older_page_has_both_directions_in_one_series() -> None:
    old = "".join(
        f'vllm:kv_offload_total_bytes_total{{{_LABELS},transfer_type="{way}"}} {size}\n'
        for way, size in (("CPU_to_GPU", 5), ("GPU_to_CPU", 6))
    )
    assert (page(old).value("kv_offload_read_bytes"), page(old).value("kv_offload_written_bytes")) == (5, 6)


def test_origins_of_prompt_tokens_stages_of_fetches_and_reasons_of_rejections_are_kept_apart() -> None:
    text = f"""
vllm:prompt_tokens_by_source_total{{{_LABELS},source="local_compute"}} 6
vllm:prompt_tokens_by_source_total{{{_LABELS},source="external_kv_transfer"}} 1000
vllm:prompt_tokens_cached_by_source_total{{{_LABELS},source="host"}} 300
vllm:prompt_tokens_cached_by_source_total{{{_LABELS},source="p2p"}} 700
vllm:num_requests_kv_fetch_by_stage{{{_LABELS},stage="in_progress"}} 2
vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_reqs"}} 4
vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_tokens"}} 5
"""
    found = page(text)
    assert found.parts("prompt_tokens_by_source") == {"local_compute": 6, "external_kv_transfer": 1000}
    assert found.parts("cached_tokens_by_source") == {"host": 300, "p2p": 700}
    assert found.parts("kv_fetches") == {"in_progress": 2}
    assert found.parts("rejections_by_reason") == {"max_num_queued_reqs": 4, "max_num_queued_tokens": 5}
    assert found.rejections == 9

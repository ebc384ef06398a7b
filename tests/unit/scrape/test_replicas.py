"""The pages of several replicas, as one snapshot."""

from dataclasses import fields, replace
from typing import Any

import pytest
from example_records import whole_snapshot
from plain_records import poll

from probe.core.server_limits import limits_of
from probe.core.snapshot import DIFFERS, EngineSnapshot, Histogram, ServerSnapshot, StepSums, differing_flags
from probe.scrape.replicas import merged, merged_flags

INF = float("inf")
ONE, OTHER = "one:8000", "other:8000"


def both(one: dict[str, Any], other: dict[str, Any]) -> ServerSnapshot:
    return merged({ONE: poll(**one), OTHER: poll(**other)})


def test_load_and_counters_are_sums_and_the_kv_cache_is_the_fullest() -> None:
    found = both(
        {"running": 3.0, "waiting": 1.0, "kv_cache_usage": 0.4, "generation_tokens": 10.0, "kv_cache_tokens": 100.0},
        {"running": 5.0, "waiting": 0.0, "kv_cache_usage": 0.9, "generation_tokens": 20.0, "kv_cache_tokens": 100.0},
    )
    assert (found.running, found.waiting, found.kv_cache_usage) == (8, 1, 0.9)
    assert (found.generation_tokens, found.kv_cache_tokens) == (30, 200)


def test_two_pages_with_every_value_lose_none() -> None:
    one = replace(whole_snapshot(), step_sums={"8": StepSums(*[1.0] * 6)}, scheduler_limits={"max_num_seqs": 8})
    found = merged({ONE: one, OTHER: one})
    lost = [field.name for field in fields(one) if getattr(one, field.name) and not getattr(found, field.name)]
    assert lost == []


def test_a_value_that_one_replica_does_not_expose_is_unknown() -> None:
    found = both({"waiting": 1.0, "preemptions": None}, {"waiting": None, "preemptions": 2.0})
    assert (found.waiting, found.preemptions, found.started_s) == (None, None, None)


def test_a_counter_that_appears_with_its_first_value_counts_from_zero() -> None:
    found = both({"finished": {"stop": 4.0, "error": 1.0}}, {"finished": {"stop": 6.0}})
    assert found.finished == {"stop": 10, "error": 1}


def test_histograms_are_sums_in_the_buckets_of_both() -> None:
    one = Histogram(((0.1, 1.0), (0.5, 2.0), (INF, 4.0)), 3.0)
    other = Histogram(((0.5, 1.0), (1.0, 5.0), (INF, 6.0)), 4.0)
    found = both({"histograms": {"ttft": one, "itl": one}}, {"histograms": {"ttft": other}})
    assert found.histograms == {"ttft": Histogram(((0.5, 3.0), (INF, 10.0)), 7.0)}


def test_the_snapshot_is_from_between_the_first_request_and_the_last_answer() -> None:
    found = both({"asked_ns": 5, "at_ns": 9, "wall_s": 1.0}, {"asked_ns": 4, "at_ns": 7, "wall_s": 3.0})
    assert (found.asked_ns, found.at_ns, found.wall_s) == (4, 9, 3.0)


def test_replicas_are_engines_whose_names_have_the_address() -> None:
    ranks = {"0": EngineSnapshot(running=1.0), "1": EngineSnapshot(running=2.0)}
    found = both({"running": 3.0, "engines": 2, "by_engine": ranks}, {"running": 4.0, "generation_tokens": 7.0})
    assert found.engines == 3
    assert {name: one.running for name, one in found.by_engine.items()} == {
        "one:8000/0": 1,
        "one:8000/1": 2,
        "other:8000": 4,
    }
    assert found.by_engine["other:8000"].generation_tokens == 7


def test_of_more_than_32_engines_none_is_named() -> None:
    found = merged({f"replica-{i}:8000": poll(running=1.0) for i in range(33)})
    assert (found.engines, found.running, found.by_engine) == (33, 33, {})


def test_only_when_all_replicas_sleep_is_nothing_served() -> None:
    assert both({"is_asleep": True}, {"is_asleep": False}).is_asleep is False
    assert both({"is_asleep": True}, {"is_asleep": True}).is_asleep is True
    assert both({"is_asleep": True}, {"is_asleep": None}).is_asleep is None


def test_flags_that_differ_are_shown_with_each_value() -> None:
    found = both(
        {"flags": {"block_size": "16", "cache_dtype": "auto"}, "version": "0.31.0"},
        {"flags": {"block_size": "16", "cache_dtype": "fp8"}, "version": "0.32.0"},
    )
    assert found.flags == {"block_size": "16", "cache_dtype": f"auto{DIFFERS}fp8", "replicas": "2"}
    assert found.version == f"0.31.0{DIFFERS}0.32.0"
    assert differing_flags(found.flags) == {"cache_dtype": f"auto{DIFFERS}fp8"}
    assert differing_flags(both({}, {}).flags) == {}


def test_a_limit_of_the_scheduler_counts_where_all_replicas_have_it() -> None:
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    found = both({"scheduler_limits": limits}, {"scheduler_limits": {**limits, "max_num_seqs": 128}})
    assert found.scheduler_limits == {"max_num_batched_tokens": 2048}


def test_a_limit_that_one_replica_lowers_is_unknown() -> None:
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    lowered = {**limits, "max_num_active_seqs": 64, "max_num_scheduled_tokens": 512}
    assert both({"scheduler_limits": limits}, {"scheduler_limits": lowered}).scheduler_limits == {}
    found = merged_flags([{"max_num_seqs": "256"}, {"max_num_seqs": "256", "max_num_active_seqs": "64"}])
    assert found == {"max_num_seqs": "256", "max_num_active_seqs": f"64{DIFFERS}default"}
    assert limits_of(found).running is None
    assert merged_flags([{"max_num_seqs": "256"}, {}]) == {}


def test_names_of_models_and_adapters_are_of_all_replicas() -> None:
    found = both({"models": ("b",), "adapters": ("x",)}, {"models": ("a", "b"), "adapters": ()})
    assert (found.models, found.adapters) == (("a", "b"), ("x",))


def test_pages_of_different_engines_are_refused() -> None:
    with pytest.raises(ValueError, match="one:8000 is vllm and other:8000 sglang"):
        both({"engine": "vllm"}, {"engine": "sglang"})


@pytest.mark.fault(
    "FA112",
    "32 replicas, each with other reasons for waiting",
    area="Foreign answers",
    users_see="20 reasons and `other`",
    stays="series do not grow with the replicas",
)
def test_reasons_of_many_replicas_are_as_few_as_those_of_one_page() -> None:
    pages = {f"r{i}": poll(waiting_by_reason={f"why-{i}-{j}": 1.0 for j in range(20)}) for i in range(32)}
    found = merged(pages).waiting_by_reason
    assert len(found) == 21
    assert (found["why-0-0"], found["other"]) == (1, 31 * 20)

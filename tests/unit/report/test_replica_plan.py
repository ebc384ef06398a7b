"""Knobs as words: a gain with its interval, no change, or the reason why it is not known."""

from dataclasses import replace

import pytest
from example_records import result

from probe.capacity.model.knobs import Knob
from probe.capacity.trend.replica_count import Demand, replicas_for
from probe.core.result import Capacity
from probe.report.replica_plan import ReplicaPlan, gain_words, knob_setting, plan_json, plan_markdown, plan_words

SEQS = Knob("max_num_seqs", 64, 128, gain=0.183, lower=0.12, upper=0.244)
KV = Knob("kv_cache", 400_000.0, 800_000.0, gain=0.001, lower=-0.03, upper=0.03)
CHUNK = Knob("max_num_batched_tokens", 2048, 4096, gain=-0.1, lower=-0.14, upper=-0.06)
BANDWIDTH = Knob("memory_bandwidth", None, None, reason="not shown")
MEASURED = Capacity("verified", 10.0, lower=9.0, upper=11.0, output_tokens_per_second=1280.0)


def _plan(*knobs: Knob, capacity: Capacity = MEASURED, spare: int = 1) -> ReplicaPlan:
    demand = Demand(40.0, 0.2, spare)
    return ReplicaPlan(
        "r.json", result(capacity=capacity), None, "40 requests/s", demand, replicas_for(demand, capacity), knobs
    )


@pytest.mark.parametrize(
    ("knob", "setting", "words"),
    [
        (SEQS, "max_num_seqs 64 -> 128", "+18 % (+12 to +24 %)"),
        (KV, "KV cache 400,000 -> 800,000 tokens", "no change (-3 to +3 %)"),
        (CHUNK, "max_num_batched_tokens 2,048 -> 4,096", "-10 % (-14 to -6 %)"),
        (BANDWIDTH, "memory bandwidth x2", "unknown: not shown"),
        (Knob("kv_cache", None, None, reason="x"), "KV cache x2", "unknown: x"),
        (Knob("max_num_seqs", None, None, reason="x"), "max_num_seqs x2", "unknown: x"),
    ],
)
def test_a_knob_is_its_setting_and_its_gain(knob: Knob, setting: str, words: str) -> None:
    assert (knob_setting(knob), gain_words(knob)) == (setting, words)


def test_each_knob_is_a_line_and_one_reason_for_all_is_said_once() -> None:
    lines = plan_words(_plan(SEQS, BANDWIDTH)).splitlines()
    assert lines[-3:-1] == [
        "Capacity with a setting 2 times as large, by the simulated copy of the server:",
        f"  {'max_num_seqs 64 -> 128':<40} +18 % (+12 to +24 %)",
    ]
    withheld = plan_words(_plan(replace(SEQS, gain=None, reason="x"), Knob("kv_cache", None, None, reason="x")))
    assert withheld.splitlines()[-1] == "The effect of other settings is unknown: x."
    assert "| max_num_seqs 64 -> 128 | +18 % (+12 to +24 %) |" in plan_markdown(_plan(SEQS, BANDWIDTH))


def test_without_spare_replicas_none_is_lost() -> None:
    words = plan_words(_plan(SEQS, spare=0))
    assert "Replicas:    6, for the lower end of the capacity with 20 % of it free; 5 for its upper end" in words
    assert "lost" not in words


def test_a_capacity_without_an_interval_is_planned_with_its_rate() -> None:
    words = plan_words(_plan(SEQS, capacity=replace(MEASURED, lower=None, upper=None)))
    assert "6 (5 + 1 spare), for the capacity with 20 % of it free" in words
    assert "lower end" not in words


def test_json_has_each_knob_with_its_gain_or_reason() -> None:
    written = plan_json(_plan(SEQS, BANDWIDTH))
    assert [(knob["name"], knob["gain"], knob["reason"]) for knob in written["knobs"]] == [
        ("max_num_seqs", 0.183, None),
        ("memory_bandwidth", None, "not shown"),
    ]
    assert written["cost"] is None

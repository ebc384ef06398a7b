"""Cross-checks as series: what cannot be told has none."""

from dataclasses import fields

from exposition import samples, value

from exporters.cross_checks import CrossChecksExporter
from exporters.names import CHECKS
from probe.core.snapshot import CrossChecks, Imbalance


def test_every_check_has_a_row() -> None:
    of_pages = ["engine_minutes", "user_minutes"]  # Prometheus has the counters that they are made of
    assert sorted([*(check.field for check in CHECKS), *of_pages]) == sorted(each.name for each in fields(CrossChecks))


def test_every_check_has_its_series() -> None:
    exporter = CrossChecksExporter()
    exporter.observe(
        "a",
        CrossChecks(
            ttft_gap_s={"matched": 0.003, "mean": -0.2},
            queue_share=0.4,
            counted={"prompt": 1.0, "output": 0.99},
            neighbour_utilization=0.6,
            stalled_s=12.0,
            pressure={"usage": True, "waiting": False},
            is_kv_cache_too_small=False,
            users_met={"ttft": False},
            users_uncertain={"ttft": 0.02},
            imbalance={"load": Imbalance("10.0.0.1:8000", 48, 19, 2.5)},
        ),
    )
    assert dict(samples(exporter.relay)) == {
        ("kneewatch_ttft_gap_seconds", frozenset({("target", "a"), ("method", "matched")})): 0.003,
        ("kneewatch_ttft_gap_seconds", frozenset({("target", "a"), ("method", "mean")})): -0.2,
        ("kneewatch_server_queue_share_ratio", frozenset({("target", "a")})): 0.4,
        ("kneewatch_server_counted_tokens_ratio", frozenset({("target", "a"), ("kind", "prompt")})): 1.0,
        ("kneewatch_server_counted_tokens_ratio", frozenset({("target", "a"), ("kind", "output")})): 0.99,
        ("kneewatch_gpu_neighbour_utilization_ratio", frozenset({("target", "a")})): 0.6,
        ("kneewatch_server_ambiguous", frozenset({("target", "a")})): 0.0,
        ("kneewatch_server_stalled_seconds", frozenset({("target", "a")})): 12.0,
        ("kneewatch_kv_pressure", frozenset({("target", "a"), ("sign", "usage")})): 1.0,
        ("kneewatch_kv_pressure", frozenset({("target", "a"), ("sign", "waiting")})): 0.0,
        ("kneewatch_kv_cache_too_small", frozenset({("target", "a")})): 0.0,
        ("kneewatch_users_objective_met", frozenset({("target", "a"), ("objective", "ttft")})): 0.0,
        ("kneewatch_users_uncertain_ratio", frozenset({("target", "a"), ("objective", "ttft")})): 0.02,
        ("kneewatch_engine_imbalance_ratio", frozenset({("target", "a"), ("reason", "load")})): 2.5,
    }


def test_values_that_are_no_longer_known_disappear() -> None:
    exporter = CrossChecksExporter()
    exporter.observe("a", CrossChecks(queue_share=0.4, stalled_s=0.0))
    exporter.observe("a", CrossChecks(stalled_s=0.0))
    assert value(exporter.relay, "kneewatch_server_queue_share_ratio", target="a") is None
    assert value(exporter.relay, "kneewatch_server_stalled_seconds", target="a") == 0

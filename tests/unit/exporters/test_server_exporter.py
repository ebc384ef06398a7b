"""The server's own metrics, relayed: as it said them, and gone when it says no more."""

import math
from dataclasses import replace

import pytest
from engine_pages import Engine, ranks, replicas
from example_records import CHAT, snapshot, whole_snapshot
from exposition import samples, value, values

from exporters import names
from exporters.rendered_samples import RenderedSamples
from exporters.server import ServerExporter, UserTrafficExporter
from probe.core.objectives import Objective, Objectives
from probe.core.server_values import plain
from probe.core.snapshot import EngineSnapshot, Histogram, ServerSnapshot, UserTotals


class Exporter(ServerExporter):
    """Readings of a tenth of a second and two kilobytes."""

    def read(self, target: str, snapshot: ServerSnapshot) -> None:
        self.observe(target, snapshot, 0.1, 2000)


def _registry(*targets: str) -> tuple[RenderedSamples, Exporter]:
    exporter = Exporter(targets or ("a",), ("timeout", "status"))
    return exporter.relay, exporter


def test_before_the_first_reading_there_are_only_errors_at_zero() -> None:
    registry, _ = _registry("a", "b")
    assert {name for name, _ in samples(registry)} == {"kneewatch_server_scrape_errors_total"}
    assert values(registry, "kneewatch_server_scrape_errors_total") == [0, 0, 0, 0]


def test_a_reading_is_relayed_as_it_was() -> None:
    registry, exporter = _registry()
    exporter.read("a", whole_snapshot())
    assert value(registry, "kneewatch_server_scrape_up", target="a") == 1
    for row in plain():
        if row.series:
            assert value(registry, f"kneewatch_server_{row.series}", target="a") == whole_snapshot().value(row.key)
    assert value(registry, "kneewatch_server_waiting_requests", target="a", reason="capacity") == 2
    assert value(registry, "kneewatch_server_waiting_requests", target="a", reason="deferred") == 0
    assert value(registry, "kneewatch_server_info", target="a", engine="vllm", version="0.32.0") == 1


@pytest.mark.parametrize("name", ["ttft", "itl", "tpot", "e2e", "queue"])
def test_a_histogram_is_relayed_bucket_for_bucket(name: str) -> None:
    registry, exporter = _registry()
    exporter.read("a", whole_snapshot())
    full = f"kneewatch_server_{name}_seconds"
    assert value(registry, f"{full}_bucket", target="a", le="0.3") == 1
    assert value(registry, f"{full}_bucket", target="a", le="0.5") == 2
    assert value(registry, f"{full}_bucket", target="a", le="+Inf") == 3
    assert value(registry, f"{full}_count", target="a") == 3
    assert value(registry, f"{full}_sum", target="a") == 1.5


def test_a_server_that_stops_answering_loses_its_values_and_is_down() -> None:
    registry, exporter = _registry("a", "b")
    exporter.read("a", whole_snapshot())
    exporter.read("b", whole_snapshot())
    exporter.count_failure("a", "timeout")
    of_a = {name for name, labels in samples(registry) if ("target", "a") in labels}
    assert of_a == {"kneewatch_server_scrape_up", "kneewatch_server_scrape_errors_total"}
    assert value(registry, "kneewatch_server_scrape_up", target="a") == 0
    assert value(registry, "kneewatch_server_scrape_errors_total", target="a", reason="timeout") == 1
    assert value(registry, "kneewatch_server_scrape_errors_total", target="a", reason="status") == 0
    assert value(registry, "kneewatch_server_running_requests", target="b") == 3
    exporter.count_failure("a", "timeout")
    assert value(registry, "kneewatch_server_scrape_errors_total", target="a", reason="timeout") == 2
    exporter.read("a", whole_snapshot())
    assert value(registry, "kneewatch_server_scrape_up", target="a") == 1
    assert value(registry, "kneewatch_server_running_requests", target="a") == 3
    assert value(registry, "kneewatch_server_scrape_errors_total", target="a", reason="timeout") == 2


def test_values_that_the_server_does_not_report_are_absent_and_not_zero() -> None:
    registry, exporter = _registry()
    exporter.read("a", replace(snapshot(), running=None, waiting=None, kv_cache_usage=None, preemptions=None))
    found = {name for name, labels in samples(registry) if ("target", "a") in labels}
    assert found == {
        "kneewatch_server_scrape_up",
        "kneewatch_server_scrape_errors_total",
        "kneewatch_server_scrape_duration_seconds",
        "kneewatch_server_scrape_page_bytes",
        "kneewatch_server_info",
    }


def test_a_queue_without_reasons_is_still_a_queue() -> None:
    registry, exporter = _registry()
    exporter.read("a", snapshot(waiting=5.0))
    assert value(registry, "kneewatch_server_waiting_requests", target="a", reason="unknown") == 5


def test_a_new_version_replaces_the_old_one() -> None:
    registry, exporter = _registry()
    exporter.read("a", snapshot())
    exporter.read("a", replace(snapshot(), version="0.33.0"))
    assert values(registry, "kneewatch_server_info") == [1]


@pytest.mark.parametrize("text", ['"', "\\", "\n", 'x"} 1\nevil{a="'])
def test_words_of_the_server_stay_inside_their_labels(text: str) -> None:
    registry, exporter = _registry()
    exporter.read("a", replace(snapshot(waiting_by_reason={text: 1.0}), version=text))
    assert value(registry, "kneewatch_server_info", target="a", engine="vllm", version=text) == 1
    assert value(registry, "kneewatch_server_waiting_requests", target="a", reason=text) == 1
    assert all(found.startswith("kneewatch_") for found, _ in samples(registry))


def test_a_histogram_without_buckets_is_left_out() -> None:
    registry, exporter = _registry()
    exporter.read("a", snapshot(histograms={"ttft": Histogram(buckets=(), sum=0.0)}))
    assert values(registry, f"{names.SERVER['ttft'].name}_count") == []


def test_preemptions_of_a_request_are_the_servers_histogram_or_a_sum_and_a_count() -> None:
    registry, exporter = _registry("a", "b", "c")
    name = "kneewatch_server_preemptions_per_request"
    reported = Histogram(((1.0, 9.0), (2.0, 10.0), (float("inf"), 10.0)), 2.0)
    exporter.read("a", replace(snapshot(), histograms={"preemptions_per_request": reported}))
    exporter.read("b", replace(snapshot(), preemptions=7.0, finished={"stop": 30.0, "abort": 5.0}))
    exporter.read("c", replace(snapshot(), preemptions=7.0, finished={}))
    assert value(registry, f"{name}_bucket", target="a", source="histogram", le="1.0") == 9
    assert value(registry, f"{name}_sum", target="b", source="counters") == 7
    assert value(registry, f"{name}_count", target="b", source="counters") == 35
    assert not [
        labels for _, labels in samples(registry) if ("target", "c") in labels and ("source", "counters") in labels
    ]


def test_speculation_is_relayed_where_there_is_some() -> None:
    registry, exporter = _registry("a", "b")
    exporter.read("a", snapshot(others={"drafts": 10.0, "draft_tokens": 30.0, "accepted_tokens": 12.0}))
    exporter.read("b", snapshot())
    assert values(registry, "kneewatch_server_speculation_accepted_tokens_total") == [12]
    assert value(registry, "kneewatch_server_speculation_draft_tokens_total", target="a") == 30
    assert value(registry, "kneewatch_server_speculation_drafts_total", target="a") == 10


def test_data_parallel_engines_are_distinguished_beside_their_sum() -> None:
    registry, exporter = _registry()
    engines = {
        "0": EngineSnapshot(running=1.0, waiting=0.0, kv_cache_usage=0.1, preemptions=0.0, generation_tokens=10.0),
        "1": EngineSnapshot(running=4.0, waiting=2.0, kv_cache_usage=0.9, preemptions=3.0, generation_tokens=30.0),
    }
    exporter.read("a", snapshot(running=5.0, by_engine=engines))
    assert value(registry, "kneewatch_server_running_requests", target="a") == 5
    for name, expected in (
        ("running_requests", 4),
        ("waiting_requests", 2),
        ("kv_cache_usage_ratio", 0.9),
        ("preemptions_total", 3),
        ("generation_tokens_total", 30),
    ):
        assert value(registry, f"kneewatch_server_engine_{name}", target="a", engine_index="1") == expected


def test_running_adapters_and_how_the_page_was_read_are_exported() -> None:
    registry, exporter = _registry()
    exporter.read("a", snapshot(adapters=("sql", "chat")))
    assert value(registry, "kneewatch_server_adapter_running", target="a", adapter="sql") == 1
    assert len(values(registry, "kneewatch_server_adapter_running")) == 2
    assert value(registry, "kneewatch_server_scrape_duration_seconds", target="a") == 0.1
    assert value(registry, "kneewatch_server_scrape_page_bytes", target="a") == 2000


def test_optional_metrics_of_a_server_are_relayed() -> None:
    registry, exporter = _registry()
    blocks = dict.fromkeys(
        ("kv_block_lifetime", "kv_block_idle", "kv_block_reuse_gap"), Histogram(((math.inf, 2.0),), 1.0)
    )
    estimates = {"estimated_flops": 3.0, "estimated_read_bytes": 4.0, "estimated_write_bytes": 5.0}
    exporter.read("a", snapshot(histograms=blocks, **estimates))
    for name in ("kv_block_lifetime", "kv_block_idle", "kv_block_reuse_gap"):
        assert value(registry, f"kneewatch_server_{name}_seconds_count", target="a") == 2
    for name, number in estimates.items():
        assert value(registry, f"kneewatch_server_{name}_total", target="a") == number


def test_user_latencies_have_the_servers_buckets_and_only_known_ones() -> None:
    exporter = UserTrafficExporter({"a": CHAT})
    times = Histogram(((0.3, 1.0), (float("inf"), 3.0)), 1.5)
    exporter.observe("a", UserTotals(5.0, None, 40.0, {"ttft": times}, {"ok": 4.0, "failed": 1.0}))
    assert value(exporter.relay, "kneewatch_users_requests_total", target="a", outcome="ok") == 4
    assert value(exporter.relay, "kneewatch_users_requests_total", target="a", outcome="failed") == 1
    assert value(exporter.relay, "kneewatch_users_requests_total", target="a", outcome="aborted") is None
    assert value(exporter.relay, "kneewatch_users_tokens_total", target="a", kind="output") == 40
    assert value(exporter.relay, "kneewatch_users_tokens_total", target="a", kind="prompt") is None
    assert value(exporter.relay, "kneewatch_users_ttft_seconds_bucket", target="a", le="0.3") == 1
    assert values(exporter.relay, "kneewatch_users_tpot_seconds_count") == []
    assert values(exporter.relay, "kneewatch_users_prompt_tokens_count") == []


def test_users_are_judged_by_e2e_where_it_is_promised_and_never_by_itl() -> None:
    times = Histogram(((5.0, 1.0), (10.0, 2.0), (float("inf"), 3.0)), 25.0)
    totals = UserTotals(5.0, histograms={"e2e": times, "itl": times})
    for objectives, judged in ((CHAT, []), (replace(CHAT, e2e=Objective(0.9, 8.0), itl=Objective(0.9, 8.0)), [2.0])):
        exporter = UserTrafficExporter({"a": objectives})
        exporter.observe("a", totals)
        assert values(exporter.relay, "kneewatch_users_good_requests_total", objective="e2e") == judged
        assert values(exporter.relay, "kneewatch_users_e2e_seconds_count") == [3.0] * len(judged)
        assert values(exporter.relay, "kneewatch_users_good_requests_total", objective="itl") == []


def test_user_lengths_have_the_servers_buckets() -> None:
    exporter = UserTrafficExporter({"a": CHAT})
    prompts, outputs = (Histogram(((200.0, n), (float("inf"), 5.0)), 900.0) for n in (1.0, 4.0))
    exporter.observe("a", UserTotals(5.0, histograms={"prompt_length": prompts, "output_length": outputs}))
    assert value(exporter.relay, "kneewatch_users_prompt_tokens_bucket", target="a", le="200.0") == 1
    assert value(exporter.relay, "kneewatch_users_output_tokens_bucket", target="a", le="200.0") == 4
    assert value(exporter.relay, "kneewatch_users_prompt_tokens_sum", target="a") == 900


@pytest.mark.parametrize(
    ("availability", "outcomes", "good"),
    [
        (0.999, {"ok": 4.0, "failed": 1.0, "aborted": 7.0}, 4.0),
        (0.999, {"ok": 4.0, "aborted": 7.0}, None),  # the server does not count failures
        (None, {"ok": 4.0, "failed": 1.0}, None),
    ],
)
def test_users_availability_is_judged_where_failures_are_counted(
    availability: float | None, outcomes: dict[str, float], good: float | None
) -> None:
    exporter = UserTrafficExporter({"a": Objectives("o", availability=availability, ttft=Objective(0.95, 0.5))})
    exporter.observe("a", UserTotals(5.0, outcomes=outcomes))
    shown = value(exporter.relay, "kneewatch_users_good_requests_total", target="a", objective="availability")
    assert shown == good


def test_unknown_user_traffic_has_no_series() -> None:
    exporter = UserTrafficExporter({"a": CHAT})
    exporter.observe("a", UserTotals(5.0, 6.0, 40.0, {}, {"ok": 4.0}))
    exporter.observe("a", UserTotals())
    samples = "".join(exporter.relay.write(openmetrics=False))
    assert not [line for line in samples.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("within_s", "bound_s", "good"),
    [
        (0.3, 0.3, 1.0),
        (0.1 + 0.2, 0.3, 1.0),  # 0.30000000000000004
        (0.29, 0.3, 1.0),
        (0.31, 0.5, 2.0),  # counted as too slow is only what was too slow
        (0.6, None, None),  # no bound is above it but the infinite one
    ],
)
def test_users_are_judged_by_the_lowest_bound_at_or_above_the_objective(
    within_s: float, bound_s: float | None, good: float | None
) -> None:
    exporter = UserTrafficExporter({"a": Objectives("o", ttft=Objective(0.95, within_s), tpot=Objective(0.95, 0.05))})
    times = Histogram(((0.3, 1.0), (0.5, 2.0), (float("inf"), 3.0)), 1.5)
    exporter.observe("a", UserTotals(5.0, None, 40.0, {"ttft": times}))
    of_ttft = {"target": "a", "objective": "ttft"}
    assert value(exporter.relay, "kneewatch_users_objective_seconds", **of_ttft) == bound_s
    assert value(exporter.relay, "kneewatch_users_good_requests_total", **of_ttft) == good
    assert value(exporter.relay, "kneewatch_users_objective_seconds", target="a", objective="tpot") is None


def test_each_engine_has_the_sum_and_the_count_of_its_latencies_under_the_name_of_its_gauges() -> None:
    registry, exporter = _registry()
    busy, other = Engine(requests=3, ttft=0.5), Engine(requests=1, ttft=0.2)
    exporter.read("a", replicas({"one:8000": busy, "other:8000": other}, 10))
    name = "kneewatch_server_engine_ttft_seconds"
    assert value(registry, f"{name}_count", target="a", engine_index="one:8000") == 30
    assert value(registry, f"{name}_sum", target="a", engine_index="one:8000") == 15
    assert value(registry, f"{name}_bucket", target="a", engine_index="other:8000", le="+Inf") == 10
    assert values(registry, "kneewatch_server_engine_itl_seconds_count") == [6000, 6000]
    exporter.read("a", ranks({"0": busy, "1": other}, 10))
    assert value(registry, f"{name}_count", target="a", engine_index="0") == 30

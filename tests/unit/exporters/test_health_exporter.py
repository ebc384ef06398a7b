"""Kneewatch on itself: tasks alive or not, and how late its loop was."""

import time

from exposition import value, values
from prometheus_client import CollectorRegistry, ProcessCollector

from exporters import names
from exporters.health import HealthExporter
from probe import simulator

CANARY = {"task": "canary", "target": "a"}


def _registry() -> tuple[CollectorRegistry, HealthExporter]:
    registry = CollectorRegistry()
    health = HealthExporter(registry, "1.2.3")
    health.publish_config("abc", 900.0)
    return registry, health


def test_version_and_configuration_are_exported() -> None:
    registry, _ = _registry()
    assert value(registry, "kneewatch_build_info", version="1.2.3", simulator=simulator.KIND) == 1
    assert value(registry, "kneewatch_config_hash_info", hash="abc") == 1


def test_the_addresses_that_alerts_link_are_those_of_the_last_configuration() -> None:
    registry, health = _registry()
    assert values(registry, "kneewatch_links_info") == []
    health.publish_config("def", 1000.0, pages="https://k.example")
    assert value(registry, "kneewatch_links_info", pages="https://k.example", grafana="") == 1
    health.publish_config("ghi", 1100.0, pages="https://k.example", grafana="https://g.example")
    assert values(registry, "kneewatch_links_info") == [1.0]
    assert value(registry, "kneewatch_links_info", pages="https://k.example", grafana="https://g.example") == 1
    health.publish_config("jkl", 1200.0)
    assert values(registry, "kneewatch_links_info") == []


def test_an_interval_task_is_alive_from_its_announcement() -> None:
    registry, health = _registry()
    health.announce_task("canary", "a", 15.0, 1000.0)
    assert value(registry, "kneewatch_task_last_success_timestamp_seconds", **CANARY) == 1000.0
    assert value(registry, "kneewatch_task_interval_seconds", **CANARY) == 15.0
    assert value(registry, "kneewatch_task_failures_total", **CANARY) == 0


def test_the_time_limit_of_canaries_goes_with_its_target() -> None:
    registry, health = _registry()
    health.publish_canary_timeout("a", 30.0)
    assert value(registry, "kneewatch_canary_timeout_seconds", target="a") == 30.0
    health.forget("a")
    assert values(registry, "kneewatch_canary_timeout_seconds") == []


def test_a_cron_task_is_not_late_before_its_time() -> None:
    registry, health = _registry()
    health.announce_task("capacity", "a", None, 1000.0)
    assert values(registry, "kneewatch_task_last_success_timestamp_seconds") == []
    assert values(registry, "kneewatch_task_interval_seconds") == []
    assert value(registry, "kneewatch_task_failures_total", task="capacity", target="a") == 0


def test_successes_move_the_time_and_failures_do_not() -> None:
    registry, health = _registry()
    health.announce_task("canary", "a", 15.0, 1000.0)
    health.record_success("canary", "a", 1015.0)
    health.count_failure("canary", "a")
    health.count_failure("canary", "a")
    assert value(registry, "kneewatch_task_last_success_timestamp_seconds", **CANARY) == 1015.0
    assert value(registry, "kneewatch_task_failures_total", **CANARY) == 2


def test_the_lag_of_the_loop_is_a_histogram() -> None:
    registry, health = _registry()
    for lag_s in (0.0, 0.003, 5.0):
        health.observe_loop_lag(lag_s)
    assert value(registry, "kneewatch_event_loop_lag_seconds_bucket", le="0.005") == 2
    assert value(registry, "kneewatch_event_loop_lag_seconds_bucket", le="1.0") == 2
    assert value(registry, "kneewatch_event_loop_lag_seconds_count") == 3


def test_the_configuration_counts_as_taken_until_a_change_of_it_is_refused() -> None:
    registry, health = _registry()
    assert values(registry, "kneewatch_config_last_reload_successful") == [1.0]
    health.publish_refused_config()
    assert values(registry, "kneewatch_config_last_reload_successful") == [0.0]
    assert value(registry, "kneewatch_config_last_reload_success_timestamp_seconds") == 900.0
    assert value(registry, "kneewatch_config_hash_info", hash="abc") == 1
    health.publish_config("def", 1000.0)
    assert values(registry, "kneewatch_config_last_reload_successful") == [1.0]
    assert value(registry, "kneewatch_config_last_reload_success_timestamp_seconds") == 1000.0
    assert values(registry, "kneewatch_config_hash_info") == [1.0]
    assert value(registry, "kneewatch_config_hash_info", hash="def") == 1


def test_a_target_that_is_watched_no_more_has_no_tasks() -> None:
    registry, health = _registry()
    for target in ("a", "b"):
        health.announce_task("canary", target, 15.0, 1000.0)
        health.count_failure("canary", target)
    health.forget("a")
    for series in ("task_last_success_timestamp_seconds", "task_interval_seconds", "task_failures_total"):
        assert len(values(registry, f"kneewatch_{series}")) == 1, series


def test_the_process_is_exported() -> None:
    registry, _ = _registry()
    (memory,) = values(registry, "kneewatch_process_resident_memory_bytes")
    (started,) = values(registry, "kneewatch_process_start_time_seconds")
    assert 1e6 < memory < 1e11
    assert time.time() - 86_400 < started <= time.time() + 60
    assert values(registry, "kneewatch_process_cpu_seconds_total")[0] > 0


def test_the_process_is_exported_under_the_names_of_every_client_library_too() -> None:
    registry, _ = _registry()
    standard = CollectorRegistry()
    ProcessCollector(registry=standard)
    expected = {sample.name for metric in standard.collect() for sample in metric.samples}
    assert expected == {series.name for series in names.STANDARD_PROCESS}
    for name in expected:
        assert values(registry, name)[0] > 0, name
    assert values(registry, "process_start_time_seconds") == values(registry, "kneewatch_process_start_time_seconds")

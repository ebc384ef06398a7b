"""Series become metrics: every kind under the name a query says."""

import pytest
from call_count import counted
from example_records import result
from exposition import samples, value
from prometheus_client import REGISTRY, CollectorRegistry

from exporters import names
from exporters.capacity import CapacityExporter
from exporters.health import HealthExporter
from exporters.registry import counter, gauge, gauge_by_target, histogram


def test_each_kind_has_the_name_that_the_list_says() -> None:
    registry = CollectorRegistry()
    counter(names.SERVER_SCRAPE_ERRORS, registry).labels("a", "timeout").inc()
    gauge(names.TARGET_UP, registry).labels("a").set(1)
    histogram(names.LOOP_LAG, registry, (0.007,)).observe(0.006)
    assert value(registry, names.SERVER_SCRAPE_ERRORS.name, target="a", reason="timeout") == 1
    assert value(registry, names.TARGET_UP.name, target="a") == 1
    assert value(registry, names.LOOP_LAG.bucket, le="0.005") == 0
    assert value(registry, names.LOOP_LAG.bucket, le="0.007") == 1


def test_the_registry_of_the_process_stays_untouched() -> None:
    counter(names.SERVER_SCRAPE_ERRORS, CollectorRegistry())
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("kneewatch")]


def test_a_name_twice_in_one_registry_is_an_error() -> None:
    registry = CollectorRegistry()
    gauge(names.TARGET_UP, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        gauge(names.TARGET_UP, registry)


@pytest.mark.fault("ME9")
def test_removing_one_targets_series_leaves_the_others() -> None:
    registry = CollectorRegistry()
    metric = gauge_by_target(names.TASK_INTERVAL, registry)
    assert names.TASK_INTERVAL.labels == ("task", "target")
    for task, target in (("canary", "a"), ("scrape", "a"), ("canary", "b"), ("a", "c")):
        metric.labels(task, target).set(1)
    metric.remove("scrape", "a")
    metric.remove("scrape", "a")
    metric.remove("canary", "nobody")
    left = (("canary", "a"), ("canary", "b"), ("a", "c"))
    assert {labels for _, labels in samples(registry)} == {
        frozenset({("task", task), ("target", target)}) for task, target in left
    }
    for target in ("a", "a", "nobody"):
        metric.forget(target)
    assert {dict(labels)["target"] for _, labels in samples(registry)} == {"b", "c"}
    metric.labels("canary", "a").set(2)
    assert value(registry, names.TASK_INTERVAL.name, task="canary", target="a") == 2


@pytest.mark.slow
def test_forgetting_four_times_as_many_targets_takes_about_four_times_as_long() -> None:
    def forgetting(targets: int) -> int:
        registry = CollectorRegistry()
        capacity, health = CapacityExporter(registry), HealthExporter(registry, "1")
        fleet = [f"t{n}" for n in range(targets)]
        for target in fleet:
            capacity.start_at_zero(target, 86400.0)
            capacity.restore(result(target=target))
            health.announce_task("canary", target, 15.0, 0.0)

        with counted() as calls:
            for target in fleet:
                capacity.forget(target)
                health.forget(target)
        assert not [1 for _, labels in samples(registry) if "target" in dict(labels)]
        return calls.count

    assert forgetting(100) < 5 * forgetting(25)

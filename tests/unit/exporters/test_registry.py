"""Series become metrics: every kind under the name a query says."""

import pytest
from exposition import value
from prometheus_client import REGISTRY, CollectorRegistry

from exporters import names
from exporters.registry import counter, gauge, histogram


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

"""What discovery knows, as series."""

import pytest
from exposition import value, values
from prometheus_client import CollectorRegistry

from exporters.discovery import DiscoveryExporter


def _page(exporter: DiscoveryExporter) -> str:
    return "".join(exporter.relay.write(openmetrics=False))


def test_a_discovery_has_series_from_its_announcement_to_its_end() -> None:
    registry = CollectorRegistry()
    exporter = DiscoveryExporter(registry, None)
    exporter.announce({"qwen": 2, "llama": 1})
    assert values(registry, "kneewatch_discovered_targets") == [0.0, 0.0]
    exporter.publish_found("qwen", 3)
    exporter.publish_failing("qwen", failing=True)
    assert value(registry, "kneewatch_discovery_min_targets", discovery="qwen") == 2.0
    exporter.announce({"qwen": 0})
    assert values(registry, "kneewatch_discovery_min_targets") == [0.0], "a reload changes it"
    assert values(registry, "kneewatch_discovered_targets") == [3.0], "what goes on keeps its value"
    assert value(registry, "kneewatch_discovery_failing", discovery="qwen") == 1.0
    exporter.publish_failing("qwen", failing=False)
    assert values(registry, "kneewatch_discovery_failing") == [0.0]


@pytest.mark.parametrize(("shard", "expected"), [(None, []), ((2, 5), [2.0])])
def test_shards_are_exported_if_there_are_any(shard: tuple[int, int] | None, expected: list[float]) -> None:
    registry = CollectorRegistry()
    DiscoveryExporter(registry, shard)
    assert values(registry, "kneewatch_shard") == expected
    assert values(registry, "kneewatch_shards") == [5.0] * len(expected)


def test_the_labels_of_a_pod_are_kept_in_words_that_prometheus_takes() -> None:
    exporter = DiscoveryExporter(CollectorRegistry(), None)
    exporter.describe("qwen/pod", "qwen", {"app.kubernetes.io/name": "qwen", "target": 'a"b\n'})
    labels = 'label_app_kubernetes_io_name="qwen",label_target="a\\"b\\n"'
    assert f'kneewatch_target_info{{target="qwen/pod",discovery="qwen",{labels}}} 1.0' in _page(exporter)
    exporter.forget("qwen/pod")
    assert _page(exporter) == ""


def test_labels_without_end_are_cut() -> None:
    exporter = DiscoveryExporter(CollectorRegistry(), None)
    exporter.describe("a", "d", {f"{i:03d}": "v" * 10_000 for i in range(1000)} | {"x-y": "1", "x_y": "2"})
    page = _page(exporter)
    assert page.count("label_0") == 32
    assert len(page) < 12_000

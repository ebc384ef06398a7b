"""GPUs under dcgm-exporter's own names, with the target beside them."""

import pytest
from exposition import samples, value, values

from exporters import names
from exporters.gpu import GpuExporter
from probe.core.snapshot import Gpu, GpuSnapshot
from probe.gpu.fields import FIELDS, LABELS


def snapshot(*gpus: Gpu) -> GpuSnapshot:
    return GpuSnapshot(0, 0.0, "dcgm", gpus)


@pytest.mark.slow
def test_every_field_is_relayed_with_all_labels_that_the_gpu_has() -> None:
    exporter = GpuExporter(("a",))
    labels = {name: f"its {name}" for name in LABELS}
    exporter.observe("a", snapshot(Gpu(labels, {field.name: float(i) for i, field in enumerate(FIELDS)})))
    for i, field in enumerate(FIELDS):
        assert value(exporter.relay, field.name, target="a", **labels) == i


def test_gpus_of_one_target_and_instances_of_one_gpu_stand_apart() -> None:
    exporter = GpuExporter(("a",))
    gpus = [Gpu({"UUID": uuid, "GPU_I_ID": i}, {"DCGM_FI_DEV_FB_USED": 7.0}) for uuid in "xy" for i in ("", "1", "2")]
    exporter.observe("a", snapshot(*gpus))
    assert len(values(exporter.relay, "DCGM_FI_DEV_FB_USED", target="a")) == 6
    assert value(exporter.relay, "kneewatch_gpus", target="a") == 6


def test_a_failed_gpu_scrape_removes_the_series_and_is_counted() -> None:
    exporter = GpuExporter(("a", "b"))
    assert values(exporter.relay, "kneewatch_gpu_scrape_errors_total") == [0, 0]
    for target in ("a", "b"):
        exporter.observe(target, snapshot(Gpu({}, {"DCGM_FI_DEV_GPU_UTIL": 5.0})))
    exporter.count_failure("a")
    assert value(exporter.relay, "kneewatch_gpu_scrape_up", target="a") == 0
    assert value(exporter.relay, "kneewatch_gpu_scrape_errors_total", target="a") == 1
    assert values(exporter.relay, "DCGM_FI_DEV_GPU_UTIL", target="a") == []
    assert value(exporter.relay, "kneewatch_gpu_scrape_up", target="b") == 1


def test_a_target_without_gpus_has_no_series_of_them() -> None:
    assert samples(GpuExporter(()).relay) == {}


def test_no_gpu_with_the_targets_labels_is_a_count_of_zero() -> None:
    exporter = GpuExporter(("a",))
    exporter.observe("a", snapshot())
    assert value(exporter.relay, names.GPU_COUNT.name, target="a") == 0

"""GPUs under names of their own, in base units, with the target beside dcgm-exporter's labels."""

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
        found = value(exporter.relay, names.gpu(field.name).name, target="a", **labels)
        assert found == pytest.approx(i * field.factor)


@pytest.mark.parametrize(
    ("field", "dcgm", "exported"),
    [
        ("GPU_UTIL", 57.0, ("utilization_ratio", 0.57)),
        ("SM_CLOCK", 1980.0, ("sm_clock_hertz", 1.98e9)),
        ("FB_USED", 77824.0, ("memory_used_bytes", 81604378624.0)),
        ("TOTAL_ENERGY_CONSUMPTION", 5551899580000.0, ("energy_joules_total", 5551899580.0)),
        ("THERMAL_VIOLATION", 500_000_000.0, ("thermal_throttle_seconds_total", 0.5)),
        ("NVLINK_BANDWIDTH_TOTAL", 200_000.0, ("nvlink_bytes_per_second", 2e11)),
        ("POWER_USAGE", 612.345, ("power_watts", 612.345)),
    ],
)
def test_values_are_in_base_units(field: str, dcgm: float, exported: tuple[str, float]) -> None:
    exporter = GpuExporter(("a",))
    exporter.observe("a", snapshot(Gpu({"UUID": "x"}, {f"DCGM_FI_DEV_{field}": dcgm})))
    assert values(exporter.relay, f"kneewatch_gpu_{exported[0]}") == [exported[1]]
    assert not any(name.startswith("DCGM_FI_") for name, _ in samples(exporter.relay))


def test_gpus_of_one_target_and_instances_of_one_gpu_stand_apart() -> None:
    exporter = GpuExporter(("a",))
    gpus = [Gpu({"UUID": uuid, "GPU_I_ID": i}, {"DCGM_FI_DEV_FB_USED": 7.0}) for uuid in "xy" for i in ("", "1", "2")]
    exporter.observe("a", snapshot(*gpus, Gpu({"UUID": "z"}, {})))
    assert len(values(exporter.relay, "kneewatch_gpu_memory_used_bytes", target="a")) == 6
    assert value(exporter.relay, "kneewatch_gpus", target="a") == 5, "a board of instances computes nothing itself"


def test_a_failed_gpu_scrape_removes_the_series_and_is_counted() -> None:
    exporter = GpuExporter(("a", "b"))
    assert values(exporter.relay, "kneewatch_gpu_scrape_errors_total") == [0, 0]
    for target in ("a", "b"):
        exporter.observe(target, snapshot(Gpu({}, {"DCGM_FI_DEV_GPU_UTIL": 5.0})))
    exporter.count_failure("a")
    assert value(exporter.relay, "kneewatch_gpu_scrape_up", target="a") == 0
    assert value(exporter.relay, "kneewatch_gpu_scrape_errors_total", target="a") == 1
    assert values(exporter.relay, "kneewatch_gpu_utilization_ratio", target="a") == []
    assert value(exporter.relay, "kneewatch_gpu_scrape_up", target="b") == 1


def test_a_target_without_gpus_has_no_series_of_them() -> None:
    assert samples(GpuExporter(()).relay) == {}


def test_no_gpu_with_the_targets_labels_is_a_count_of_zero() -> None:
    exporter = GpuExporter(("a",))
    exporter.observe("a", snapshot())
    assert value(exporter.relay, names.GPU_COUNT.name, target="a") == 0

"""How GPUs were used over a step, from readings of them."""

from collections.abc import Mapping

import pytest

from probe.core.mig import computing
from probe.core.snapshot import Gpu, GpuSnapshot
from probe.core.step import GpuUse
from probe.gpu.fields import each_once, memory, use, utilization

S = 10**9


def read(at_s: float, *values: Mapping[str, float]) -> GpuSnapshot:
    return GpuSnapshot(round(at_s * S), at_s, "dcgm", tuple(Gpu({}, value) for value in values))


def busy(percent: float) -> dict[str, float]:
    return {"DCGM_FI_DEV_GPU_UTIL": percent}


def test_it_is_the_mean_over_gpus_and_readings_within() -> None:
    readings = [read(0, busy(1), busy(2)), read(5, busy(40), busy(60)), read(9, busy(80), busy(100)), read(20, busy(7))]
    assert use(readings, (1 * S, 10 * S)).utilization == pytest.approx(0.7)


def test_a_reading_that_repeats_the_one_before_is_of_another_time() -> None:
    readings = [read(0, busy(10)), read(5, busy(10)), read(6, busy(90)), read(7, busy(90)), read(8, busy(90))]
    assert use(readings, (0, 10 * S)).utilization == pytest.approx(0.9)
    assert use(readings[:2], (0, 10 * S)) == GpuUse()


def test_every_value_is_taken_from_its_field_and_missing_ones_stay_missing() -> None:
    values = {
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.5,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25,
        "DCGM_FI_DEV_POWER_USAGE": 300.0,
        "DCGM_FI_DEV_FB_USED": 30.0,
        "DCGM_FI_DEV_FB_FREE": 10.0,
    }
    found = use([read(0, {}), read(1, values)], (0, 2 * S))
    assert found == GpuUse(
        utilization=None,
        dram_active=0.5,
        tensor_active=0.25,
        power_w=300.0,
        memory=0.75,
        memory_peak=0.75,
        memory_peak_bytes=30 * 2**20,
        gpus=1,
    )


def test_peaks_are_of_any_gpu_at_any_time_and_power_is_of_all_gpus() -> None:
    def gpu(percent: float, used: float, watts: float) -> dict[str, float]:
        memory = {"DCGM_FI_DEV_FB_USED": used, "DCGM_FI_DEV_FB_FREE": 100.0 - used}
        return {**busy(percent), **memory, "DCGM_FI_DEV_POWER_USAGE": watts}

    readings = [
        read(0, {}, {}),
        read(1, gpu(50, 20, 300), gpu(99, 40, 400)),
        read(2, gpu(60, 70, 200), gpu(10, 40, 300)),
    ]
    found = use(readings, (0, 3 * S))
    assert (found.utilization_peak, found.memory_peak, found.memory_peak_bytes) == (0.99, 0.7, 70 * 2**20)
    assert (found.power_w, found.gpus, found.total_power_w) == (300.0, 2, 600.0)


def test_an_instance_of_a_divided_gpu_has_no_utilization_but_that_of_its_engine() -> None:
    assert utilization(Gpu({}, {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.4})) == 0.4
    both = {"DCGM_FI_DEV_GPU_UTIL": 10.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.4}
    assert utilization(Gpu({}, both)) == 0.1
    assert utilization(Gpu({"GPU_I_ID": "1"}, both)) == 0.4
    assert utilization(Gpu({"UUID": "MIG-5c89852c"}, both)) == 0.4
    assert utilization(Gpu({"GPU_I_ID": "1"}, busy(0))) is None, "the driver does not know it; some exporters write 0"


def mig(instance: str, watts: float, active: float, uuid: str = "GPU-a") -> Gpu:
    """Return an instance as dcgm-exporter before 4 writes it: with the board's power, and a utilization of 0."""
    labels = {"gpu": "0", "UUID": uuid, "modelName": "NVIDIA A30", "GPU_I_ID": instance, "GPU_I_PROFILE": "1g.6gb"}
    values = {"DCGM_FI_DEV_POWER_USAGE": watts, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": active, "DCGM_FI_DEV_FB_USED": 900.0}
    return Gpu(labels, values | busy(0))


def test_the_power_of_a_divided_board_counts_once() -> None:
    """dcgm-exporter #257: 52.85 W of an A30, for each of three instances."""
    readings = [GpuSnapshot(at * S, at, "dcgm", tuple(mig(i, 52.85 - at, 0.93) for i in "345")) for at in (1, 0)]
    for gpus in (readings[1].gpus, each_once(readings[1].gpus)):
        found = use([readings[0], GpuSnapshot(2 * S, 2, "dcgm", gpus)], (0, 3 * S))
        assert (found.utilization, found.power_w, found.gpus, found.total_power_w) == (0.93, 52.85, 1, 52.85)
    two = each_once([*(mig(i, 52.85, 0.5) for i in "345"), *(mig(i, 80, 0.5, "GPU-b") for i in "12")])
    found = use([readings[0], GpuSnapshot(2 * S, 2, "dcgm", two)], (0, 3 * S))
    assert found.total_power_w == pytest.approx(132.85)


def test_each_value_of_a_divided_gpu_is_there_once() -> None:
    own = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.5, "DCGM_FI_DEV_FB_USED": 900.0}
    first, second = each_once([mig(i, 300, 0.5) for i in "12"])
    assert first.values == own | {"DCGM_FI_DEV_POWER_USAGE": 300}
    assert second.values == own
    board = Gpu({"UUID": "GPU-a"}, {"DCGM_FI_DEV_POWER_USAGE": 301.0, "DCGM_FI_DEV_FB_USED": 4845.0, **busy(0)})
    other = Gpu({"UUID": "GPU-b"}, {"DCGM_FI_DEV_FB_USED": 7.0, **busy(9)})
    divided, *instances, undivided = each_once([*(mig(i, 300, 0.5) for i in "12"), board, other])
    assert divided == Gpu(board.labels, {"DCGM_FI_DEV_POWER_USAGE": 301.0})
    assert [one.values for one in instances] == [own, own]
    assert undivided == other
    assert computing([divided, *instances, other]) == (*instances, other)


def test_what_no_instance_tells_stays_with_the_board() -> None:
    whole = Gpu({"UUID": "GPU-a"}, {"DCGM_FI_DEV_FB_USED": 4845.0, "DCGM_FI_PROF_DRAM_ACTIVE": 0.7, **busy(0)})
    instance = Gpu({"UUID": "GPU-a", "GPU_I_ID": "13"}, {"DCGM_FI_PROF_DRAM_ACTIVE": 0.8})
    board, same = each_once([instance, whole])
    assert (board.labels, board.values, same) == (whole.labels, {"DCGM_FI_DEV_FB_USED": 4845.0}, instance)


def test_boards_without_uuid_are_told_apart_by_host_and_number() -> None:
    nodes = [
        Gpu({"Hostname": host, "gpu": "0", "UUID": f"MIG-{host}{i}"}, {"DCGM_FI_DEV_POWER_USAGE": 100.0})
        for host in "ab"
        for i in "12"
    ]
    found = use([read(0), GpuSnapshot(1 * S, 1, "dcgm", tuple(nodes))], (0, 2 * S))
    assert (found.gpus, found.total_power_w) == (2, 200)
    assert [len(gpu.values) for gpu in each_once(nodes)] == [1, 0, 1, 0]


def test_memory_wants_both_of_its_parts() -> None:
    assert memory(Gpu({}, {"DCGM_FI_DEV_FB_USED": 10.0})) is None
    assert memory(Gpu({}, {"DCGM_FI_DEV_FB_USED": 0.0, "DCGM_FI_DEV_FB_FREE": 0.0})) is None

"""The GPU values that are read, by dcgm-exporter's names and in its units up to its version 4.8, and their series.

They are its default counters (etc/default-counters.csv) and the optional ones that show why a GPU is slow. 4.9 renamed
and rescaled some of them; dcgm.py converts them back, so that queries survive an upgrade. The series have names of
their own: a Prometheus that also scrapes dcgm-exporter would add both up. Below the list: GPUs that are divided into
instances, and what the values say of a GPU's utilisation over a time window.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean

from probe.core.mig import board_of, is_instance
from probe.core.snapshot import Gpu, GpuSnapshot
from probe.core.step import GpuUse

# XID errors caused by a program, not by the GPU: https://docs.nvidia.com/deploy/xid-errors.
PROGRAM_XIDS = (13, 31, 43, 45)


class Part(StrEnum):
    """What of a GPU that is divided into MIG instances a value is of."""

    BOARD = "board"  # of the board, whatever instance the exporter names
    INSTANCE = "instance"  # of each instance
    WHOLE = "whole"  # of a GPU that is not divided: the driver knows none of an instance, and some exporters write 0


@dataclass(frozen=True, slots=True)
class Field:
    """A value: its name and unit at dcgm-exporter, the name of its series after `kneewatch_gpu_`, and the factor to
    that unit. `kind`: gauge or counter.
    """

    name: str
    kind: str
    series: str
    help: str
    factor: float = 1.0
    part: Part = Part.BOARD


_G, _C = "gauge", "counter"
_MHZ, _MB, _MIB, _MILLI, _NANO, _PERCENT = 1e6, 1e6, 2.0**20, 1e-3, 1e-9, 1e-2
FIELDS = (
    Field("DCGM_FI_DEV_SM_CLOCK", _G, "sm_clock_hertz", "SM clock frequency", _MHZ),
    Field("DCGM_FI_DEV_MEM_CLOCK", _G, "memory_clock_hertz", "Memory clock frequency", _MHZ),
    Field("DCGM_FI_DEV_GPU_TEMP", _G, "temperature_celsius", "GPU temperature"),
    Field("DCGM_FI_DEV_MEMORY_TEMP", _G, "memory_temperature_celsius", "Memory temperature"),
    Field("DCGM_FI_DEV_POWER_USAGE", _G, "power_watts", "Power draw of the board"),
    Field("DCGM_FI_DEV_POWER_MGMT_LIMIT", _G, "power_limit_watts", "Power limit"),
    Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _C, "energy_joules_total", "Energy since the driver was loaded",
          _MILLI),
    Field("DCGM_FI_DEV_GPU_UTIL", _G, "utilization_ratio", "Time in which a kernel ran; absent for a divided GPU",
          _PERCENT, Part.WHOLE),
    Field("DCGM_FI_DEV_MEM_COPY_UTIL", _G, "memory_copy_ratio",
          "Time in which memory was read or written; absent for a divided GPU", _PERCENT, Part.WHOLE),
    Field("DCGM_FI_DEV_FB_USED", _G, "memory_used_bytes", "GPU memory in use", _MIB, Part.INSTANCE),
    Field("DCGM_FI_DEV_FB_FREE", _G, "memory_free_bytes", "GPU memory that is free", _MIB, Part.INSTANCE),
    Field("DCGM_FI_DEV_FB_RESERVED", _G, "memory_reserved_bytes", "GPU memory that the driver keeps", _MIB,
          Part.INSTANCE),
    Field("DCGM_FI_DEV_XID_ERRORS", _G, "last_xid", "The last XID error; 0: none was seen"),
    Field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", _G, "throttle_reasons", "Why clocks are lowered, as NVML's bits"),
    Field("DCGM_FI_DEV_POWER_VIOLATION", _C, "power_throttle_seconds_total", "Time throttled for power", _NANO),
    Field("DCGM_FI_DEV_THERMAL_VIOLATION", _C, "thermal_throttle_seconds_total", "Time throttled for heat", _NANO),
    Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _C, "pcie_replays_total", "PCIe retries"),
    Field("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _G, "nvlink_bytes_per_second", "NVLink traffic of all lanes", _MB),
    Field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _C, "ecc_single_bit_errors_total",
          "Single-bit ECC errors since the driver was loaded"),
    Field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _C, "ecc_double_bit_errors_total",
          "Double-bit ECC errors since the driver was loaded"),
    Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _C, "correctable_remapped_rows_total",
          "Memory rows remapped for correctable errors"),
    Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _C, "uncorrectable_remapped_rows_total",
          "Memory rows remapped for uncorrectable errors"),
    Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", _G, "row_remap_failed", "1 where remapping a memory row has failed"),
    Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _G, "engine_active_ratio", "Time in which the compute engine was active",
          part=Part.INSTANCE),
    Field("DCGM_FI_PROF_SM_ACTIVE", _G, "sm_active_ratio", "Cycles in which an SM had work", part=Part.INSTANCE),
    Field("DCGM_FI_PROF_SM_OCCUPANCY", _G, "sm_occupancy_ratio", "Warps on an SM, of those that fit",
          part=Part.INSTANCE),
    Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _G, "tensor_active_ratio",
          "Cycles in which the tensor pipes were active", part=Part.INSTANCE),
    Field("DCGM_FI_PROF_DRAM_ACTIVE", _G, "dram_active_ratio", "Cycles in which memory was read or written",
          part=Part.INSTANCE),
    Field("DCGM_FI_PROF_PCIE_TX_BYTES", _G, "pcie_sent_bytes_per_second", "PCIe traffic sent"),
    Field("DCGM_FI_PROF_PCIE_RX_BYTES", _G, "pcie_received_bytes_per_second", "PCIe traffic received"),
)  # fmt: skip
PARTS = {field.name: field.part for field in FIELDS}
NAMES = frozenset(field.name for field in FIELDS)
# The labels of dcgm-exporter that are relayed: the identity of a GPU, and the pod that uses it.
LABELS = (
    "gpu", "UUID", "device", "modelName", "Hostname", "GPU_I_ID", "GPU_I_PROFILE", "pod", "namespace", "container",
)  # fmt: skip


def each_once(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with each value of a divided one once: the board's with the board, or else with one instance, and
    memory and activity with the instances that have them.

    Some exporters repeat the board's values for each instance, as if each drew the power of all (dcgm-exporter #257),
    and write a utilization of 0, which the driver does not know for an instance (#216).
    """
    found: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in gpus:
        found.setdefault(board_of(gpu.labels), []).append(gpu)
    return tuple(one for of_board in found.values() for one in _each_once(of_board))


def _each_once(of_board: Sequence[Gpu]) -> Iterable[Gpu]:
    instances = [gpu for gpu in of_board if is_instance(gpu.labels)]
    if not instances:
        return of_board
    of_instances = {name for gpu in instances for name in gpu.values if PARTS[name] is Part.INSTANCE}
    kept: list[Gpu] = []
    given: set[str] = set()
    # The board first, and then always the same instance, whatever the order of the page.
    for gpu in sorted(of_board, key=lambda one: (is_instance(one.labels), one.labels.get("GPU_I_ID", ""))):
        names = {name for name in gpu.values if PARTS[name] is not Part.WHOLE} - given
        if not is_instance(gpu.labels):
            names -= of_instances
        given |= {name for name in names if PARTS[name] is Part.BOARD}
        kept.append(replace(gpu, values={name: value for name, value in gpu.values.items() if name in names}))
    return kept


def use(snapshots: Sequence[GpuSnapshot], window_ns: tuple[int, int]) -> GpuUse:
    """Return the mean use and the peaks within the window. A snapshot counts only if it differs from the one before:
    dcgm-exporter samples every 30 s by default, and repeats old values in between.
    """
    began_ns, ended_ns = window_ns
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.at_ns)
    fresh = [after for before, after in pairwise(ordered) if after.gpus != before.gpus]
    inside = [one for one in fresh if began_ns <= one.at_ns <= ended_ns]
    within = [gpu for one in inside for gpu in one.gpus]
    powered = [_boards([gpu for gpu in one.gpus if _power(gpu) is not None]) for one in inside]
    return GpuUse(
        utilization=_mean(within, utilization),
        dram_active=_mean(within, lambda gpu: gpu.values.get("DCGM_FI_PROF_DRAM_ACTIVE")),
        tensor_active=_mean(within, lambda gpu: gpu.values.get("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")),
        power_w=_mean(within, _power),
        memory=_mean(within, memory),
        utilization_peak=_peak(within, utilization),
        memory_peak=_peak(within, memory),
        memory_peak_bytes=_peak(within, _memory_bytes),
        gpus=max(powered, default=0) or None,
    )


def _boards(gpus: Sequence[Gpu]) -> int:
    """Return how many boards there are: an instance may have its board's values, with or without the board."""
    whole = [board_of(gpu.labels) for gpu in gpus if not is_instance(gpu.labels)]
    return len(whole) + len({board_of(gpu.labels) for gpu in gpus if is_instance(gpu.labels)}.difference(whole))


def utilization(gpu: Gpu) -> float | None:
    """Return the share of time in which the GPU was active, 0 to 1; of a MIG instance, its engine."""
    percent = None if is_instance(gpu.labels) else gpu.values.get("DCGM_FI_DEV_GPU_UTIL")
    return percent / 100 if percent is not None else gpu.values.get("DCGM_FI_PROF_GR_ENGINE_ACTIVE")


def memory(gpu: Gpu) -> float | None:
    """Return the share of its memory in use, 0 to 1."""
    used, free = (gpu.values.get(f"DCGM_FI_DEV_FB_{name}") for name in ("USED", "FREE"))
    return used / (used + free) if used is not None and free is not None and used + free > 0 else None


def _memory_bytes(gpu: Gpu) -> float | None:
    used = gpu.values.get("DCGM_FI_DEV_FB_USED")
    return None if used is None else used * 2**20


def _power(gpu: Gpu) -> float | None:
    return gpu.values.get("DCGM_FI_DEV_POWER_USAGE")


def _peak(gpus: Iterable[Gpu], value: Callable[[Gpu], float | None]) -> float | None:
    return max((found for gpu in gpus if (found := value(gpu)) is not None), default=None)


def _mean(gpus: Iterable[Gpu], value: Callable[[Gpu], float | None]) -> float | None:
    known = [found for gpu in gpus if (found := value(gpu)) is not None]
    return fmean(known) if known else None

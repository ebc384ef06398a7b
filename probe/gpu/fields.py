"""The GPU values that are relayed, with dcgm-exporter's names, kinds and units up to its version 4.8.

They are its default counters (etc/default-counters.csv) and the optional ones that show why a GPU is slow. 4.9 renamed
and rescaled some of them; dcgm.py converts them back, so that queries survive an upgrade. Below the list: what the
values say of a GPU's utilisation over a time window.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from probe.core.snapshot import Gpu, GpuSnapshot
from probe.core.step import GpuUse

# XID errors caused by a program, not by the GPU: https://docs.nvidia.com/deploy/xid-errors.
PROGRAM_XIDS = (13, 31, 43, 45)


@dataclass(frozen=True, slots=True)
class Field:
    """A relayed value. `kind`: gauge or counter."""

    name: str
    kind: str
    help: str


FIELDS = (
    Field("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)"),
    Field("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)"),
    Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)"),
    Field("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)"),
    Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)"),
    Field("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit (in W)"),
    Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver was loaded (in mJ)"),
    Field("DCGM_FI_DEV_GPU_UTIL", "gauge", "Time in which a kernel ran (in %)"),
    Field("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Time in which memory was read or written (in %)"),
    Field("DCGM_FI_DEV_FB_USED", "gauge", "GPU memory in use (in MiB)"),
    Field("DCGM_FI_DEV_FB_FREE", "gauge", "GPU memory that is free (in MiB)"),
    Field("DCGM_FI_DEV_FB_RESERVED", "gauge", "GPU memory that the driver keeps (in MiB)"),
    Field("DCGM_FI_DEV_XID_ERRORS", "gauge", "The last XID error; 0: none was seen"),
    Field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Why clocks are lowered, as NVML's bits"),
    Field("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Time throttled for power (in ns)"),
    Field("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Time throttled for heat (in ns)"),
    Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries"),
    Field(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "gauge",
        "NVLink traffic of all lanes, in spite of the name a rate (in MB/s)",
    ),
    Field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit ECC errors since the driver was loaded"),
    Field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver was loaded"),
    Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Memory rows remapped for correctable errors"),
    Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Memory rows remapped for uncorrectable errors"),
    Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 where remapping a memory row has failed"),
    Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Time in which the compute engine was active (ratio)"),
    Field("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Cycles in which an SM had work (ratio)"),
    Field("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Warps on an SM, of those that fit (ratio)"),
    Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Cycles in which the tensor pipes were active (ratio)"),
    Field("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Cycles in which memory was read or written (ratio)"),
    Field("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe traffic sent (in bytes per second)"),
    Field("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe traffic received (in bytes per second)"),
)
NAMES = frozenset(field.name for field in FIELDS)
# The labels of dcgm-exporter that are relayed: the identity of a GPU, and the pod that uses it.
LABELS = (
    "gpu", "UUID", "device", "modelName", "Hostname", "GPU_I_ID", "GPU_I_PROFILE", "pod", "namespace", "container",
)  # fmt: skip


def use(snapshots: Sequence[GpuSnapshot], window_ns: tuple[int, int]) -> GpuUse:
    """Return the mean use and the peaks within the window. A snapshot counts only if it differs from the one before:
    dcgm-exporter samples every 30 s by default, and repeats old values in between.
    """
    began_ns, ended_ns = window_ns
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.at_ns)
    fresh = [after for before, after in pairwise(ordered) if after.gpus != before.gpus]
    inside = [one for one in fresh if began_ns <= one.at_ns <= ended_ns]
    within = [gpu for one in inside for gpu in one.gpus]
    powered = [sum(_power(gpu) is not None for gpu in one.gpus) for one in inside]
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


def utilization(gpu: Gpu) -> float | None:
    """Return the share of time in which the GPU was active, 0 to 1; of a MIG instance, its engine."""
    percent = gpu.values.get("DCGM_FI_DEV_GPU_UTIL")
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

"""GPU utilisation over a time window, from snapshots. Pure."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from probe.core.snapshot import Gpu, GpuSnapshot
from probe.core.step import GpuUse


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
    """Return the share of time in which the GPU was active, 0 to 1; for a MIG instance, that of its compute engine."""
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

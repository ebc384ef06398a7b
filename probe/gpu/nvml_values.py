"""NVML's values of one GPU: pynvml and a handle in, values with dcgm-exporter's names and units out.

A value that the GPU or its driver does not have is left out, never 0; a lost GPU has none. Raises NVMLError only if the
driver is gone. Uses field ids where DCGM does (its dcgm_fields.cpp, 4.6), and calls for the rest.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TypeVar

from probe.core.clock import Clock

_T = TypeVar("_T")
_MIB = 1024 * 1024
# Two rows with one name: NVML renamed the call, and drops the old one with CUDA 14.
_CALLS: tuple[tuple[str, Callable[[ModuleType, object], float]], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", lambda nv, gpu: nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_SM)),
    ("DCGM_FI_DEV_MEM_CLOCK", lambda nv, gpu: nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_MEM)),
    ("DCGM_FI_DEV_GPU_TEMP", lambda nv, gpu: nv.nvmlDeviceGetTemperature(gpu, nv.NVML_TEMPERATURE_GPU)),
    ("DCGM_FI_DEV_GPU_TEMP", lambda nv, gpu: nv.nvmlDeviceGetTemperatureV(gpu, nv.NVML_TEMPERATURE_GPU)),
    ("DCGM_FI_DEV_POWER_USAGE", lambda nv, gpu: nv.nvmlDeviceGetPowerUsage(gpu) / 1000),  # from mW, as the next
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", lambda nv, gpu: nv.nvmlDeviceGetPowerManagementLimit(gpu) / 1000),
    ("DCGM_FI_DEV_GPU_UTIL", lambda nv, gpu: nv.nvmlDeviceGetUtilizationRates(gpu).gpu),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", lambda nv, gpu: nv.nvmlDeviceGetUtilizationRates(gpu).memory),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", lambda nv, gpu: nv.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", lambda nv, gpu: nv.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", lambda nv, gpu: nv.nvmlDeviceGetPcieReplayCounter(gpu)),
)
_MEMORY_TEMP = "DCGM_FI_DEV_MEMORY_TEMP"
_HOTTEST_C = 200  # DCGM treats more as no value
_FIELDS = {
    "NVML_FI_DEV_MEMORY_TEMP": _MEMORY_TEMP,
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "NVML_FI_DEV_PERF_POLICY_POWER": "DCGM_FI_DEV_POWER_VIOLATION",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "NVML_FI_DEV_REMAPPED_COR": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "NVML_FI_DEV_REMAPPED_UNC": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "NVML_FI_DEV_REMAPPED_FAILURE": "DCGM_FI_DEV_ROW_REMAP_FAILURE",
}
# Member of the value union for each nvmlValueType_t, from 0.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_RATIO = 1 / 100  # from percent
# DCGM divides the KiB/s of both directions by 1000; NVML's rate is in MiB/s.
_NVLINK = 1024 / 1000
_ACTIVITY = (
    ("NVML_GPM_METRIC_GRAPHICS_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _RATIO),
    ("NVML_GPM_METRIC_SM_UTIL", "DCGM_FI_PROF_SM_ACTIVE", _RATIO),
    ("NVML_GPM_METRIC_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY", _RATIO),
    ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _RATIO),
    ("NVML_GPM_METRIC_DRAM_BW_UTIL", "DCGM_FI_PROF_DRAM_ACTIVE", _RATIO),
    ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", "DCGM_FI_PROF_PCIE_TX_BYTES", _MIB),
    ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", "DCGM_FI_PROF_PCIE_RX_BYTES", _MIB),
    ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _NVLINK),
    ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _NVLINK),
)
_APART_NS = 100_000_000  # minimum between two GPM samples, by NVML's documentation


def is_driver_gone(nv: ModuleType, code: int) -> bool:
    """Return whether this error code means that no GPU can be read any more."""
    return code in {
        nv.NVML_ERROR_UNINITIALIZED,
        nv.NVML_ERROR_DRIVER_NOT_LOADED,
        nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }


def ask(nv: ModuleType, call: Callable[[], _T]) -> _T | None:
    """Return the call's result, or None if the GPU, the driver or pynvml does not have it."""
    try:
        return call()
    except AttributeError:  # not in this pynvml
        return None
    except nv.NVMLError as error:
        if is_driver_gone(nv, error.value):
            raise
        return None


def board(nv: ModuleType, gpu: object) -> dict[str, float]:
    """Return the values of the whole GPU, divided or not: all but memory and activity."""
    values: dict[str, float] = {}
    for name, call in _CALLS:
        if name not in values and (value := ask(nv, partial(call, nv, gpu))) is not None:
            values[name] = float(value)
    return values | (ask(nv, lambda: _fields(nv, gpu)) or {})


def memory(nv: ModuleType, gpu: object) -> dict[str, float]:
    """Return the memory of a GPU or an instance, in MiB."""
    info = ask(nv, lambda: nv.nvmlDeviceGetMemoryInfo(gpu, version=nv.nvmlMemory_v2))
    if info is None:
        return {}
    return {
        "DCGM_FI_DEV_FB_USED": info.used / _MIB,
        "DCGM_FI_DEV_FB_FREE": info.free / _MIB,
        "DCGM_FI_DEV_FB_RESERVED": info.reserved / _MIB,
    }


def _fields(nv: ModuleType, gpu: object) -> dict[str, float]:
    fields = nv.nvmlDeviceGetFieldValues(gpu, [getattr(nv, field) for field in _FIELDS])
    values = {}
    for name, field in zip(_FIELDS.values(), fields, strict=True):
        # Driver 545 declares the memory's temperature a double, which it is not (so DCGM's source).
        member = "uiVal" if name == _MEMORY_TEMP else _MEMBERS[field.valueType]
        if field.nvmlReturn == nv.NVML_SUCCESS:
            values[name] = float(getattr(field.value, member))
    if values.get(_MEMORY_TEMP, 0.0) > _HOTTEST_C:
        del values[_MEMORY_TEMP]
    return values


class Activity:
    """Activity of a GPU's or an instance's units since the last read, by GPM (Hopper and later).

    `take` fills a sample. A read less than 100 ms after the last returns nothing.
    """

    def __init__(self, nv: ModuleType, clock: Clock, take: Callable[[object], object]) -> None:
        self._nv, self._clock, self._take = nv, clock, take
        self._last, self._next = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
        self._last_ns: int | None = None

    def read(self) -> dict[str, float]:
        now_ns, last_ns = self._clock.monotonic_ns(), self._last_ns
        if last_ns is not None and now_ns - last_ns < _APART_NS:
            return {}
        self._last_ns = None  # until the next sample: the GPU may have been reset
        if ask(self._nv, lambda: self._take(self._next)) is None:
            return {}
        self._last_ns, self._last, self._next = now_ns, self._next, self._last
        return {} if last_ns is None else ask(self._nv, self._between) or {}

    def free(self) -> None:
        for sample in (self._last, self._next):
            with suppress(self._nv.NVMLError):
                self._nv.nvmlGpmSampleFree(sample)

    def _between(self) -> dict[str, float]:
        nv = self._nv
        question = nv.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(_ACTIVITY)
        question.sample1, question.sample2 = self._next, self._last
        for i, (metric, _, _) in enumerate(_ACTIVITY):
            question.metrics[i].metricId = getattr(nv, metric)
        nv.nvmlGpmMetricsGet(question)
        values: dict[str, float] = {}
        for answer, (_, name, scale) in zip(question.metrics, _ACTIVITY, strict=False):
            if answer.nvmlReturn == nv.NVML_SUCCESS and answer.value >= 0:  # false for NaN
                values[name] = values.get(name, 0.0) + answer.value * scale
        return values

"""NVML from one initialisation to its shutdown: the GPUs, their MIG instances, and their XID errors.

Blocks; runs in the thread of nvml_reader.py. Labels are dcgm-exporter's: an instance has the UUID of its GPU, and
GPU_I_ID and GPU_I_PROFILE; values have dcgm-exporter's names and units. A value that the GPU or its driver does not
have is left out, never 0; a lost GPU has none. NVMLError is raised only if the driver is gone. Field ids are used where
DCGM uses them (its dcgm_fields.cpp, 4.6), and calls for the rest.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import TypeVar

from probe.core.clock import Clock
from probe.core.provenance import cuda_words
from probe.core.snapshot import Gpu

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
    for name, found in zip(_FIELDS.values(), fields, strict=True):
        # Driver 545 declares the memory's temperature a double, which it is not (so DCGM's source).
        member = "uiVal" if name == _MEMORY_TEMP else _MEMBERS[found.valueType]
        if found.nvmlReturn == nv.NVML_SUCCESS:
            values[name] = float(getattr(found.value, member))
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


_WAIT_MS = 1000  # for an XID error; closing takes as long


@dataclass(slots=True)
class KnownGpus:
    """What outlives a session: the GPUs' labels by index, their last XID errors by UUID, and the driver's versions."""

    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    xids: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)  # of the driver and of CUDA


@dataclass(frozen=True, slots=True)
class _Instance:
    """A MIG instance. `uuid`: its own, because another instance may be created with the same number."""

    id: int
    handle: object
    uuid: str
    profile: str | None


class NvmlSession:
    """An initialised NVML. Raises NVMLError if the driver is gone."""

    def __init__(self, nv: ModuleType, clock: Clock, known: KnownGpus) -> None:
        self._nv, self._clock, self._known = nv, clock, known
        self._activity: dict[str, Activity] = {}  # by the UUID of a GPU or of an instance
        self._xids: Xids | None = None
        nv.nvmlInit()
        try:
            self._handles = self._find()
            with_uuid = {known.labels[i].get("UUID"): gpu for i, gpu in self._handles.items() if gpu is not None}
            self._xids = Xids(nv, {uuid: gpu for uuid, gpu in with_uuid.items() if uuid}, known.xids)
        except BaseException:  # whatever it is: NVML stays initialized otherwise
            self.close()
            raise

    def close(self) -> None:
        """Free everything. Raises nothing."""
        if self._xids is None or self._xids.close():  # while that thread is inside NVML, free nothing
            self._free_all_but(set())
            with suppress(self._nv.NVMLError):
                self._nv.nvmlShutdown()

    def read(self, wanted: Mapping[str, str]) -> tuple[tuple[Gpu, ...], bool]:
        """Return the GPUs that have these labels, and whether any of them has a value.

        A lost GPU is included, with its last XID error only.
        """
        gpus: list[Gpu] = []
        answered = False
        used: set[str] = set()
        for index, handle in self._handles.items():
            labels = self._known.labels[index]
            if handle is not None:
                found = list(self._read(handle, labels, wanted, used))
            else:
                found = [Gpu(labels, {})] if _has_labels(labels, wanted) else []
            answered = answered or any(gpu.values for gpu in found)
            gpus += map(self._with_xid, found)
        self._free_all_but(used)
        return tuple(gpus), answered

    def _find(self) -> dict[int, object | None]:
        """Return handles by index; None for a GPU that does not identify itself."""
        nv, before, handles = self._nv, self._known.labels, {}
        self._known.labels = {}
        self._known.versions = _versions(nv)
        for index in range(nv.nvmlDeviceGetCount()):
            gpu, labels = None, {"gpu": str(index), "device": f"nvidia{index}"}
            try:
                gpu = nv.nvmlDeviceGetHandleByIndex(index)
                labels |= {"UUID": nv.nvmlDeviceGetUUID(gpu), "modelName": nv.nvmlDeviceGetName(gpu)}
            except nv.NVMLError as error:
                if is_driver_gone(nv, error.value):
                    raise
                if error.value == nv.NVML_ERROR_NO_PERMISSION:  # it belongs to another container
                    continue
                gpu, labels = None, before.get(index, labels)
            handles[index], self._known.labels[index] = gpu, labels
        return handles

    def _read(self, gpu: object, labels: dict[str, str], wanted: Mapping[str, str], used: set[str]) -> Iterator[Gpu]:
        """Yield a GPU and its instances. If it has any, only they have memory and activity: a sum counts these once."""
        nv = self._nv
        mode = ask(nv, lambda: nv.nvmlDeviceGetMigMode(gpu))
        divided = mode is not None and mode[0] == nv.NVML_DEVICE_MIG_ENABLE
        if _has_labels(labels, wanted):
            values = board(nv, gpu)
            if not divided:
                take = partial(nv.nvmlGpmSampleGet, gpu)
                values |= memory(nv, gpu) | self._activity_of(labels["UUID"], gpu, take, used)
            yield Gpu(labels, values, self._known.versions)
        for one in self._instances(gpu) if divided else ():
            named = labels | {"GPU_I_ID": str(one.id)} | ({"GPU_I_PROFILE": one.profile} if one.profile else {})
            if _has_labels(named, wanted):
                take = partial(nv.nvmlGpmMigSampleGet, gpu, one.id)
                yield Gpu(named, memory(nv, one.handle) | self._activity_of(one.uuid, gpu, take, used))

    def _instances(self, gpu: object) -> Iterable[_Instance]:
        nv = self._nv
        slots = ask(nv, lambda: nv.nvmlDeviceGetMaxMigDeviceCount(gpu)) or 0
        present = (ask(nv, partial(self._instance, gpu, slot)) for slot in range(slots))
        # The compute instances of a GPU instance share its memory: keep one.
        return {one.id: one for one in present if one is not None}.values()

    def _instance(self, gpu: object, slot: int) -> _Instance:
        """Raise NVMLError for an empty slot, and for an instance of another container."""
        nv = self._nv
        handle = nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
        # "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb" is a compute instance of a 2g.20gb.
        _, mig, profile = nv.nvmlDeviceGetName(handle).rpartition("MIG ")
        profile = re.sub(r"^\d+c\.", "", profile) if mig else None
        return _Instance(nv.nvmlDeviceGetGpuInstanceId(handle), handle, nv.nvmlDeviceGetUUID(handle), profile)

    def _activity_of(
        self, uuid: str, gpu: object, take: Callable[[object], object], used: set[str]
    ) -> dict[str, float]:
        nv, activity = self._nv, self._activity.get(uuid)
        if activity is None and ask(nv, lambda: nv.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice):
            activity = ask(nv, lambda: Activity(nv, self._clock, take))
        if activity is None:
            return {}
        self._activity[uuid] = activity
        used.add(uuid)
        return activity.read()

    def _free_all_but(self, used: set[str]) -> None:
        for uuid in self._activity.keys() - used:
            self._activity.pop(uuid).free()

    def _with_xid(self, gpu: Gpu) -> Gpu:
        xid = self._known.xids.get(gpu.labels.get("UUID", ""))
        if xid is None or "GPU_I_ID" in gpu.labels:
            return gpu
        return replace(gpu, values={**gpu.values, "DCGM_FI_DEV_XID_ERRORS": float(xid)})


def _versions(nv: ModuleType) -> dict[str, str]:
    """Return the driver's version and the newest CUDA that it runs."""
    driver = ask(nv, lambda: nv.nvmlSystemGetDriverVersion())  # noqa: PLW0108 - missing in an older pynvml
    cuda = ask(nv, lambda: nv.nvmlSystemGetCudaDriverVersion_v2())  # noqa: PLW0108
    found = {"driver": str(driver or ""), "cuda": cuda_words(str(cuda or ""))}
    return {name: value for name, value in found.items() if value}


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


class Xids:
    """Waits for XID errors in a thread of its own, and stores each GPU's latest in `last`, by UUID.

    0 before the first; a GPU that does not report them is not in it.
    """

    def __init__(self, nv: ModuleType, gpus: Mapping[str, object], last: dict[str, int]) -> None:
        self._nv, self._last = nv, last
        self._uuids: dict[int | None, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="nvml-xid", daemon=True)
        with suppress(nv.NVMLError):
            self._events = nv.nvmlEventSetCreate()
            for uuid, gpu in gpus.items():
                with suppress(nv.NVMLError):
                    nv.nvmlDeviceRegisterEvents(gpu, nv.nvmlEventTypeXidCriticalError, self._events)
                    self._uuids[_address(gpu)] = uuid
                    last.setdefault(uuid, 0)
            self._thread.start()

    def close(self) -> bool:
        """Stop the thread, which takes up to a second. Return whether it has ended: a hanging driver keeps it."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _WAIT_MS / 1000)
        return not self._thread.is_alive()

    def _wait(self) -> None:
        nv = self._nv
        while not self._closing.is_set():
            try:
                event = nv.nvmlEventSetWait_v2(self._events, _WAIT_MS)
                # A lost GPU may no longer return its UUID; its handle is the one it was registered with.
                uuid = self._uuids.get(_address(event.device)) or nv.nvmlDeviceGetUUID(event.device)
                self._last[uuid] = event.eventData
            except nv.NVMLError_Timeout:
                continue
            except nv.NVMLError:  # a lost GPU may raise it at once, again and again
                self._closing.wait(_WAIT_MS / 1000)
        with suppress(nv.NVMLError):
            nv.nvmlEventSetFree(self._events)


def _address(gpu: object) -> int | None:
    return ctypes.cast(gpu, ctypes.c_void_p).value  # type: ignore[arg-type]

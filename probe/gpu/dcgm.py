"""GPUs by dcgm-exporter's pages, of any version or federated by a Prometheus: the parser, and the reader of the URLs of
all targets. Out: GPUs with the names and units of fields.py.

UUID and GPU_I_ID identify a GPU or a MIG instance. One shared by several containers is one GPU with the values of the
whole: the exporter repeats the values for each container, and since 4.8.2 also writes each container's part of GPU_UTIL
and FB_USED in addition to the whole; the largest value is the whole.
"""

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
from prometheus_client.samples import Sample

from probe.client.failures import NETWORK_ERRORS
from probe.client.tls_files import client_context
from probe.client.transport import Transport
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.provenance import cuda_words
from probe.core.request import Outcome
from probe.core.snapshot import Gpu, GpuSnapshot
from probe.core.text import one_line
from probe.gpu.fields import LABELS, NAMES, each_once
from probe.scrape.metrics_parser import Samples, samples

MAX_GPUS = 32  # of one target: each has a series for every field
_MAX_LABEL = 253  # the longest name of a pod or a host
_MIB = 2**20
_UTIL_RATIO = "DCGM_FI_DEV_GPU_UTIL_RATIO"

# DCGM's newer names, with the older name and the factor to its unit. dcgm-exporter 4.9.0 took them for 23
# fields of its lists, 11 with another unit (its release notes, which name them by kind; the 23rd is a label). Each name
# from DCGM's dcgm_fields.h of 4.6.0 and go-dcgm's of 4.6.1, which have the older ones as aliases or as deprecated;
# the names of 4.7 (BYTES, PER_SECOND, SECONDS, and RATIOs of DEV) from a citation of NVIDIA's Field Identifiers for
# 4.7.0.
_RENAMED: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": ("DCGM_FI_DEV_SM_CLOCK", 1e-6),
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": ("DCGM_FI_DEV_MEM_CLOCK", 1e-6),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": ("DCGM_FI_DEV_MEMORY_TEMP", 1.0),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS": ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 1.0),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3),
    _UTIL_RATIO: ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": ("DCGM_FI_DEV_MEM_COPY_UTIL", 100.0),
    "DCGM_FI_DEV_FB_USED_BYTES": ("DCGM_FI_DEV_FB_USED", 1 / _MIB),
    "DCGM_FI_DEV_FB_FREE_BYTES": ("DCGM_FI_DEV_FB_FREE", 1 / _MIB),
    "DCGM_FI_DEV_FB_RESERVED_BYTES": ("DCGM_FI_DEV_FB_RESERVED", 1 / _MIB),
    "DCGM_FI_DEV_XID_ERROR": ("DCGM_FI_DEV_XID_ERRORS", 1.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1.0),
    # Nanoseconds in every version, as NVML counts; to 4.7.0 the exporter's help text said us (e61056b).
    "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": ("DCGM_FI_DEV_POWER_VIOLATION", 1e9),
    "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": ("DCGM_FI_DEV_THERMAL_VIOLATION", 1e9),
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL": ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1.0),
    # A rate. The older field is KiB/s over 1000 (DcgmCacheManager.cpp), the newer one KiB/s times 1024.
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1 / 1024_000),
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILED": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0),
    "DCGM_FI_PROF_SM_UTIL_RATIO": ("DCGM_FI_PROF_SM_ACTIVE", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": ("DCGM_FI_PROF_SM_OCCUPANCY", 1.0),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": ("DCGM_FI_PROF_DRAM_ACTIVE", 1.0),
}
_SERIES: Mapping[str, tuple[str, float]] = {**_RENAMED, **{name: (name, 1.0) for name in NAMES}}
_ONLY_4_7 = frozenset(
    name
    for name in _RENAMED
    if name.endswith(("_BYTES", "_SECONDS_TOTAL", "_PER_SECOND")) or name == "DCGM_FI_DEV_MEMORY_UTIL_RATIO"
)


def names_of(field: str) -> list[tuple[str, float]]:
    """Return the names of a field's series in all versions of DCGM, each with the factor to the field's unit."""
    return [(name, factor) for name, (old, factor) in _SERIES.items() if old == field]


# Reported utilisation may be far above 100 % (dcgm-exporter #418). Profiled ratios may exceed 1 by rounding.
_PERCENT = 100.0
_RATIO = 1.01
_LIMITS = {
    "DCGM_FI_DEV_GPU_UTIL": _PERCENT,
    "DCGM_FI_DEV_MEM_COPY_UTIL": _PERCENT,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _RATIO,
    "DCGM_FI_PROF_SM_ACTIVE": _RATIO,
    "DCGM_FI_PROF_SM_OCCUPANCY": _RATIO,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _RATIO,
    "DCGM_FI_PROF_DRAM_ACTIVE": _RATIO,
}
# The user of a GPU. The first of these labels that the page has counts: if a Prometheus has added the exporter's own
# pod, the user's is exported_pod; the first exporters wrote pod_name.
USERS = {
    "pod": ("exported_pod", "pod_name", "pod"),
    "namespace": ("exported_namespace", "pod_namespace", "namespace"),
    "container": ("exported_container", "container_name", "container"),
}
# 4.8 writes hostname; a Prometheus or an agent in between may write all labels in lower case.
_OWN = {name: (name, name.lower()) for name in LABELS if name not in USERS} | {
    "modelName": ("modelName", "modelname", "model_name")
}
_SIGN = re.compile(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_", re.MULTILINE)
_TIME = re.compile(
    r"(\} [-+.0-9eE]+) -?[0-9]+$", re.MULTILINE
)  # of a federated page: lines with time stamps are slow to parse

Identity = tuple[str, ...]
_NAMED = 3  # pods in a message


@dataclass(slots=True)
class Device:
    """A GPU or MIG instance on a page. `users`: pod, namespace and container of each user that the page names."""

    labels: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    users: set[tuple[str, ...]] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)


Take = Callable[[Sequence[Device], Mapping[str, str]], tuple[Gpu, ...]]


def parse(text: str, at_ns: int, wall_s: float, labels: Mapping[str, str]) -> GpuSnapshot:
    """Return the page's GPUs with these labels. Raise ValueError for a page that is not dcgm-exporter's."""
    return GpuSnapshot(at_ns, wall_s, "dcgm", choose(read(text), labels))


def read(text: str) -> tuple[Device, ...]:
    """Return all GPUs of a page, none if the exporter has none. Raise ValueError for a page that is not its own."""
    if _SIGN.search(text) is None:
        raise ValueError("no series of dcgm-exporter on the page")
    return devices_of(_samples(_TIME.sub(r"\1", text)))


def devices_of(found: Samples) -> tuple[Device, ...]:
    """Return all GPUs with these samples, of one exporter or of several with the same labels."""
    users = _user_labels(found)
    devices: dict[Identity, Device] = {}
    for series, its in found.items():
        name, factor = _SERIES[series]
        scale = _util_factor(found) if series == _UTIL_RATIO else factor
        for sample in its:
            if not any(identity := _identity(sample.labels)):
                continue
            if (device := devices.get(identity)) is None:
                device = devices[identity] = Device(_own_labels(sample.labels), _versions(sample.labels))
            device.users.add(tuple(sample.labels.get(label, "")[:_MAX_LABEL] for label in users))
            if (value := _value(name, sample.value, scale)) is not None:
                device.values[name] = max(value, device.values.get(name, value))
    return tuple(devices.values())


def choose(devices: Iterable[Device], labels: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs with all of these labels, each once. Raise ValueError for too many.

    Of a shared GPU's users only those with the labels count; labels in which they differ are left out.
    """
    wanted = [labels.get(name) for name in USERS]
    own = {name: value for name, value in labels.items() if name not in USERS}
    chosen: dict[Identity, Gpu] = {}
    for device in devices:
        users = [user for user in device.users if all(w in (None, u) for w, u in zip(wanted, user, strict=True))]
        if users and all(device.labels.get(name, "") == value for name, value in own.items()):
            gpu = Gpu(device.labels | _agreed(users), device.values, device.versions)
            chosen.setdefault(_identity(device.labels), gpu)
    if len(chosen) > MAX_GPUS:
        raise ValueError(f"{len(chosen)} GPUs, of at most {MAX_GPUS}; set labels that only this server's GPUs have")
    return each_once(chosen.values())


def some_of(devices: Sequence[Device], labels: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return `choose`, of at least one GPU. Raise ValueError, which says why none is this pod's."""
    if found := choose(devices, labels):
        return found
    if not devices:
        raise ValueError("dcgm-exporter shows no GPU")
    pods = sorted({f"{namespace}/{pod}" for device in devices for pod, namespace, _ in device.users if pod})
    if not pods:
        raise ValueError(
            "dcgm-exporter does not say which pods use its GPUs, or none does; check DCGM_EXPORTER_KUBERNETES=true and"
            " its mount of /var/lib/kubelet/pod-resources"
        )
    wanted = ", ".join(f"{name}={value}" for name, value in labels.items())
    more = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    raise ValueError(
        f"dcgm-exporter has no GPU with {wanted}, but of {', '.join(pods[:_NAMED])}{more}; of a shared GPU it names"
        " one pod, or all with KUBERNETES_VIRTUAL_GPUS=true"
    )


def relayed(its: Iterable[Sample]) -> Samples:
    """Return the samples of the values that are read, by their names."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in its:
        if sample.name in _SERIES:
            found[sample.name].append(sample)
    return found


def _samples(text: str) -> Samples:
    """Return the relayed samples. Skip values that are text, as 4.1 has them for some fields (#488)."""
    with suppress(ValueError, LookupError):
        return samples(text, _SERIES)
    found: dict[str, list[Sample]] = defaultdict(list)
    for line in text.split("\n"):
        with suppress(ValueError, LookupError):
            for name, its in samples(line, _SERIES).items():
                found[name] += its
    return found


def _user_labels(found: Samples) -> tuple[str, ...]:
    """Return this page's label names for pod, namespace and container."""
    present = {label for its in found.values() for sample in its for label in sample.labels}
    return tuple(next((name for name in names if name in present), names[-1]) for names in USERS.values())


def _identity(labels: Mapping[str, str]) -> Identity:
    """Return what identifies the GPU; all empty if nothing does. The first exporters had no UUID for some."""
    if uuid := _own_label(labels, "UUID"):
        return uuid, _own_label(labels, "GPU_I_ID")
    return tuple(_own_label(labels, name) for name in ("gpu", "device", "Hostname", "GPU_I_ID"))


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    found = {name: _own_label(labels, name) for name in _OWN}
    return {name: value[:_MAX_LABEL] for name, value in found.items() if value}


def _own_label(labels: Mapping[str, str], name: str) -> str:
    return next(filter(None, map(labels.get, _OWN[name])), "")


def _versions(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that the exporter adds as labels: of the driver by default, of CUDA where it is asked to."""
    driver = labels.get("DCGM_FI_DRIVER_VERSION") or labels.get("DCGM_FI_SYSTEM_DRIVER_VERSION", "")  # since 4.9
    found = {"driver": driver, "cuda": cuda_words(labels.get("DCGM_FI_CUDA_DRIVER_VERSION", ""))}
    return {name: value[:_MAX_LABEL] for name, value in found.items() if value}


def _agreed(users: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Return the labels in which all users agree; users without any label do not count."""
    found = zip(*(user for user in users if any(user)), strict=True)
    return {name: its[0] for name, its in zip(USERS, found, strict=False) if its[0] and len(set(its)) == 1}


def _util_factor(found: Samples) -> float | None:
    """Return the factor from DCGM_FI_DEV_GPU_UTIL_RATIO to percent: it is a ratio in DCGM 4.7 (field 1613), and in 4.6
    another name of GPU_UTIL (203), in whole percent. None if the page does not show which.
    """
    values = [sample.value for sample in found[_UTIL_RATIO] if not _is_blank(sample.value)]
    if not _ONLY_4_7.isdisjoint(found) or any(value % 1 for value in values):
        return 100.0
    return 1.0 if any(value > 1 for value in values) else None


def _value(name: str, value: float, factor: float | None) -> float | None:
    """Return the value in the older field's unit, or None for a blank or an impossible one: none is below zero, and
    some write -1 for memory that is unknown.
    """
    if factor is None or _is_blank(value):
        return None
    scaled = float(value) if factor == 1 else round(value * factor, 6)
    return scaled if 0 <= scaled <= _LIMITS.get(name, math.inf) else None


def _is_blank(value: float) -> bool:
    """Return whether the value is one of DCGM's blanks (dcgm_structs.h), which older exporters write: not known, not
    found, not supported or not permitted, as 64 and 32 bits and as doubles. A counter may well pass the 32-bit blanks.
    """
    return value >= 0x7FFFFFFFFFFFFFF0 or 0 <= value - 0x7FFFFFF0 <= 3 or 0 <= value - 2.0**47 <= 3  # noqa: PLR2004


_MAX_PAGE_BYTES = 8 * 1024 * 1024
_LARGE_PAGE = (
    256 * 1024
)  # characters, about 2 ms of work: parse more in a thread, or the event loop's time stamps would be late
_OK = 200


@dataclass(frozen=True, slots=True)
class _Page:
    """The GPUs on a page, or why it could not be read, and the time."""

    at_ns: int
    wall_s: float
    devices: tuple[Device, ...] = ()
    problem: str | None = None


class DcgmPages:
    """The pages of one process. Targets that need a page at about the same time share one request, even a failed one.

    Requests carry no credentials: neither a target's key, nor any from the environment or the URL.
    """

    def __init__(self, clock: Clock, timeout_s: float = 3.0) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        transport = Transport(tls=client_context)
        self._http = httpx.AsyncClient(timeout=timeout_s, transport=transport, auth=httpx.Auth(), trust_env=False)
        self._pages: dict[str, _Page] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        await self._http.aclose()

    async def read(
        self, urls: Sequence[str], labels: Mapping[str, str], max_age_s: float, take: Take = choose
    ) -> GpuSnapshot:
        """Return the GPUs with these labels on all of the pages, none older than `max_age_s`. Raise TargetError if a
        page cannot be read: its GPUs would otherwise look as if they were gone. `take`: `choose` or `some_of`.
        """
        pages = await asyncio.gather(*(self._page(url, max_age_s) for url in urls))
        problem = next((page.problem for page in pages if page.problem), None)
        if problem is not None:
            raise TargetError(problem, Outcome.UNREACHABLE)
        try:
            gpus = take([device for page in pages for device in page.devices], labels)
        except ValueError as error:
            raise TargetError(f"{urls[0]}: {error}", Outcome.UNREACHABLE) from None
        oldest = min(pages, key=lambda page: page.at_ns)
        return GpuSnapshot(oldest.at_ns, oldest.wall_s, "dcgm", gpus)

    async def _page(self, url: str, max_age_s: float) -> _Page:
        async with self._locks[url]:
            page = self._pages.get(url)
            if page is None or self._clock.monotonic_ns() - page.at_ns >= max_age_s * 1e9:
                page = self._pages[url] = await self._ask(url)
            return page

    async def _ask(self, url: str) -> _Page:
        devices: tuple[Device, ...] = ()
        problem = None
        try:
            async with asyncio.timeout(self._timeout_s):
                text = await self._get(url)
            devices = await asyncio.to_thread(read, text) if len(text) > _LARGE_PAGE else read(text)
        except NETWORK_ERRORS as error:
            problem = f"{url}: no metrics of GPUs ({one_line(str(error)) or type(error).__name__})"
        return _Page(self._clock.monotonic_ns(), self._clock.wall_s(), devices, problem)

    async def _get(self, url: str) -> str:
        async with self._http.stream("GET", url) as response:
            if response.status_code != _OK:
                raise ValueError(f"HTTP {response.status_code}")
            page = bytearray()
            async for data in response.aiter_bytes():
                page += data
                if len(page) > _MAX_PAGE_BYTES:
                    raise ValueError(f"more than {_MAX_PAGE_BYTES} bytes")
        return page.decode("utf-8", "replace")

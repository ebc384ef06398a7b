"""The GPU readers of the targets, by their configuration."""

import asyncio
from collections.abc import Callable
from functools import partial

from probe.config.gpu import GpuConfig
from probe.config.prometheus import PrometheusConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.server_address import is_loopback
from probe.core.snapshot import GpuSnapshot
from probe.gpu.dcgm import DcgmPages, some_of
from probe.gpu.dcgm_series import owner
from probe.gpu.nvml_reader import Nvml
from probe.monitor.gpu_places import GpuPlace
from probe.observe.server_observer import GpuReader

# NVML needs a tenth of a second between the two samples that activity is computed from. A capacity run and the
# schedule may ask at the same moment.
_FRESH_S = 0.1
# At its start a monitor finds pods and their exporters at the same time: the first reading waits for both.
_LISTING_S, _LISTINGS = 0.1, 30


class _Fresh:
    """A reader that returns its last snapshot while that was read less than `fresh_s` ago."""

    def __init__(self, read: GpuReader, clock: Clock, fresh_s: float) -> None:
        self._read, self._clock, self._fresh_ns = read, clock, int(fresh_s * 1e9)
        self._last: GpuSnapshot | None = None
        self._read_ns = 0

    async def read(self) -> GpuSnapshot:
        if self._last is None or self._clock.monotonic_ns() - self._read_ns >= self._fresh_ns:
            self._last = await self._read()
            self._read_ns = self._clock.monotonic_ns()
        return self._last


def _known(place: GpuPlace) -> GpuPlace:
    """Return the place. Raise TargetError where it is not known."""
    if place.problem is not None:
        raise TargetError(place.problem, Outcome.UNREACHABLE)
    return place


class GpuReaders:
    """The readers of one process. A page that several targets need is read once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: DcgmPages | None = None
        self._drivers: list[Nvml] = []

    def reader(
        self, target: TargetConfig, prometheus: PrometheusConfig | None, place: Callable[[], GpuPlace] = GpuPlace
    ) -> GpuReader | None:
        """Return the reader, or None if the section names no source. A page may be as old as half the interval.

        `place` returns where a discovered server's GPUs are now.
        """
        gpu = target.gpu
        if gpu.nvml:
            driver = Nvml(self._clock, gpu.labels)
            self._drivers.append(driver)
            return _Fresh(driver.read, self._clock, _FRESH_S).read
        if gpu.dcgm is not None:
            return partial(self._of_pod, gpu, place)
        if gpu.prometheus and prometheus is not None:
            read = partial(self._in_prometheus, target, prometheus, place)
            return _Fresh(read, self._clock, gpu.every / 2).read
        if not gpu.dcgm_urls:
            return None
        return partial(self._dcgm_pages.read, gpu.dcgm_urls, gpu.labels, gpu.every / 2)

    @property
    def _dcgm_pages(self) -> DcgmPages:
        if self._pages is None:
            self._pages = DcgmPages(self._clock)
        return self._pages

    async def _in_prometheus(
        self, target: TargetConfig, prometheus: PrometheusConfig, place: Callable[[], GpuPlace]
    ) -> GpuSnapshot:
        """Return the GPUs by DCGM's series. Raise TargetError, which says why there are none."""
        from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - its package loads numpy

        now = _known(place())
        of = owner({**target.gpu.labels, **now.labels}, target.base_url, now.node, prometheus.labels)
        if of.is_host and is_loopback(of.host):
            raise TargetError(f"{of.host} names no host; set gpu.labels, such as Hostname", Outcome.UNREACHABLE)
        gpus, age_s = await Prometheus(prometheus).gpus(of)
        age_ns = int(age_s * 1e9)
        return GpuSnapshot(self._clock.monotonic_ns() - age_ns, self._clock.wall_s() - age_s, "prometheus", gpus)

    async def _of_pod(self, gpu: GpuConfig, place: Callable[[], GpuPlace]) -> GpuSnapshot:
        """Return the GPUs of a discovered pod. Raise TargetError, which says why there are none."""
        now = place()
        for _ in range(_LISTINGS):
            if not now.is_pending:
                break
            await asyncio.sleep(_LISTING_S)
            now = place()
        now = _known(now)
        return await self._dcgm_pages.read(now.urls, {**gpu.labels, **now.labels}, gpu.every / 2, some_of)

    async def close(self) -> None:
        """Close connections and libraries."""
        if self._pages is not None:
            await self._pages.close()
        for driver in self._drivers:
            await driver.close()

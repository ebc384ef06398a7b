"""The GPU readers of the targets, by their configuration."""

from functools import partial

from probe.config.gpu import GpuConfig
from probe.core.clock import Clock
from probe.core.snapshot import GpuSnapshot
from probe.gpu.dcgm import DcgmPages
from probe.gpu.nvml_reader import Nvml
from probe.observe.server_observer import GpuReader

# NVML needs a tenth of a second between the two samples that activity is computed from. A capacity run and the
# schedule may ask at the same moment.
_FRESH_NS = 100_000_000


class _Fresh:
    """An NVML reader that returns its last snapshot while that is fresh."""

    def __init__(self, driver: Nvml, clock: Clock) -> None:
        self._driver, self._clock = driver, clock
        self._last: GpuSnapshot | None = None

    async def read(self) -> GpuSnapshot:
        if self._last is None or self._clock.monotonic_ns() - self._last.at_ns >= _FRESH_NS:
            self._last = await self._driver.read()
        return self._last


class GpuReaders:
    """The readers of one process. A page that several targets need is read once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: DcgmPages | None = None
        self._drivers: list[Nvml] = []

    def reader(self, gpu: GpuConfig) -> GpuReader | None:
        """Return the reader, or None if the section names no source. A page may be as old as half the interval."""
        if gpu.nvml:
            driver = Nvml(self._clock, gpu.labels)
            self._drivers.append(driver)
            return _Fresh(driver, self._clock).read
        if not gpu.dcgm_urls:
            return None
        if self._pages is None:
            self._pages = DcgmPages(self._clock)
        return partial(self._pages.read, gpu.dcgm_urls, gpu.labels, gpu.every / 2)

    async def close(self) -> None:
        """Close connections and libraries."""
        if self._pages is not None:
            await self._pages.close()
        for driver in self._drivers:
            await driver.close()

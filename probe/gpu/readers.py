"""Who reads a target's GPUs, by its configuration."""

from functools import partial

from probe.clock import Clock
from probe.config_gpu import GpuConfig
from probe.gpu.dcgm_pages import DcgmPages
from probe.gpu.nvml import Nvml
from probe.server_watch import GpuReader


class GpuReaders:
    """The readers of one process: pages that several targets need are read once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: DcgmPages | None = None
        self._drivers: list[Nvml] = []

    def reader(self, gpu: GpuConfig) -> GpuReader | None:
        """None where nothing says how to read any. A page may be as old as half the interval."""
        if gpu.nvml:
            driver = Nvml(self._clock, gpu.labels)
            self._drivers.append(driver)
            return driver.read
        if not gpu.dcgm_urls:
            return None
        if self._pages is None:
            self._pages = DcgmPages(self._clock)
        return partial(self._pages.read, gpu.dcgm_urls, gpu.labels, gpu.every / 2)

    async def close(self) -> None:
        """Closes connections and libraries."""
        if self._pages is not None:
            await self._pages.close()
        for driver in self._drivers:
            await driver.close()

"""Reads dcgm-exporter's metrics for all targets of a monitor: URLs in, one GpuSnapshot of their GPUs out."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from probe.client.failures import NETWORK_ERRORS
from probe.client.tls_files import client_context
from probe.client.transport import Transport
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.snapshot import GpuSnapshot
from probe.core.text import one_line
from probe.gpu.dcgm import Device, choose, read

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

    async def read(self, urls: Sequence[str], labels: Mapping[str, str], max_age_s: float) -> GpuSnapshot:
        """Return the GPUs with these labels on all of the pages, none older than `max_age_s`. Raise TargetError if a
        page cannot be read: its GPUs would otherwise look as if they were gone.
        """
        pages = await asyncio.gather(*(self._page(url, max_age_s) for url in urls))
        problem = next((page.problem for page in pages if page.problem), None)
        if problem is not None:
            raise TargetError(problem, Outcome.UNREACHABLE)
        try:
            gpus = choose([device for page in pages for device in page.devices], labels)
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

"""Scrapes of a target's server: its metrics page, or those of all replicas behind its address together."""

import asyncio
from collections.abc import Mapping

from probe.client.endpoint import Endpoint
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.server_address import server_key
from probe.core.snapshot import ServerSnapshot
from probe.scrape.page_scraper import MAX_PAGE_BYTES, PageScraper
from probe.scrape.replicas import merged, merged_flags

# Of the pages of all replicas, which are in memory at the same time.
_MAX_TOGETHER = 32 * 2**20


class Scraper:
    """Scrapes one server, or several replicas as one (`Endpoint.metrics_urls`).

    A scrape of replicas succeeds if each page can be read: load and user traffic are sums, and a part of a sum would
    pass for less of it. `engine`: one of engines.NAMES, or None to detect it.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, timeout_s: float = 3.0, engine: str | None = None) -> None:
        self._target = endpoint.target
        replicas = endpoint.replicas()
        most = min(MAX_PAGE_BYTES, _MAX_TOGETHER // len(replicas))
        self._pages = {
            _name(one) if endpoint.metrics_urls else "": PageScraper(one, clock, timeout_s, engine, most)
            for one in replicas
        }

    @property
    def seconds(self) -> float:
        """The time to fetch and parse the last page, or the slowest one of the last pages."""
        return max(page.seconds for page in self._pages.values())

    @property
    def page_bytes(self) -> int:
        """The uncompressed size of the last page, or of all of them together."""
        return sum(page.page_bytes for page in self._pages.values())

    async def close(self) -> None:
        await asyncio.gather(*(page.close() for page in self._pages.values()))

    async def read(self) -> ServerSnapshot:
        """Return a snapshot of the server. Raise TargetError if a page cannot be read or has no metrics."""
        pages = list(self._pages.values())
        if len(pages) == 1:
            return await pages[0].read()
        found = await asyncio.gather(*(page.read() for page in pages), return_exceptions=True)
        return self._merged(dict(zip(self._pages, found, strict=True)))

    async def read_flags(self) -> dict[str, str] | None:
        """Return the startup flags that vLLM reports at /server_info; {} without that page, None if it is silent.

        Of replicas, the flags that all of them report.
        """
        each = await asyncio.gather(*(page.read_flags() for page in self._pages.values()))
        known = [flags for flags in each if flags is not None]
        return merged_flags(known) if len(known) == len(each) else None

    def _merged(self, found: Mapping[str, ServerSnapshot | BaseException]) -> ServerSnapshot:
        replicas = {name: one for name, one in found.items() if isinstance(one, ServerSnapshot)}
        for error in found.values():
            if isinstance(error, TargetError):
                missing = f"{len(found) - len(replicas)} of {len(found)} replicas cannot be read"
                raise TargetError(f"{error}; {missing}, and all of them are needed", error.outcome, error.reason)
            if isinstance(error, BaseException):
                raise error
        try:
            return merged(replicas)
        except ValueError as error:
            words = f"{self._target}: metrics_urls: {error}"
            raise TargetError(words, Outcome.UNREACHABLE, "not_metrics") from None


def _name(endpoint: Endpoint) -> str:
    """Return a replica's address as the engine label has it: without the page's usual path."""
    return server_key(endpoint.metrics_address).removesuffix("/metrics")

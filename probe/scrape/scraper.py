"""Scrapes of a target's server: its metrics page, or the pages of all replicas behind its address together."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from probe.client.endpoint import Endpoint
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.server_address import server_key
from probe.core.snapshot import MAX_REPLICAS, ServerSnapshot, changed_replicas
from probe.scrape.page_scraper import MAX_PAGE_BYTES, PageScraper
from probe.scrape.replicas import merged, merged_flags

# Of the pages of all replicas, which are in memory at the same time.
_MAX_TOGETHER = 32 * 2**20


class Scraper:
    """Scrapes one server, or several replicas as one (`Endpoint.metrics_urls`, or those that it is told to follow).

    A scrape of replicas succeeds if each page can be read: load and user traffic are sums, and a missing page would
    look like less traffic.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        timeout_s: float = 3.0,
        engine: str | None = None,
        *,
        follows: bool = False,
        kv_cache_tokens: float | None = None,
    ) -> None:
        """Take `engine`: one of engines.NAMES, or None to detect it. `follows`: `follow` says what to read.

        `kv_cache_tokens`: the size of the KV cache of each page's server, instead of the page's.
        """
        self._target, self._endpoint = endpoint.target, endpoint
        self._new_page = partial(
            PageScraper, clock=clock, timeout_s=timeout_s, engine=engine, kv_cache_tokens=kv_cache_tokens
        )
        self._are_replicas = follows or bool(endpoint.metrics_urls)
        self._pages: dict[str, PageScraper] = {}
        self._dropped: list[PageScraper] = []  # of replicas that have gone, until no read needs them
        self._reads = 0  # under way
        self._problem: str | None = "its replicas are not known yet; metrics_discovery has not answered"
        if not follows:
            self._set(endpoint.replicas())

    def follow(self, urls: Sequence[str]) -> str:
        """Read these replicas' pages from now on. Return which came and which went, in words; "" for none, and the
        first time.
        """
        before, was_known = set(self._pages), bool(self._pages)
        self._set(replace(self._endpoint, metrics_urls=tuple(urls)).replicas() if urls else ())
        return changed_replicas(before, self._pages) if was_known else ""

    @property
    def seconds(self) -> float:
        """Return the time to fetch and parse the last page, or the slowest one of the last pages."""
        return max((page.seconds for page in self._pages.values()), default=0.0)

    @property
    def page_bytes(self) -> int:
        """Return the uncompressed size (bytes) of the last page, or of all replicas' pages together."""
        return sum(page.page_bytes for page in self._pages.values())

    async def close(self) -> None:
        pages, self._pages = [*self._pages.values(), *self._dropped], {}
        self._dropped = []
        await asyncio.gather(*(page.close() for page in pages))

    async def read(self) -> ServerSnapshot:
        """Return a snapshot of the server. Raise TargetError if a page cannot be read or has no metrics."""
        async with self._reading() as pages:
            if not self._are_replicas:
                return await pages[""].read()
            found = await asyncio.gather(*(page.read() for page in pages.values()), return_exceptions=True)
            return self._merged(dict(zip(pages, found, strict=True)))

    async def read_flags(self) -> dict[str, str] | None:
        """Return the startup flags that vLLM reports at /server_info; {} without that page, None if it is silent.

        Of replicas, the flags that all of them report.
        """
        try:
            async with self._reading() as pages:
                each = await asyncio.gather(*(page.read_flags() for page in pages.values()))
        except TargetError:
            return None
        known = [flags for flags in each if flags is not None]
        return merged_flags(known) if len(known) == len(each) else None

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[dict[str, PageScraper]]:
        """Yield the pages of this read; they stay open meanwhile. Raise TargetError if there are none."""
        if self._problem is not None:
            raise TargetError(f"{self._target}: {self._problem}", Outcome.UNREACHABLE, "unreachable")
        self._reads += 1
        try:
            yield dict(self._pages)
        finally:
            self._reads -= 1
            if not self._reads:
                dropped, self._dropped = self._dropped, []
                await asyncio.gather(*(page.close() for page in dropped))

    def _set(self, endpoints: Sequence[Endpoint]) -> None:
        count = len(endpoints)
        self._problem = None if count else "metrics_discovery finds no replicas"
        if count > MAX_REPLICAS:
            self._problem = f"metrics_discovery finds {count} replicas; at most {MAX_REPLICAS} can be read together"
            endpoints = ()
        wanted = {_name(one) if self._are_replicas else "": one for one in endpoints}
        self._dropped += [page for name, page in self._pages.items() if name not in wanted]
        self._pages = {name: self._pages.get(name) or self._new_page(one) for name, one in wanted.items()}
        for page in self._pages.values():
            page.max_bytes = min(MAX_PAGE_BYTES, _MAX_TOGETHER // len(self._pages))

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

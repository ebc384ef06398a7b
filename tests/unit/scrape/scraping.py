"""A PageScraper, and a server that does whatever a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile_server import Asked, Hostile, Script, hostile, whole

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.core.snapshot import ServerSnapshot
from probe.scrape.page_scraper import PageScraper

PAGES = Path(__file__).parents[2] / "pages"
RECORDED = (Path(__file__).parents[2] / "golden/vllm-0.32/metrics.txt").read_bytes()
SECRET = "sk-not-to-be-shown-0123456789"
PLAIN, GZIP = "text/plain", "content-encoding: gzip"
PAGE = whole(200, RECORDED, "text/plain; version=0.0.4")
VERSION = whole(200, {"version": "0.32.0"})


def by_path(metrics: Script, version: Script = (VERSION,)) -> Callable[[Asked], Script]:
    return lambda asked: version if "/version" in asked.line else metrics


def in_turn(*pages: bytes) -> Callable[[Asked], Script]:
    """Serve another page each time."""
    left = iter(pages)
    return lambda asked: [next(left) if "/metrics" in asked.line else VERSION]


@asynccontextmanager
async def scraping(
    server: Hostile, timeout_s: float = 1.0, engine: str | None = None, **where: Any
) -> AsyncIterator[PageScraper]:
    """One of that server, whose Endpoint has `where` beside it."""
    endpoint = Endpoint("llama", server.base_url, **{"secret": lambda: SECRET, "verify": False, **where})
    scraper = PageScraper(endpoint, SystemClock(), timeout_s, engine)
    try:
        yield scraper
    finally:
        await scraper.close()


def read(
    script: Callable[[Asked], Script], times: int = 1, timeout_s: float = 1.0, engine: str | None = None
) -> tuple[ServerSnapshot, list[Asked]]:
    """Return the last snapshot, and the requests sent for it."""

    async def main() -> tuple[ServerSnapshot, list[Asked]]:
        async with hostile(script) as server, scraping(server, timeout_s, engine) as scraper:
            for _ in range(times):
                snapshot = await scraper.read()
            return snapshot, server.asked

    return asyncio.run(main())


def refusal(page: bytes, engine: str | None = None, **where: Any) -> TargetError:
    """Return the error for a page at the target's own address."""

    async def main() -> TargetError:
        async with hostile(by_path([page])) as server, scraping(server, engine=engine, **where) as scraper:
            with pytest.raises(TargetError) as caught:
                await scraper.read()
            return caught.value

    return asyncio.run(main())


def refusal_elsewhere(page: bytes) -> TargetError:
    """Return the error for the same page at a `metrics_url` of another server."""

    async def main() -> TargetError:
        async with hostile([VERSION]) as server, hostile([page]) as elsewhere:
            async with scraping(server, metrics_url=f"{elsewhere.base_url}/metrics") as scraper:
                with pytest.raises(TargetError) as caught:
                    await scraper.read()
            return caught.value

    return asyncio.run(main())

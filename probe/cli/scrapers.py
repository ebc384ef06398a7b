"""The scraper of a command: of one server, or of the replicas that a discovery finds now."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from probe.config.discovery import DiscoverConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.discovery.factory import source
from probe.discovery.types import State
from probe.monitor.desired_targets import replica_pages
from probe.monitor.wiring import scraper_of
from probe.scrape.scraper import Scraper

ANSWER_S = 10.0  # how long a discovery may take to find its servers


@asynccontextmanager
async def open_scraper(
    target: TargetConfig, clock: Clock, timeout_s: float, on_change: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Scraper]:
    """Open the scraper of the target's server. `on_change` is called when other replicas are found than before.

    Raises TargetError if no replicas are found.
    """
    scraper = scraper_of(target, clock, timeout_s)
    following = None
    try:
        if target.metrics_discovery is not None:
            following = await _follow(target, target.metrics_discovery, scraper, on_change)
        yield scraper
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await scraper.close()


async def _follow(
    target: TargetConfig, discovery: DiscoverConfig, scraper: Scraper, on_change: Callable[[str], None]
) -> asyncio.Task[None]:
    """Tell the scraper the replicas, and return the task that goes on with that."""
    problems: list[str] = []
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def follow() -> None:
        async with aclosing(source(discovery, problems.append).states()) as states:
            async for servers in states:
                if changed := scraper.follow(replica_pages(target, servers)):
                    on_change(changed)
                if not first.done():
                    first.set_result(None)

    task = asyncio.create_task(follow())
    await asyncio.wait((first, task), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise no_answer(f"{target.name}: metrics_discovery found no replicas", problems)
    return task


async def first_state(discovery: DiscoverConfig, words: str) -> State:
    """Return what a discovery finds now. Raise TargetError that begins with `words` where it does not answer."""
    problems: list[str] = []
    async with aclosing(source(discovery, problems.append).states()) as states:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await anext(states)
        except TimeoutError:
            raise no_answer(words, problems) from None


def no_answer(words: str, problems: list[str]) -> TargetError:
    why = problems[-1] if problems else f"it did not answer within {ANSWER_S:.0f} s"
    return TargetError(f"{words}: {why}", Outcome.UNREACHABLE)

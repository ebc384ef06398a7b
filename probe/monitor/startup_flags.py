"""The startup flags of a target's server: as configured, and as the server, its pod and its process show them."""

import asyncio
from collections.abc import Callable, Mapping

from probe.config.capacity import PROCESS, SERVER_INFO
from probe.config.targets import TargetConfig
from probe.scrape.local_process import flags_of_local_server
from probe.scrape.scraper import Scraper


def with_flags(target: TargetConfig, flags: Mapping[str, str], source: str) -> TargetConfig:
    """Return the target with these flags of its server in `capacity.server`, where no better source states them."""
    if not flags:
        return target
    server = target.capacity.server.with_flags(flags, source)
    return target.model_copy(update={"capacity": target.capacity.model_copy(update={"server": server})})


def with_facts(target: TargetConfig, facts: Mapping[str, str]) -> TargetConfig:
    """Return the target with these facts about its server, where the configuration does not state them."""
    if not facts:
        return target
    server = target.capacity.server.with_facts(facts)
    return target.model_copy(update={"capacity": target.capacity.model_copy(update={"server": server})})


class StartupFlags:
    """Reads the flags of one target's server before they matter: before a forecast and before a capacity run.

    `target`: the target with all flags known so far in `capacity.server`. `on_limit` receives how many requests
    an engine runs at once.
    """

    def __init__(
        self, target: TargetConfig, scraper: Scraper, on_limit: Callable[[int | None], None] = lambda _: None
    ) -> None:
        self.target = target
        self._configured = target
        self._scraper, self._on_limit = scraper, on_limit
        self._reported: Mapping[str, str] = {}  # by /server_info

    async def update(self) -> TargetConfig:
        """Read the flags, and return the target with them. If the server does not answer now, they stay."""
        target = self._configured
        if not target.passive and (found := await self._scraper.read_flags()) is not None:
            self._reported = found
        local = await asyncio.to_thread(flags_of_local_server, target.base_url)
        self.target = with_flags(with_flags(target, self._reported, SERVER_INFO), local, PROCESS)
        self._on_limit(self.target.capacity.server.limits.running)
        return self.target

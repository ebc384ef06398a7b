"""The discoveries of one process, each followed for as long as the configuration has it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import structlog

from probe.config.discovery import DiscoverConfig
from probe.config.models import TemplateConfig
from probe.discovery.types import DiscoveredServer

_log = structlog.get_logger()
# A discovery that breaks is begun again: what it does is not known beforehand, so it does not break in a hurry.
_AGAIN_S = 10.0


class DiscoveryManager:
    """Follows what finds targets. Needs a running event loop."""

    def __init__(
        self,
        on_found: Callable[[str, tuple[DiscoveredServer, ...]], Awaitable[None]],
        on_problem: Callable[[str, str | None], None],
    ) -> None:
        """`on_found` is told all servers of a discovery, by its name, whenever they have changed; `on_problem` why it
        cannot be asked, in which case what it said before stands, and None when it can be asked again.
        """
        self._on_found = on_found
        self._on_problem = on_problem
        self._followed: dict[str, tuple[DiscoverConfig, asyncio.Task[None]]] = {}

    def follow(self, templates: Sequence[TemplateConfig]) -> None:
        """Follows these from now on. One that is unchanged goes on."""
        wanted = {template.name: template.discover for template in templates}
        ended = [name for name, (config, _) in self._followed.items() if wanted.get(name) != config]
        for name in ended:
            self._followed.pop(name)[1].cancel()
        for name, config in wanted.items():
            if name not in self._followed:
                self._followed[name] = config, asyncio.create_task(self._ask(name, config))

    async def close(self) -> None:
        """Ends them all, and waits for it."""
        tasks = [task for _, task in self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._followed.clear()

    async def _ask(self, name: str, config: DiscoverConfig) -> None:
        from probe.discovery.factory import source  # noqa: PLC0415 - memory that only this option needs

        while True:
            try:
                # What another source of that name had to say, or this one before it broke, is said no more.
                self._on_problem(name, None)
                asked = source(config, partial(self._on_problem, name), partial(self._on_problem, name, None))
                async with aclosing(asked.states()) as states:
                    async for found in states:
                        await self._on_found(name, found)
            except Exception as error:  # noqa: BLE001 - whatever it is: the monitor goes on, and says so
                _log.error("discovery broke", discovery=name, exc_info=error)
                self._on_problem(name, f"it broke ({type(error).__name__})")
            await asyncio.sleep(_AGAIN_S)

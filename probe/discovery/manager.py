"""The discoveries of one process. Each runs while the configuration has it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

import structlog

from probe.config.discovery import DiscoverConfig
from probe.discovery.types import DiscoveredServer

_log = structlog.get_logger()
# Before a discovery that raised is started again: it may raise at once.
_AGAIN_S = 10.0


class DiscoveryManager:
    """Runs the discoveries. Needs a running event loop."""

    def __init__(
        self,
        on_found: Callable[[str, tuple[DiscoveredServer, ...]], Awaitable[None]],
        on_problem: Callable[[str, str | None], None],
    ) -> None:
        """`on_found` is called with a discovery's name and all of its servers whenever they change. `on_problem` is
        called with its name and why it cannot be asked (its last servers stay in effect), or None when it can be again.
        """
        self._on_found = on_found
        self._on_problem = on_problem
        self._followed: dict[str, tuple[DiscoverConfig, asyncio.Task[None]]] = {}

    def follow(self, wanted: Mapping[str, DiscoverConfig]) -> None:
        """Run these discoveries, by name, and stop all others. An unchanged one keeps running."""
        ended = [name for name, (config, _) in self._followed.items() if wanted.get(name) != config]
        for name in ended:
            self._followed.pop(name)[1].cancel()
        for name, config in wanted.items():
            if name not in self._followed:
                self._followed[name] = config, asyncio.create_task(self._run(name, config))

    async def close(self) -> None:
        """Stop all discoveries, and wait until they have ended."""
        tasks = [task for _, task in self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._followed.clear()

    async def _run(self, name: str, config: DiscoverConfig) -> None:
        from probe.discovery.factory import source  # noqa: PLC0415 - memory that only this option needs

        while True:
            try:
                # Drop the problem of a former discovery of that name, or of this one before it raised.
                self._on_problem(name, None)
                discovery = source(config, partial(self._on_problem, name), partial(self._on_problem, name, None))
                async with aclosing(discovery.states()) as states:
                    async for found in states:
                        await self._on_found(name, found)
            except Exception as error:  # noqa: BLE001 - whatever it is: the monitor goes on, and reports it
                _log.error("discovery broke", discovery=name, exc_info=error)
                self._on_problem(name, f"it broke ({type(error).__name__})")
            await asyncio.sleep(_AGAIN_S)

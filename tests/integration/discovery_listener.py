"""Whoever listens to a discovery in the cluster of api_server.py, and what may happen to that one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_server import ApiServer

from probe.config.discovery import DiscoverConfig
from probe.discovery.manager import source
from probe.discovery.types import State

SEEN_S = 2.0
_PATIENCE_S = 20.0  # a busy machine, and a wait before another try


@dataclass
class Listener:
    """What a caller of a discovery learns."""

    states: list[State] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    wells: int = 0

    @property
    def ids(self) -> list[str] | None:
        return [found.id for found in self.states[-1]] if self.states else None

    def well(self) -> None:
        self.wells += 1

    async def until(self, check: Any, within_s: float = _PATIENCE_S) -> float:
        """Wait for the condition. Return the seconds it took."""
        began = time.perf_counter()
        while not check():
            assert time.perf_counter() - began < within_s, (self.ids, self.problems)
            await asyncio.sleep(0.01)
        return time.perf_counter() - began


@asynccontextmanager
async def listening(api: ApiServer, directory: Path, kubernetes: dict[str, Any]) -> AsyncIterator[Listener]:
    """Run a discovery until the block ends."""
    api.kubeconfig(directory / "kubeconfig")
    listener = Listener()
    config = DiscoverConfig.model_validate({"kubernetes": kubernetes})

    async def listen() -> None:
        async with aclosing(source(config, listener.problems.append, listener.well).states()) as states:
            async for state in states:
                listener.states.append(state)

    task = asyncio.create_task(listen())
    try:
        yield listener
    finally:
        assert not task.done(), "it is endless"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _restarts(api: ApiServer) -> None:
    await api.stop()
    await asyncio.sleep(0.05)
    await api.start()


async def _falls_behind(api: ApiServer) -> None:
    api.compact()
    api.cut()


def _at_once(does: Callable[[ApiServer], None]) -> Callable[[ApiServer], Awaitable[None]]:
    async def trouble(api: ApiServer) -> None:
        does(api)

    return trouble


TROUBLES = (
    _restarts,
    _falls_behind,
    _at_once(ApiServer.cut),
    _at_once(ApiServer.compact),
    _at_once(ApiServer.end_watches),
    _at_once(ApiServer.bookmark),
    _at_once(lambda api: api.error(410, "too old")),
    _at_once(lambda api: api.error(500, "etcd")),
    _at_once(lambda api: api.tell(b'{"type": "ADDED", "obj')),
)

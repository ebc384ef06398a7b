"""The discovery of a `discover` section, and all discoveries of a process: each runs while the configuration has it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

import structlog

from probe.config.discovery import DiscoverConfig
from probe.discovery.polling import ProblemReporter
from probe.discovery.types import DiscoveredServer, Discovery, OnProblem, OnWell

_log = structlog.get_logger()
# Before a discovery that raised is started again: it may raise at once.
_AGAIN_S = 10.0


def _ignore() -> None:
    """Do nothing: the default `on_well`."""


def source(config: DiscoverConfig, on_problem: OnProblem, on_well: OnWell = _ignore) -> Discovery:
    """Return the discovery of a valid section (config/discovery.py).

    `on_problem` is called with one line when servers cannot be listed or some are left out, not twice in a row with the
    same line; `on_well` when that is over.
    """
    # Each kind is imported where it is used: its libraries are memory that only this kind needs.
    reporter, scheme, path = ProblemReporter(on_problem, on_well), config.scheme, config.path
    if (pods := config.kubernetes) is not None:
        from probe.discovery.kubernetes_sd import KubernetesSource  # noqa: PLC0415

        return KubernetesSource(pods, scheme, path, reporter)
    if (dns := config.dns) is not None:
        from probe.discovery.dns_sd import DnsSource  # noqa: PLC0415

        return DnsSource(dns, scheme, path, reporter)
    if (file := config.file) is not None:
        from probe.discovery.file_sd import FileSource  # noqa: PLC0415

        return FileSource(file, scheme, path, reporter)
    if (http := config.http) is not None:
        from probe.discovery.http_sd import HttpSource  # noqa: PLC0415

        return HttpSource(http, scheme, path, reporter)
    raise ValueError("the discover section names no kind of discovery")


class DiscoveryManager:
    """Runs the discoveries. Needs a running event loop."""

    def __init__(
        self,
        on_found: Callable[[str, tuple[DiscoveredServer, ...]], Awaitable[None]],
        on_problem: Callable[[str, str | None], None],
    ) -> None:
        """Call `on_found` with a discovery's name and all of its servers whenever they change.

        Call `on_problem` with its name and why it cannot be asked (its last servers stay in effect), or None when it
        can be again.
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

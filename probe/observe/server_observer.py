"""One target's server and GPUs, read: their state now, the users' part of it, and what follows from both sides.

In: readings as the schedule asks for them, and our requests as they begin and end. Out: what the Sink is told, and the
properties here. Nothing raises for what a server or a GPU does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import structlog

from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import RequestRecord
from probe.core.snapshot import CrossChecks, GpuSnapshot, ServerSnapshot, UserLoad, UserTotals
from probe.observe.cross_checks import CrossChecker
from probe.observe.user_traffic import UserTraffic
from probe.scrape.scraper import Scraper

_log = structlog.get_logger()

GpuReader = Callable[[], Awaitable[GpuSnapshot]]


class ReadingSink(Protocol):
    """Where readings go."""

    def snapshot(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        """The server was read, in so many seconds."""

    def unread(self, target: str, reason: str) -> None:
        """It could not be read."""

    def users(self, target: str, totals: UserTotals) -> None:
        """What its users have asked of it so far."""

    def joined(self, target: str, found: CrossChecks, users: UserLoad | None) -> None:
        """What client, server and GPU tell together, and what users ask of the server now."""

    def gpus(self, target: str, snapshot: GpuSnapshot | None) -> None:
        """The GPUs were read; None: they could not be."""


class ServerObserver:
    """The readings of one target."""

    def __init__(
        self,
        target: str,
        scraper: Scraper,
        clock: Clock,
        sink: ReadingSink,
        *,
        ledger: UserTraffic,
        read_gpus: GpuReader | None,
    ) -> None:
        """`ledger`: of the server, shared by the targets that stand for it. `read_gpus` None: there are none."""
        self._target = target
        self._scraper = scraper
        self._clock = clock
        self._sink = sink
        self._ledger = ledger
        self.read_gpus = read_gpus
        self._joined = CrossChecker()
        self._made_up_ns = 0  # up to when accounts were taken over
        self.server: ServerSnapshot | None = None
        self.error: str | None = None
        self.gpus: GpuSnapshot | None = None
        self.gpu_error: str | None = None

    async def look(self) -> ServerSnapshot:
        """The server now, for whoever asks beside the schedule. Raises TargetError."""
        return await self._scraper.read()

    async def read(self) -> ServerSnapshot:
        """The same, kept as the server's state."""
        self.server = await self.look()
        return self.server

    async def scrape(self) -> ServerSnapshot | None:
        """One reading; None where it failed."""
        try:
            server = await self.read()
        except TargetError as error:
            if self.error is None:
                _log.warning("server metrics cannot be read", target=self._target, detail=str(error))
            self.server, self.error = None, str(error)
            self._joined.unread()
            self._sink.unread(self._target, error.reason or "unreachable")
        else:
            self.error = None
            self._joined.reading(server)
            self._sink.snapshot(self._target, server, self._scraper.seconds, self._scraper.page_bytes)
            self._sink.users(self._target, self._accounts(server))
        self._sink.joined(self._target, self.checks, self.users)
        return self.server

    def _accounts(self, server: ServerSnapshot) -> UserTotals:
        """The users' part; nothing where the counters are those of several servers."""
        if self._joined.several:
            return UserTotals()
        self._ledger.reading(server)
        if self._ledger.loading:
            self._joined.loaded()
        elif self._ledger.made_up_ns > self._made_up_ns:
            for at_ns, both in self._ledger.compared_since(self._made_up_ns):
                self._joined.compare(at_ns, both)
            self._made_up_ns = self._ledger.made_up_ns
            self._joined.accounts(self._made_up_ns, self._ledger.totals, None)
        return self._ledger.totals

    async def scrape_gpus(self) -> None:
        """One reading of the GPUs."""
        if self.read_gpus is None:
            return
        try:
            self.gpus = await self.read_gpus()
        except TargetError as error:
            if self.gpu_error is None:
                _log.warning("GPUs cannot be read", target=self._target, detail=str(error))
            self.gpus, self.gpu_error = None, str(error)
        else:
            self.gpu_error = None
            self._joined.gpus(self.gpus)
        self._sink.gpus(self._target, self.gpus)

    @property
    def checks(self) -> CrossChecks:
        """What client, server and GPU tell together now."""
        return self._joined.view()

    @property
    def users(self) -> UserLoad | None:
        """What users ask of the server, over the last minutes; None where that is not known, as while it is loaded."""
        return None if self._ledger.loading else self._joined.users()

    @asynccontextmanager
    async def ours(self, *, load: bool = False) -> AsyncIterator[None]:
        """While requests of ours are under way: one, or many (`load`)."""
        self._ledger.begun(load=load)
        try:
            yield
        finally:
            self._ledger.ended(self._clock.monotonic_ns(), load=load)

    def others(self, *, loading: bool) -> None:
        """Another prober's load begins, or is over."""
        if loading:
            self._ledger.others_began()
        else:
            self._ledger.others_ended(self._clock.monotonic_ns())

    def request(self, record: RequestRecord) -> None:
        """A request of ours ended."""
        self._ledger.request(record)

    def canary(self, record: RequestRecord) -> None:
        """A canary ended."""
        self._joined.canary(record)
        self.request(record)

    async def close(self) -> None:
        """Closes the connections."""
        await self._scraper.close()

"""The scrapes of one target's server and GPUs.

In: scrapes as the schedule asks for them, and the target's probe requests as they begin and end. Out: calls of the
sink, and the properties here. No error of a server or a GPU is raised by a scrape.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import structlog

from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.request import RequestRecord, Traffic
from probe.core.snapshot import CrossChecks, GpuSnapshot, ServerSnapshot, UserLoad, UserTotals
from probe.core.workload import Workload, longest
from probe.observe.cross_checks import CrossChecker
from probe.observe.probe_traffic import NO_TOKENS, Tokens
from probe.observe.server_state import ServerState
from probe.scrape.scraper import Scraper

_log = structlog.get_logger()

# No known template is longer, without tools. An estimate above the true length only delays users' tokens.
_TEMPLATE_TOKENS = 200
# A canary waits no longer for the metrics page; a sleeping server has nothing else to do.
_SLEEP_READ_S = 1.0

GpuReader = Callable[[], Awaitable[GpuSnapshot]]


class ScrapeSink(Protocol):
    """Receives what is scraped."""

    def snapshot(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        """Take a snapshot of the server, and how long the scrape took."""

    def scrape_failed(self, target: str, reason: str) -> None:
        """Note a scrape that failed."""

    def users(self, target: str, totals: UserTotals) -> None:
        """Take the user traffic so far."""

    def cross_checks(self, target: str, found: CrossChecks, users: UserLoad | None) -> None:
        """Take the cross-checks, and the load of users now."""

    def gpus(self, target: str, snapshot: GpuSnapshot | None) -> None:
        """Take a snapshot of the GPUs, or None if they could not be read."""


class ServerObserver:
    """Scrapes one target, and keeps its latest snapshots."""

    def __init__(
        self,
        target: str,
        scraper: Scraper,
        clock: Clock,
        sink: ScrapeSink,
        *,
        state: ServerState,
        cross_checker: CrossChecker,
        read_gpus: GpuReader | None,
    ) -> None:
        """Take `state`: shared by the targets with the same metrics page. `read_gpus` None: no GPU is read."""
        self._target = target
        self._scraper = scraper
        self._clock = clock
        self._sink = sink
        self.state = state
        self._cross_checker = cross_checker
        self.read_gpus = read_gpus
        self.server: ServerSnapshot | None = None  # None after a failed scrape
        self.last_server: ServerSnapshot | None = None  # the newest one, whatever came after it
        self.last_checks: CrossChecks | None = None  # as of it
        self.error: str | None = None
        self.gpus: GpuSnapshot | None = None
        self.gpu_error: str | None = None
        self._was_asleep = False

    def follow_replicas(self, pages: Sequence[str]) -> str:
        """Read the pages of these replicas from now on. Return which came and went, in words; "" for none."""
        return self._scraper.follow(pages)

    async def look(self) -> ServerSnapshot:
        """Return a snapshot that is kept nowhere, as a capacity run takes them. Raise TargetError."""
        return await self._scraper.read()

    async def read(self) -> ServerSnapshot:
        """Take a snapshot. Raise TargetError."""
        self.server = self.last_server = await self.look()
        self.state.add(self.server)
        return self.server

    async def scrape(self) -> None:
        """Take a snapshot, and hand it to the sink with what follows from it."""
        try:
            server = await self.read()
        except TargetError as error:
            if self.error is None:
                _log.warning("server metrics cannot be read", target=self._target, detail=str(error))
            self.server, self.error = None, str(error)
            self._sink.scrape_failed(self._target, error.reason or "unreachable")
        else:
            self.error = None
            self._log_sleep()
            self._sink.snapshot(self._target, server, self._scraper.seconds, self._scraper.page_bytes)
            self._sink.users(self._target, self.state.user_totals)
            self._cross_checker.add_users(server.at_ns, self.state.user_totals)
        checks = self.checks
        if self.server is not None:
            self.last_checks = checks
        self._sink.cross_checks(self._target, checks, self.users)

    async def is_asleep(self) -> bool:
        """Return whether the server sleeps now, by its page where that shows it: it may have changed since the scrape.

        A server that slept at the last scrape counts as asleep for a minute if its page cannot be read any more.
        """
        sleep = self.state.sleep
        if self.error is None and sleep.is_reported is not False:
            with suppress(TargetError, TimeoutError):
                async with asyncio.timeout(_SLEEP_READ_S):
                    snapshot = await self.look()
                if snapshot.is_asleep:
                    self.state.add(snapshot)
                return bool(snapshot.is_asleep)
        return sleep.is_recent(self._clock.monotonic_ns())

    async def slept_during(self, record: RequestRecord) -> bool:
        """Return whether the server slept at some time during a request, or has fallen asleep and failed it."""
        if self.state.sleep.was_since(record.sent_ns):
            return True
        return not record.is_up and await self.is_asleep()

    @property
    def asleep_since_s(self) -> float | None:
        """Return the wall time of the first scrape that showed the server asleep; None: awake, or long unreadable."""
        sleep = self.state.sleep
        is_known = self.error is None or sleep.is_recent(self._clock.monotonic_ns())
        return sleep.since_s if is_known else None

    def _log_sleep(self) -> None:
        is_asleep = self.state.sleep.since_s is not None
        if is_asleep != self._was_asleep:
            _log.info("the server is asleep" if is_asleep else "the server is awake again", target=self._target)
        self._was_asleep = is_asleep

    async def scrape_gpus(self) -> None:
        """Take a snapshot of the GPUs, and hand it to the sink."""
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
            self._cross_checker.add_gpus(self.gpus)
        self._sink.gpus(self._target, self.gpus)

    @property
    def checks(self) -> CrossChecks:
        """Return the cross-checks; empty while the server cannot be read."""
        return self._cross_checker.view() if self.server is not None else CrossChecks()

    @property
    def users(self) -> UserLoad | None:
        """Return the load of users over the last minutes; None while it is unknown: under load, or without a page."""
        return self.state.users() if self.server is not None else None

    @asynccontextmanager
    async def sending(self, load: Workload | None = None) -> AsyncIterator[None]:
        """Note that a probe request of this workload is in flight; None: the load of a capacity run."""
        began_ns, is_load = self._clock.monotonic_ns(), load is None
        self.state.begin(began_ns, is_load=is_load, most=most_tokens(load) if load is not None else NO_TOKENS)
        try:
            yield
        finally:
            self.state.end(began_ns, self._clock.monotonic_ns(), is_load=is_load)

    def set_other_prober(self, *, is_loading: bool) -> None:
        """Note the begin or the end of another prober's load."""
        if is_loading:
            self.state.other_prober_began()
        else:
            self.state.other_prober_ended(self._clock.monotonic_ns())

    def set_max_num_seqs(self, limit: int | None) -> None:
        """Set the server's max_num_seqs, by which the cross-checks judge a full batch; None: unknown."""
        self._cross_checker.max_num_seqs = limit

    def add_record(self, record: RequestRecord) -> None:
        """Add a probe request that has ended."""
        self.state.add_record(record)
        if record.traffic is Traffic.CANARY:
            self._cross_checker.add_canary(record)

    async def close(self) -> None:
        """Close the connections."""
        await self._scraper.close()


def most_tokens(load: Workload) -> Tokens:
    """Return the most tokens that a server may count for a request. Chat templates add tokens to a prompt."""
    prompt, output = longest(load)
    return Tokens(prompt + (_TEMPLATE_TOKENS if load.api.has_template else 0), output)

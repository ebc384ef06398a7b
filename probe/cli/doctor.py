"""What `kneewatch doctor` does: watch a server for some seconds, send it a few canaries, and forecast. No printing."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from probe.capacity.run.request import context_of, hints_of
from probe.cli.check import OtherApiError, check_target, limits_of, with_timeout
from probe.cli.options import configuration
from probe.cli.parameters import (
    NO_GPUS,
    NO_LENGTHS,
    NO_OBJECTIVES,
    NO_SERVER,
    GpuOptions,
    LengthOptions,
    ObjectiveOptions,
    ServerOptions,
)
from probe.cli.targets import open_scraper
from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import Clock, SystemClock
from probe.core.errors import TargetError
from probe.core.request import RequestRecord
from probe.core.result import Capacity, CapacityResult, Phase, RunContext
from probe.core.snapshot import GpuSnapshot, ServerSnapshot
from probe.core.target_status import TargetStatus
from probe.core.workload import Workload
from probe.monitor.capacity_workload import lacking_lengths, named_workload, users_workload_of
from probe.monitor.gpu_readers import GpuReaders
from probe.monitor.live_forecast import forecast_result, live_forecast, made_of
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.wiring import endpoint, workload
from probe.observe.cross_checks import CrossChecker
from probe.observe.kv_size import kv_size
from probe.observe.length_history import lengths_since_start
from probe.observe.server_observer import most_tokens
from probe.observe.server_state import ServerState
from probe.observe.snapshot_history import unpack
from probe.observe.user_mix import MIN_REQUESTS
from probe.report.diagnosis import Diagnosis
from probe.report.setting_findings import RequestLengths, long_requests, request_lengths
from probe.runtime import event_loop
from probe.scrape.scraper import Scraper

CANARIES = 3
LONGEST_S = 60.0
_READ_EVERY_S = 1.0
_SCRAPE_S = 3.0
_FORECAST_S = 10.0  # the least time for a forecast, after answers that took as long as a minute
_LATE = "this machine has not computed it within the minute of this command; `kneewatch forecast` waits for it"


@dataclass(frozen=True, slots=True)
class Asked:
    """The server to examine, and its canaries. `timeout_s`: their time limit, if one is set."""

    base_url: str
    server: ServerOptions = NO_SERVER
    lengths: LengthOptions = NO_LENGTHS
    timeout_s: float | None = None
    gpus: GpuOptions = NO_GPUS
    objectives: ObjectiveOptions = NO_OBJECTIVES


def examine(
    config: Config, asked: Asked, watch_s: float, on_phase: Callable[[Phase], None]
) -> tuple[Config, Diagnosis]:
    """Return the diagnosis and the configuration that it holds for.

    A server that has another API than the usual one is asked for that, unless an API was given. Raise TargetError if
    the first canary cannot be sent.
    """

    def examined(config: Config) -> Diagnosis:
        target = with_timeout(config.servers[0], asked.timeout_s)
        return event_loop.run(diagnose(config, target, SystemClock(), watch_s=watch_s, on_phase=on_phase))

    try:
        return config, examined(config)
    except OtherApiError as other:
        if asked.server.api is not None:
            raise
        server = replace(asked.server, api=other.api.value)
        config = configuration(None, asked.base_url, server, asked.lengths, asked.objectives, asked.gpus)
        return config, examined(config)


async def diagnose(
    config: Config, target: TargetConfig, clock: Clock, *, watch_s: float, on_phase: Callable[[Phase], None]
) -> Diagnosis:
    """Examine the server for `watch_s`, and for about a minute with the forecast, unless answers take longer. Raise
    TargetError if the first canary cannot be sent.
    """
    ends_s = clock.monotonic_ns() * 1e-9 + LONGEST_S
    on_phase(Phase("watching live traffic, and sending three canaries", watch_s))
    async with AsyncExitStack() as held:
        scraper = await held.enter_async_context(open_scraper(target, clock, _SCRAPE_S))
        examination = _Examination(config, target, clock, scraper)
        await examination.watch(watch_s)
        await examination.read_gpus()
        on_phase(Phase("computing the result"))
        left_s = max(ends_s - clock.monotonic_ns() * 1e-9, _FORECAST_S)
        return await examination.result(watch_s, left_s)


class _Examination:
    """One server's examination: its state, and the canaries so far."""

    def __init__(self, config: Config, target: TargetConfig, clock: Clock, scraper: Scraper) -> None:
        self._target = target
        self._config, self._clock, self._scraper = config, clock, scraper
        self._objectives = config.objectives_of(target)
        self._state = ServerState()
        self._checker = CrossChecker(self._state, self._objectives)
        self._records: list[RequestRecord] = []
        self._server: ServerSnapshot | None = None  # None after a failed scrape
        self._first: ServerSnapshot | None = None  # from before the first canary
        self._error: str | None = None
        self._gpus: GpuSnapshot | None = None
        self._gpu_error: str | None = None
        self._cores = asyncio.Semaphore(len(os.sched_getaffinity(0)))  # a forecast takes one

    async def watch(self, seconds: float) -> None:
        """Read the server's metrics each second, and send the canaries meanwhile."""
        await self._read()
        self._first = self._server
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_for(seconds))
                flags = tasks.create_task(StartupFlags(self._target, self._scraper).update())
                for i in range(1, CANARIES):
                    tasks.create_task(self._send_canary_after(i * seconds / CANARIES))
                await self._send_canary()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # of the first canary
        self._target = flags.result()
        self._checker.max_num_seqs = self._target.capacity.server.limits.running

    async def read_gpus(self) -> None:
        """Read the GPUs once."""
        readers = GpuReaders(self._clock)
        try:
            if (read := readers.reader(self._target, self._config.prometheus)) is not None:
                self._gpus = await read()
        except TargetError as error:
            self._gpu_error = str(error)
        finally:
            await readers.close()

    async def _read_for(self, seconds: float) -> None:
        ends_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        while self._clock.monotonic_ns() < ends_ns:
            await self._read()
            await asyncio.sleep(_READ_EVERY_S)

    async def _read(self) -> None:
        try:
            self._server, self._error = await self._scraper.read(), None
            self._state.add(self._server)
        except TargetError as error:
            self._server, self._error = None, str(error)

    async def _send_canary_after(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(TargetError):
            await self._send_canary()

    async def _send_canary(self) -> None:
        """Send a canary, and leave it out of what users send. Raise TargetError."""
        load = workload(self._target.canary.workload, self._config.workload(self._target.canary.workload))
        began_ns = self._clock.monotonic_ns()
        self._state.begin(began_ns, most=most_tokens(load))
        try:
            record = await check_target(self._config, self._target, self._clock, keeps_late=True)
            self._state.add_record(record)
            self._checker.add_canary(record)
            self._records.append(record)
        finally:
            self._state.end(began_ns, self._clock.monotonic_ns())

    async def result(self, seconds: float, left_s: float) -> Diagnosis:
        """Return the diagnosis. A forecast that takes longer than `left_s` has no figure."""
        canary = self._target.canary.workload
        load = named_workload(self._config, self._target, self._target.capacity.workload or canary)
        context = self._context(load)
        until_s = asyncio.get_running_loop().time() + left_s
        # Headroom is of the capacity for users, so that comes first where there is one core.
        for_users, forecast = await asyncio.gather(
            self._forecast_for_users(load, until_s), self._forecast(load, until_s)
        )
        status = TargetStatus(
            name=self._target.name,
            base_url=self._target.base_url,
            model=self._records[0].model,
            objectives=self._objectives,
            up=self._records[-1].is_up,
            recent=tuple(reversed(self._records)),
            server=self._server,
            server_error=self._error,
            checks=self._checker.view(),
            users=self._state.users(),
            forecast=forecast,
            gpus=self._gpus,
            gpu_error=self._gpu_error,
        )
        lengths = self._lengths()
        kv = kv_size(unpack(self._state.history.packed), lengths.held_tokens if lengths is not None else None)
        return Diagnosis(
            status,
            self._state.user_totals,
            seconds,
            context.flags,
            context.flag_sources,
            lengths,
            for_users,
            kv,
            longest=long_requests(self._first) if self._first is not None else None,
            max_model_len=await self._max_model_len(),
        )

    async def _max_model_len(self) -> int | None:
        """Return the longest request that the server takes, by its list of models."""
        limits = limits_of(self._config, self._target)
        async with Client(endpoint(self._target), self._clock, limits) as client:
            return await client.max_model_len(self._records[0].model)

    def _lengths(self) -> RequestLengths | None:
        """Return the mean request of users, or of all before the first canary."""
        return request_lengths(self._state.user_totals, self._first) if self._first is not None else None

    async def _forecast_for_users(self, load: Workload, until_s: float) -> CapacityResult | None:
        """Return the forecast for the lengths that users sent meanwhile, or all before the first canary.

        None if users sent nothing.
        """
        if not (self._state.user_totals.requests and load.api.generates):
            return None
        recent = self._state.lengths.recent()
        if recent is None or min(recent.prompts.count, recent.outputs.count) < MIN_REQUESTS:
            recent = lengths_since_start(self._first) if self._first is not None else None
        flags = self._target.capacity.server.startup_flags
        users = users_workload_of(recent, load, flags) if recent is not None else None
        if users is None:
            none = Capacity(mode="forecast", reason=f"not enough evidence: {lacking_lengths(recent)}")
            return self._result(load, none)
        return await self._forecast(users, until_s)

    async def _forecast(self, load: Workload, until_s: float) -> CapacityResult:
        """Return the forecast; without a figure if it is not there at `until_s` (the event loop's time)."""
        found, hints = Capacity(mode="forecast", reason=_LATE), hints_of(self._target.capacity.server)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s), self._cores:
                found = await live_forecast(self._state.history, load, self._objectives, hints)
        return self._result(load, found)

    def _result(self, load: Workload, found: Capacity) -> CapacityResult:
        context, model = self._context(load), self._records[0].model
        made = made_of(context, self._target.capacity.server)
        return forecast_result(self._target.name, model, context, found, self._clock.wall_s(), made=made)

    def _context(self, load: Workload) -> RunContext:
        return context_of(self._server, load, self._objectives, self._target.capacity.server)

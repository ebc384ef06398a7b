"""What `kneewatch forecast` does: watch a server, or ask Prometheus, and predict. No parsing and no printing."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

from probe.capacity.run.request import context_of, hints_of
from probe.capacity.trend.fingerprint import fingerprint
from probe.capacity.trend.track_record import correct, track_record
from probe.cli.targets import open_scraper
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Outcome
from probe.core.result import CapacityResult, Phase
from probe.core.snapshot import ServerSnapshot, with_kv_cache_tokens
from probe.core.time_limits import LEAST_S
from probe.monitor.capacity_workload import workload_since_start
from probe.monitor.forecast_errors import errors_in_file
from probe.monitor.live_forecast import forecast_result, live_forecast, made_of
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.wiring import endpoint
from probe.observe.server_state import ServerState

# How often the server is read.
_WATCH_EVERY_S = 1.0
_SCRAPE_S = 1.0
# Longer histories would be read at intervals of more than a minute, which average away the load.
_LONGEST_HISTORY_S = 86_400.0


async def forecast_target(
    config: Config,
    target: TargetConfig,
    clock: Clock,
    *,
    watch_s: float,
    history_s: float | None = None,
    on_phase: Callable[[Phase], None] = lambda _: None,
) -> CapacityResult:
    """Forecast now, from `watch_s` of live metrics, or from the last `history_s` in Prometheus.

    Raises TargetError where the target or Prometheus cannot be asked, ConfigError where there is no Prometheus.
    """
    where, name = endpoint(target), target.capacity.workload or target.canary.workload
    objectives, state = config.objectives_of(target), ServerState()
    async with AsyncExitStack() as held:
        scraper = await held.enter_async_context(open_scraper(target, clock, _SCRAPE_S))
        server = await scraper.read()
        target = await StartupFlags(target, scraper).update()
        load = workload_since_start(config, target, name, server, target.capacity.server.startup_flags)
        model = await _model(target, where, clock, server)
        if history_s is not None:
            on_phase(Phase("asking Prometheus"))
            for reading in await _history(config, target, clock, history_s):
                state.add(with_kv_cache_tokens(reading, target.capacity.server.kv_cache_tokens))
        ends = clock.monotonic_ns() + int(watch_s * 1e9)
        if history_s is None:
            on_phase(Phase("watching live traffic", watch_s))
        while history_s is None and clock.monotonic_ns() < ends:
            with suppress(TargetError):
                state.add(await scraper.read())
            await asyncio.sleep(_WATCH_EVERY_S)
        on_phase(Phase("computing the result"))
        found = await live_forecast(state.history, load, objectives, hints_of(target.capacity.server))
    context = context_of(server, load, objectives, target.capacity.server, where.shape)
    errors = errors_in_file(config.store.path, fingerprint(model, context))
    found = correct(found, track_record(errors))
    return forecast_result(
        target.name, model, context, found, clock.wall_s(), made=made_of(context, target.capacity.server)
    )


async def _model(target: TargetConfig, where: Endpoint, clock: Clock, server: ServerSnapshot) -> str:
    """Return the model that is served. A passive target is not asked; its metrics may name it."""
    if target.passive:
        return next(iter(server.models), target.model)
    if target.model != "auto":
        return target.model
    async with Client(where, clock, LEAST_S) as client:
        return await client.resolve_model("auto")


async def _history(config: Config, target: TargetConfig, clock: Clock, seconds: float) -> list[ServerSnapshot]:
    if seconds > _LONGEST_HISTORY_S:
        raise ConfigError("--history: expected at most 24h; use a shorter history")
    if config.prometheus is None:
        raise ConfigError("--history: needs prometheus.url in the configuration; set it, or remove --history")
    is_one = not target.metrics_urls and target.metrics_discovery is None
    if not is_one and target.capacity.history is None:
        raise ConfigError("--history: works for one server only; choose a replica with --target, or remove it")
    from probe.prometheus.queries import Prometheus

    matchers = target.capacity.history or f'instance="{urlsplit(target.metrics_url or target.base_url).netloc}"'
    found = await Prometheus(config.prometheus).server_history(matchers, clock.wall_s(), seconds)
    if not found:
        raise TargetError(
            f"{config.prometheus.url}: no vLLM series match {matchers}; set their labels in capacity.history",
            Outcome.NOT_FOUND,
        )
    return found

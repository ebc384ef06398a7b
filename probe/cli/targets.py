"""The targets that a command is for, configured or found by a discovery now, and the scraper of one of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from probe.config.config import Config
from probe.config.discovery import DiscoverConfig
from probe.config.targets import TargetConfig, TemplateConfig, only_located
from probe.core.clock import Clock
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Outcome
from probe.discovery.manager import source
from probe.discovery.types import State
from probe.monitor.desired_targets import DesiredTarget, DesiredTargets, replica_pages
from probe.monitor.gpu_places import Exporters, GpuPlace, place_of
from probe.monitor.wiring import scraper_of
from probe.runtime import event_loop
from probe.scrape.scraper import Scraper

_NAMED = 10  # servers that an error line names


def configured_targets(config: Config) -> list[TargetConfig]:
    """Return the targets with an address that may be probed. Raise ConfigError if there is none."""
    found = [target for target in config.servers if not target.passive]
    if not found:
        raise ConfigError(
            "the configuration has no target that can be probed (all are passive or discovered);"
            " name a discovery or one of its targets with --target, or use --base-url URL"
        )
    return found


def named_targets(config: Config, name: str) -> list[TargetConfig]:
    """Return the target with this name, or all targets of the discovery with this name.

    Raise ConfigError if there is none, TargetError if the discovery does not answer.
    """
    template = _template(config, name)
    if template is None:
        return [config.target(name)]
    return [found.config for found in event_loop.run(_discover(config, template, name))]


def one_target(config: Config, name: str | None, *, adds_load: bool = False) -> TargetConfig:
    """Return the target with this name, or the only target, with the first of its canaries.

    `adds_load`: only if the server may be loaded now.

    Raise ConfigError if there is none, TargetError if its discovery does not answer or the server may not be loaded.
    """
    return _one(config, name, adds_load=adds_load)[0]


def one_with_gpus(config: Config, name: str | None) -> tuple[TargetConfig, GpuPlace]:
    """Return `one_target` for load, and where its GPUs are if it was discovered."""
    target, found = _one(config, name, adds_load=True)
    return target, event_loop.run(_gpu_place(found)) if found is not None and target.gpu.is_read else GpuPlace()


async def _gpu_place(desired: DesiredTarget) -> GpuPlace:
    exporters, gpu = Exporters(), desired.config.gpu
    assert desired.found is not None  # noqa: S101 - of a discovery
    if gpu.dcgm is not None:
        try:
            await exporters.found(gpu.dcgm.name, await first_state(gpu.dcgm.discovery, "they cannot be listed"))
        except TargetError as error:
            exporters.problem(gpu.dcgm.name, str(error))
    return place_of(gpu, desired.found, exporters, shares_host=desired.shares_host)


def _one(config: Config, name: str | None, *, adds_load: bool) -> tuple[TargetConfig, DesiredTarget | None]:
    """Return the target, and how it was discovered; None: it was not."""
    if name is None:
        if len(config.targets) > 1:
            names = ", ".join(target.known_as for target in config.targets)
            raise ConfigError(f"--target: the configuration has several targets; expected one of {names}")
        return only_located(config.targets[0]).kinds[0], None
    template = _template(config, name)
    if template is None or name == template.name:
        return config.target(name).kinds[0], None
    (found,) = event_loop.run(_discover(config, template, name))
    if adds_load and found.inhibited_by is not None:
        raise TargetError(f"{name}: no load was sent, {found.inhibited_by}; retry when that is over", Outcome.REJECTED)
    return found.config.kinds[0], found


def _template(config: Config, name: str) -> TemplateConfig | None:
    """Return the template of a discovery's name, or of the name of one of its targets."""
    return next((template for template in config.templates if template.name == name.partition("/")[0]), None)


async def _discover(config: Config, template: TemplateConfig, name: str) -> list[DesiredTarget]:
    """Return the target with this name, or all of the template's for the template's own name."""
    words = f"--target {name}: the discovery {template.name} found no servers"
    servers = await first_state(template.discover, words)
    desired = DesiredTargets(config, None)
    desired.discovered(template.name, servers)
    found = [target for target in desired.by_name().values() if target.discovery == template.name]
    chosen = [target for target in found if name in (target.name, template.name)]
    if not found:
        raise ConfigError(f"--target {name}: the discovery {template.name} finds no servers; check its selection")
    if not chosen:
        names = ", ".join(target.name for target in found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise ConfigError(f"--target {name}: the discovery {template.name} does not find it; expected one of {names}")
    return chosen


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

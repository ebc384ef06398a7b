"""`kneewatch check` behind its options: one canary, its text or JSON, and the exit status. doctor uses it too."""

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import typer

from probe.cli.output import NAME, print_error
from probe.cli.targets import open_scraper
from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.config.time_limits import canary_limits
from probe.core import objectives as slo
from probe.core.clock import Clock, SystemClock
from probe.core.errors import ConfigError, TargetError
from probe.core.request import Api, Outcome, RequestRecord, Traffic
from probe.core.time_limits import LEAST_S, TimeLimits
from probe.core.workload import Workload, requests
from probe.monitor.canary import Canary, KnownAnswer
from probe.monitor.wiring import endpoint, workload
from probe.report.result_json import record_json, unmeasured_json
from probe.report.terminal import canary_words
from probe.runtime import event_loop

# Outcomes that mean the question was wrong, not the server slow: the command could not measure.
_COULD_NOT_ASK = (
    Outcome.UNREACHABLE,
    Outcome.CERTIFICATE,
    Outcome.UNAUTHORIZED,
    Outcome.NOT_FOUND,
    Outcome.BAD_REQUEST,
)
_SCRAPE_S = 1.0
_SHORT = 16  # prompt tokens of a request that shows whether a model is served, or which API the server has
_COUNTED_WITHIN_S = 1.0  # the server counts the request about when it answers; who watches next must not see it come
_MET, _MISSED, _NOT_MEASURED = 0, 1, 2
OPTION = "--timeout"


def check_one(
    config: Config, target: TargetConfig, server: str | None, *, is_printed: bool, is_named_in_errors: bool
) -> tuple[dict[str, object], int]:
    """Send one canary, of the target's `canary`. Return its JSON and the exit status.

    `server`: printed instead of the target's name.
    """
    clock, about = SystemClock(), f"{target.name}: " if is_named_in_errors else ""
    named = {"target": target.name, "workload": target.canary.workload}
    try:
        record = event_loop.run(
            check_target(config, target, clock, lambda note: typer.echo(f"{NAME}: {about}{note}", err=True))
        )
    except TargetError as error:
        print_error(error, about)
        answer = {**named, "model": None, **unmeasured_json(error, clock.wall_s()), "met": {}}
        return answer, _NOT_MEASURED
    objectives = config.objectives_of(target)
    met = slo.met(record, objectives)
    if is_printed:
        typer.echo(canary_words(record, objectives, server))
    answer = {**named, "model": record.model, **record_json(record), "met": dict(met)}
    return answer, _MET if record.outcome is Outcome.OK and met[slo.ALL] else _MISSED


async def check_target(
    config: Config,
    target: TargetConfig,
    clock: Clock,
    on_note: Callable[[str], None] = lambda _: None,
    *,
    keeps_late: bool = False,
) -> RequestRecord:
    """Send one canary and, if it is answered, the target's question with a known answer.

    A wrong answer makes the canary `corrupt`; `on_note` gets why there was none. Raises TargetError if the canary could
    not be measured, ConfigError if the target is passive. `keeps_late`: return a canary that was answered, but that
    this machine was too late to judge.
    """
    require_active(target)
    await _check_awake(target, clock)
    async with Client(endpoint(target), clock, limits_of(config, target)) as client:
        load = workload(target.canary.workload, config.workload(target.canary.workload))
        model = await served_model(client, target, load, clock)
        objectives = config.objectives_of(target)
        record = await Canary(target.name, model, client, requests(load), objectives=objectives, clock=clock).run_once()
        question = KnownAnswer.from_target(target, client, clock, lambda _: nullcontext(), lambda _: None)
        if question is not None and record.is_up:
            answer = await question.ask(model)
            if answer.outcome is Outcome.CORRUPT:
                record = replace(record, outcome=answer.outcome, detail=answer.detail)
            elif answer.outcome is not Outcome.OK:
                on_note(
                    f"canary.known_answer: the question was not answered: {answer.outcome.value}, {answer.detail};"
                    " change its api or prompt, or remove it"
                )
    if record.outcome is Outcome.CLIENT_BOUND and not (record.is_up and keeps_late):
        fix = "; run it on a quieter machine" if record.is_up else ""  # else the detail has it
        raise TargetError(f"{target.base_url}: {record.detail}{fix}", record.outcome)
    if record.outcome is Outcome.NOT_FOUND and await serves_embeddings(target, model, clock):
        raise OtherApiError(target.base_url, load.api, Api.EMBEDDINGS)
    if record.outcome in _COULD_NOT_ASK:
        raise TargetError(
            f"{target.base_url}: {record.detail}; check base_url, model, API key and workload", record.outcome
        )
    return record


def with_timeout(target: TargetConfig, limit_s: float | None) -> TargetConfig:
    """Return the target with the limit of --timeout for its canary and its capacity runs; None: its own."""
    if limit_s is None:
        return target
    canary = target.canary.model_copy(update={"timeout": limit_s})
    capacity = target.capacity.model_copy(update={"timeout": limit_s})
    return target.model_copy(update={"canary": canary, "capacity": capacity})


def limits_of(config: Config, target: TargetConfig) -> TimeLimits:
    """Return the time limits of a canary that is sent once."""
    return replace(canary_limits(config, target, OPTION), most_s=math.inf)


async def served_model(client: Client, target: TargetConfig, load: Workload, clock: Clock) -> str:
    """Return the model to ask for. An explicit one need not be listed: a short request decides. Raises TargetError."""
    try:
        return await client.resolve_model(target.model)
    except TargetError as error:
        if target.model == "auto" or error.outcome in (Outcome.UNREACHABLE, Outcome.CERTIFICATE, Outcome.CLIENT_BOUND):
            raise
        least = 1 if load.api.generates else 0
        short = next(requests(replace(load, prompt_tokens=_SHORT, output_tokens=least, shared_tokens=0, parts=None)))
        record = await client.send(short, target.model, Traffic.ONDEMAND, clock.monotonic_ns())
        if record.outcome is Outcome.NOT_FOUND:
            raise
        return target.model


async def _check_awake(target: TargetConfig, clock: Clock) -> None:
    """Raise TargetError if the server's metrics show that it sleeps. Metrics that cannot be read show nothing."""
    try:
        async with open_scraper(target, clock, _SCRAPE_S) as scraper:
            is_asleep = (await scraper.read()).is_asleep
    except TargetError:
        return
    if is_asleep:
        raise asleep_error(target)


def asleep_error(target: TargetConfig) -> TargetError:
    return TargetError(f"{target.base_url}: the server sleeps, nothing was sent; wake it up first", Outcome.ABORTED)


def require_active(target: TargetConfig) -> None:
    if target.passive:
        raise ConfigError(
            f"{target.name}: passive is true, so it gets no requests; remove passive, or choose another target"
        )


class OtherApiError(TargetError):
    """A server that has another API than the one it was asked for: `api`."""

    def __init__(self, url: str, asked: Api, api: Api) -> None:
        super().__init__(
            f"{url}: has no API for {asked.value}, and answers {api.value}; use --api {api.value} (in a configuration:"
            f" a workload with api: {api.value}, and objectives with e2e alone)",
            Outcome.NOT_FOUND,
        )
        self.api = api


async def serves_embeddings(target: TargetConfig, model: str, clock: Clock) -> bool:
    """Ask for one short embedding, where what was asked for was not found. Return whether there was one."""
    one = next(requests(Workload("embedding", Api.EMBEDDINGS, _SHORT, 0)))
    async with Client(endpoint(target), clock, LEAST_S) as client:
        has_answered = (await client.send(one, model, Traffic.ONDEMAND, clock.monotonic_ns())).outcome is Outcome.OK
    if has_answered:
        await asyncio.sleep(_COUNTED_WITHIN_S)
    return has_answered

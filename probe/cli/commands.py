"""What the commands do with a server: one canary round, one ramp. No parsing and no printing."""

from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial

from probe.capacity.run.admission import Admission
from probe.capacity.run.preflight import firing_pages, preflight
from probe.capacity.run.request import RunRequest
from probe.capacity.run.seams import ServerAccess
from probe.capacity.run.service import Interrupts, RefusedError, RunObservers, run_capacity
from probe.cli.other_api import OtherApiError, serves_embeddings
from probe.cli.scrapers import open_scraper
from probe.cli.stops import Stops, stopped_by_signals
from probe.client.client import Client
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.errors import ConfigError, KneewatchError, LockError, TargetError
from probe.core.request import Api, Outcome, RequestRecord, Traffic
from probe.core.result import CapacityResult, Phase
from probe.core.step import StepSummary
from probe.core.trace import trace_workload
from probe.core.workload import Workload, requests
from probe.load.request_source import RequestSource
from probe.monitor.canary import Canary, KnownAnswer
from probe.monitor.capacity_workload import named_workload, workload_since_start
from probe.monitor.gpu_readers import GpuReaders
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.wiring import endpoint, lock, workload
from probe.observe.guard import ASLEEP, GO, NO_SERVER_METRICS
from probe.observe.guard_limits import GuardLimits
from probe.runtime.helper_process import HelperError
from probe.scrape.scraper import Scraper

# Outcomes that mean the question was wrong, not the server slow: the command could not measure.
_COULD_NOT_ASK = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.BAD_REQUEST)
_SCRAPE_S = 1.0
_SHORT = 16  # prompt tokens of a request that shows whether a model is served


async def check_target(
    config: Config, target: TargetConfig, clock: Clock, on_note: Callable[[str], None] = lambda _: None
) -> RequestRecord:
    """Send one canary and, if it is answered, the target's question with a known answer.

    A wrong answer makes the canary `corrupt`; `on_note` gets why there was none. Raises TargetError if the canary could
    not be measured, ConfigError if the target is passive.
    """
    _may_ask(target)
    await _check_awake(target, clock)
    async with Client(endpoint(target), clock, target.canary.timeout) as client:
        load = workload(target.canary.workload, config.workload(target.canary.workload))
        model = await _model(client, target, load, clock)
        objectives = config.objectives_of(target)
        record = await Canary(target.name, model, client, requests(load), objectives=objectives, clock=clock).run_once()
        question = KnownAnswer.of(target, client, clock, lambda _: nullcontext(), lambda _: None)
        if question is not None and record.is_up:
            answer = await question.ask(model)
            if answer.outcome is Outcome.CORRUPT:
                record = replace(record, outcome=answer.outcome, detail=answer.detail)
            elif answer.outcome is not Outcome.OK:
                on_note(
                    f"canary.known_answer: the question was not answered: {answer.outcome.value}, {answer.detail};"
                    " change its api or prompt, or remove it"
                )
    if record.outcome is Outcome.CLIENT_BOUND:
        fix = "; run it on a quieter machine" if record.is_up else ""  # else the detail has it
        raise TargetError(f"{target.base_url}: {record.detail}{fix}", record.outcome)
    if record.outcome is Outcome.NOT_FOUND and await serves_embeddings(target, model, clock):
        raise OtherApiError(target.base_url, load.api, Api.EMBEDDINGS)
    if record.outcome in _COULD_NOT_ASK:
        raise TargetError(
            f"{target.base_url}: {record.detail}; check base_url, model, API key and workload", record.outcome
        )
    return record


async def _model(client: Client, target: TargetConfig, load: Workload, clock: Clock) -> str:
    """Return the model to ask for. An explicit one need not be listed: a short request decides. Raises TargetError."""
    try:
        return await client.resolve_model(target.model)
    except TargetError as error:
        if target.model == "auto" or error.outcome in (Outcome.UNREACHABLE, Outcome.CLIENT_BOUND):
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
        raise _asleep(target)


def _asleep(target: TargetConfig) -> TargetError:
    return TargetError(f"{target.base_url}: the server sleeps, nothing was sent; wake it up first", Outcome.ABORTED)


async def ramp_target(
    config: Config,
    target: TargetConfig,
    request: RunRequest,
    clock: Clock,
    on_step: Callable[[StepSummary], None],
    *,
    on_phase: Callable[[Phase], None] = lambda _: None,
    on_broken: Callable[[KneewatchError], None] = lambda _: None,
    interrupts: Interrupts | None = None,
) -> CapacityResult:
    """Run a capacity run now. Ctrl-C ends the load, as do a lost Lease and a killed helper process (`on_broken`);
    the result so far is returned. `interrupts`: what stops the run instead of signals.

    Raises TargetError if the target cannot be measured or a check refuses the run, LockError if another prober loads
    it or the Lease was lost before the run, ConfigError if the target is passive.
    """
    _may_ask(target)
    results: list[CapacityResult] = []
    observers = RunObservers(on_result=lambda result, _: results.append(result), on_step=on_step, on_phase=on_phase)
    readers, stops = GpuReaders(clock), Stops(interrupts or stopped_by_signals)
    async with AsyncExitStack() as held:
        scraper = await held.enter_async_context(open_scraper(target, clock, _SCRAPE_S, stops.replicas_changed))
        held.push_async_callback(readers.close)
        target = await StartupFlags(target, scraper).update()
        load = await _load(config, target, request, scraper)
        sent = await _with_model(target, request, load, clock)
        try:
            return await run_capacity(
                lambda: sent,
                lock(config, target, clock),
                ServerAccess(scraper.read, readers.reader(target.gpu)),
                clock,
                admit=partial(_admit, config, target, scraper, request),
                interrupts=stops.of,
                observers=observers,
            )
        except RefusedError as refused:
            raise _not_admitted(target, refused) from None
        except (LockError, HelperError) as error:
            has_sent = bool(results and results[0].cost.requests)
            if not results or (isinstance(error, HelperError) and not has_sent):
                raise
            on_broken(error)
            return results[0]


async def _load(config: Config, target: TargetConfig, request: RunRequest, scraper: Scraper) -> Workload:
    """Return the workload asked for. Raises TargetError where it is that of users, and too little is known."""
    name, trace = request.workload, request.trace
    if trace is not None:
        return trace_workload(trace.trace, trace.name, config.workload(name).api)
    if not config.is_learnt(name):
        return named_workload(config, target, name)
    flags = target.capacity.server.startup_flags
    return workload_since_start(config, target, name, await scraper.read(), flags)


async def _with_model(
    target: TargetConfig, request: RunRequest, load: Workload, clock: Clock
) -> tuple[RunRequest, RequestSource]:
    """Return the request with what the server shows of itself, and what to send to its model. Raises TargetError."""
    where = endpoint(target)
    async with Client(where, clock, target.canary.timeout) as client:
        model = await _model(client, target, load, clock)
        aliases, longest = await client.aliases(model), await client.max_model_len(model)
    shown = {"max_model_len": str(longest)} if longest is not None else {}
    server, facts = target.capacity.server, {**shown, **request.facts}
    trace = request.trace.trace if request.trace else None
    source = RequestSource(where, model, load, target.canary.timeout, request.seed, aliases, trace)
    return replace(request, server=server, facts=facts), source


def _not_admitted(target: TargetConfig, refused: RefusedError) -> TargetError:
    if refused.verdict.reason == ASLEEP:
        return _asleep(target)
    hint = "retry when the server is idle, or use --no-guard if it has no other users"
    if refused.verdict.reason == "no_prometheus":
        hint = "fix it, or remove prometheus from the configuration"
    if refused.verdict.reason == NO_SERVER_METRICS:
        hint = (
            "set metrics_url (--metrics-url) to its page; without one, --stream-guard guards by the run's own answers,"
            " and --no-guard not at all"
        )
    return TargetError(f"{target.base_url}: no load was sent, {refused}; {hint}", Outcome.REJECTED)


async def _admit(config: Config, target: TargetConfig, scraper: Scraper, request: RunRequest) -> Admission:
    """Check the server once. It has not been watched before, so no history is judged.

    Unguarded, only a server that sleeps is refused.
    """
    firing = firing_pages(config, target.name)
    verdict, server = await preflight(scraper.read, GuardLimits(), firing, by_stream=request.by_stream)
    return Admission(verdict if request.is_guarded or verdict.reason == ASLEEP else GO, server)


def _may_ask(target: TargetConfig) -> None:
    if target.passive:
        raise ConfigError(
            f"{target.name}: passive is true, so it gets no requests; remove passive, or choose another target"
        )

"""Which load steps a run takes, as asked for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType

from probe.capacity.model.hints import LEAST_DEFAULT, NO_HINTS, Hints, ModelSize
from probe.capacity.run.job import Budget, LoadPlan
from probe.capacity.run.replay_steps import Replay, replay_steps
from probe.capacity.run.search_process import SearchProcess
from probe.capacity.search.fixed_steps import FixedSteps
from probe.capacity.search.unverified import Spending
from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.config.capacity import CapacityConfig, GammaConfig, ServerLimitsConfig
from probe.core.objectives import Objectives
from probe.core.result import RunContext
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Arrivals, Pattern, StepPlan
from probe.core.vllm_command import DEFAULT
from probe.core.workload import Workload
from probe.runtime.helper_process import HelperProcess

# The warm-up's share of a step: queue and batch have to fill, and the initial burst has to pass.
_WARM_UP_SHARE = 0.2
# The limit of requests in flight in an open loop.
_OPEN_STREAMS = 512
_POISSON = Arrivals()


def context_of(
    server: ServerSnapshot | None,
    workload: Workload,
    objectives: Objectives,
    stated: ServerLimitsConfig,
    shape: RequestShape = PLAIN_REQUESTS,
    *,
    sending: Mapping[str, object] = MappingProxyType({}),
) -> RunContext:
    """Return the conditions that a capacity of that server holds for; `stated`: those its metrics do not show.

    The workload has the shape of its requests, and how they are sent (`sending`), where that is not the usual one:
    other requests, another capacity.
    """
    request = {**({"request": shape.conditions} if shape.conditions else {}), **sending}
    shown = server.flags if server else {}
    return RunContext(
        workload={**_plain(asdict(workload, dict_factory=_as_json)), **request},
        objectives=_plain(asdict(objectives)),
        engine=server.engine if server else "unknown",
        version=server.version if server else "unknown",
        gpu=stated.gpu,
        flags={**stated.startup_flags, **shown},
        flag_sources={**stated.flag_sources, **dict.fromkeys(shown, "metrics")},
    )


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The steps asked for: at fixed concurrency, at fixed rates (requests/s), or, with neither, found by a search.

    Each fixed step lasts for `seconds` or for a number of `requests`; the highest load that held is repeated for
    `confirm_s`. Rates have the pattern of `arrivals` and, if that is set, wait for answers at `max_concurrency` in
    flight. A `replay` takes the times of a trace instead. A search watches live traffic for `observe_s`
    first; `hints` are the server's limits as far as they are known.
    """

    concurrency: tuple[int, ...] | None = None
    rates: tuple[float, ...] | None = None
    arrivals: Arrivals = _POISSON
    max_concurrency: int | None = None
    seconds: float = 15.0
    requests: int | None = None
    confirm_s: float = 0.0
    observe_s: float = 30.0
    hints: Hints = NO_HINTS
    replay: Replay | None = None

    @property
    def streams(self) -> int:
        """About the most requests in flight at once, which decides the number of load workers."""
        return max(self.concurrency) if self.concurrency else self.max_concurrency or _OPEN_STREAMS

    @property
    def conditions(self) -> dict[str, object]:
        """What a capacity depends on beside rate and workload; nothing for Poisson arrivals and a closed loop."""
        pattern = Pattern.REPLAY if self.replay is not None else self.arrivals.pattern
        words = f"gamma, burstiness {self.arrivals.burstiness:g}" if pattern is Pattern.GAMMA else pattern.value
        arrivals: dict[str, object] = {} if pattern is Pattern.POISSON else {"arrivals": words}
        return arrivals if self.max_concurrency is None else {**arrivals, "max_concurrency": self.max_concurrency}


def steps_of(capacity: CapacityConfig) -> StepSettings:
    """Return the configured steps."""
    return StepSettings(
        concurrency=capacity.concurrency,
        rates=capacity.rates,
        arrivals=arrivals_of(capacity.arrivals),
        max_concurrency=capacity.max_concurrency,
        seconds=capacity.step,
        confirm_s=capacity.confirm,
        observe_s=capacity.observe,
        hints=hints_of(capacity),
    )


def arrivals_of(configured: str | GammaConfig) -> Arrivals:
    """Return the configured arrival pattern."""
    if isinstance(configured, GammaConfig):
        return Arrivals(Pattern.GAMMA, burstiness=configured.burstiness)
    return Arrivals(Pattern(configured))


def hints_of(capacity: CapacityConfig) -> Hints:
    """Return what the configuration states about the server."""
    server = capacity.server
    flags = server.model_dump(include={"max_num_seqs", "max_num_batched_tokens"}, exclude_none=True)
    size = ModelSize(server.parameters, server.weight_bits, server.gpus) if server.parameters is not None else None
    least = LEAST_DEFAULT if server.startup_flags.get("max_num_seqs") == DEFAULT else 1
    return Hints(**flags, least_max_num_seqs=least, gpu=server.gpu, model=size)


@asynccontextmanager
async def load_plan(
    steps: StepSettings, workload: Workload, objectives: Objectives, budget: Budget, *, is_guarded: bool
) -> AsyncIterator[LoadPlan]:
    """Open the load plan for these settings. A search runs in a helper process, which ends with the context.

    Raises HelperError where that process does not start.
    """
    warm_up_s = _WARM_UP_SHARE * steps.seconds if steps.requests is None else 0.0
    plan = partial(StepPlan, seconds=steps.seconds, requests=steps.requests, warm_up_s=warm_up_s)
    fixed_steps = partial(FixedSteps, to_the_end=not is_guarded, confirm_s=steps.confirm_s)
    holds = steps.max_concurrency is not None
    if steps.replay is not None:
        yield fixed_steps(list(replay_steps(steps.replay, steps.streams, holds=holds)), confirm_s=0.0)
    elif steps.concurrency is not None:
        yield fixed_steps([plan(concurrency=count) for count in steps.concurrency])
    elif steps.rates is not None:
        rising_s = warm_up_s if steps.arrivals.pattern is Pattern.RAMP else 0.0
        arrivals = [replace(steps.arrivals, rate_rps=rate, ramp_s=rising_s) for rate in steps.rates]
        yield fixed_steps([plan(steps.streams, loop="open", arrivals=one, holds=holds) for one in arrivals])
    else:
        with HelperProcess() as helper:
            most = Spending(budget.seconds, budget.tokens)
            search = SearchProcess(helper, workload, objectives, steps.hints, most, observe_s=steps.observe_s)
            await asyncio.to_thread(search.begin)
            yield search


def _as_json(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a mapping as it is after a round trip through JSON, so that a stored context has the same fingerprint."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Drop the values that are not set."""
    return {key: value for key, value in values.items() if value is not None}

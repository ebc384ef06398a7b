"""Which load steps a run takes, as asked for, and the checks of the server before it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial

from probe.capacity.model.hints import NO_HINTS, Hints, ModelSize
from probe.capacity.run.job import LoadPlan
from probe.capacity.run.search_process import SearchProcess
from probe.capacity.search.fixed_steps import FixedSteps
from probe.config.models import CapacityConfig, Config
from probe.core.errors import TargetError
from probe.core.objectives import Objectives
from probe.core.result import RunContext
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Arrivals, StepPlan
from probe.core.workload import Workload
from probe.observe.guard import GuardLimits, GuardVerdict, may_start
from probe.runtime.helper_process import HelperProcess

# Of a step's length, before it counts: queue and batch have to fill, and the burst of the beginning has to pass.
_WARM_UP_SHARE = 0.2
# In flight at most, in an open loop.
_OPEN_STREAMS = 512


def context_of(
    server: ServerSnapshot | None, workload: Workload, objectives: Objectives, gpu: str | None
) -> RunContext:
    """What a capacity of that server holds for; `gpu`: as the configuration says."""
    return RunContext(
        workload=_plain(asdict(workload)),
        objectives=_plain(asdict(objectives)),
        engine=server.engine if server else "unknown",
        version=server.version if server else "unknown",
        gpu=gpu,
        flags=server.flags if server else {},
    )


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Which steps were asked for: fixed concurrency, or fixed rates (requests/s), or neither: then they are searched.

    `seconds`, or so many `requests`, is how long each of the fixed ones lasts. The rest is for the search: how long it
    watches live traffic first, and what it is told of the server's limits, in vLLM's words; None: it has to see.
    """

    concurrency: tuple[int, ...] | None = None
    rates: tuple[float, ...] | None = None
    seconds: float = 15.0
    requests: int | None = None
    observe_s: float = 30.0
    hints: Hints = NO_HINTS

    @property
    def streams(self) -> int:
        """How many requests may be in flight at most, about: what the load's processes are counted by."""
        return max(self.concurrency) if self.concurrency else _OPEN_STREAMS


def steps_of(capacity: CapacityConfig) -> StepSettings:
    """As the configuration says."""
    return StepSettings(
        concurrency=capacity.concurrency,
        rates=capacity.rates,
        seconds=capacity.step,
        observe_s=capacity.observe,
        hints=hints_of(capacity),
    )


def hints_of(capacity: CapacityConfig) -> Hints:
    """What the configuration says of the server."""
    server = capacity.server
    flags = server.model_dump(include={"max_num_seqs", "max_num_batched_tokens"}, exclude_none=True)
    size = ModelSize(server.parameters, server.weight_bits, server.gpus) if server.parameters is not None else None
    return Hints(**flags, gpu=server.gpu, model=size)


@asynccontextmanager
async def load_plan(
    steps: StepSettings, workload: Workload, objectives: Objectives, *, guarded: bool
) -> AsyncIterator[LoadPlan]:
    """Open the load plan for these settings. A search runs in a helper process, which ends with the context.

    Raises HelperError where that process does not start.
    """
    warm_up_s = _WARM_UP_SHARE * steps.seconds if steps.requests is None else 0.0
    plan = partial(StepPlan, seconds=steps.seconds, requests=steps.requests, warm_up_s=warm_up_s)
    if steps.concurrency is not None:
        yield FixedSteps([plan(concurrency=count) for count in steps.concurrency], to_the_end=not guarded)
    elif steps.rates is not None:
        yield FixedSteps(
            [plan(_OPEN_STREAMS, loop="open", arrivals=Arrivals(rate_rps=rate)) for rate in steps.rates],
            to_the_end=not guarded,
        )
    else:
        with HelperProcess() as other:
            search = SearchProcess(other, workload, objectives, steps.hints, observe_s=steps.observe_s)
            await asyncio.to_thread(search.begin)
            yield search


async def preflight(
    read_server: Callable[[], Awaitable[ServerSnapshot]],
    limits: GuardLimits,
    firing_pages: Callable[[], Awaitable[list[str]]] | None = None,
) -> tuple[GuardVerdict, ServerSnapshot | None]:
    """Whether load may begin, and the server as it was then. Raises nothing."""
    server: ServerSnapshot | None = None
    try:
        server = await read_server()
        verdict = may_start(server, limits)
        if verdict.go and firing_pages is not None and (firing := await firing_pages()):
            verdict = GuardVerdict(go=False, reason="alert_firing", detail=f"{', '.join(firing)} fires for the target")
    except TargetError as error:
        reason = "no_server_metrics" if server is None else "no_prometheus"
        verdict = GuardVerdict(go=False, reason=reason, detail=str(error))
    return verdict, server


def firing_pages(config: Config, target: str) -> Callable[[], Awaitable[list[str]]] | None:
    """The question whether a paging alert fires for a target; None where no Prometheus is configured."""
    if config.prometheus is None:
        return None
    from probe.prometheus.queries import Prometheus  # noqa: PLC0415 - memory that only this option needs

    return partial(Prometheus(config.prometheus.url).firing_pages, target)


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Without what is not set."""
    return {key: value for key, value in values.items() if value is not None}

"""A ramp as somebody asked for it, and whether it may begin."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from probe.config import Config
from probe.errors import TargetError
from probe.guard import GuardLimits, may_start
from probe.load.ramp import Budget, RampJob
from probe.records import GuardVerdict, Objectives, RunContext, ServerSnapshot, StepPlan
from probe.workload import Workload

# Of a step's length, before it counts: queue and batch have to fill, and the burst of the beginning has to pass.
_WARM_UP_SHARE = 0.2


def ramp_job(
    *,
    target: str,
    model: str,
    server: ServerSnapshot | None,
    workload: Workload,
    objectives: Objectives,
    concurrency: Sequence[int],
    step_s: float,
    requests_per_step: int | None,
    budget: Budget,
    guarded: bool,
) -> RampJob:
    """Fixed closed-loop steps, with what the result holds for written beside them."""
    context = RunContext(
        workload=_plain(asdict(workload)),
        objectives=_plain(asdict(objectives)),
        engine=server.engine if server else "unknown",
        version=server.version if server else "unknown",
        flags=server.flags if server else {},
    )
    warm_up_s = _WARM_UP_SHARE * step_s if requests_per_step is None else 0.0
    plans = tuple(
        StepPlan(concurrency=c, seconds=step_s, requests=requests_per_step, warm_up_s=warm_up_s) for c in concurrency
    )
    return RampJob(
        target=target,
        model=model,
        plans=plans,
        objectives=objectives,
        budget=budget,
        context=context,
        guarded=guarded,
    )


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
    from probe.prometheus import Prometheus  # noqa: PLC0415 - memory that only this option needs

    return partial(Prometheus(config.prometheus.url).firing_pages, target)


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Without what is not set."""
    return {key: value for key, value in values.items() if value is not None}

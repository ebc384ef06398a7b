"""The forecasts of one target's capacity from its live traffic. They add no load.

`LiveForecast` repeats them for a monitored target: one for the workload of its capacity, and one for what users send
where that is another workload; none where the server has shown nothing new. In: the history of the server's snapshots.
Out: a Capacity of mode "forecast" (capacity/model/forecast.py).
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from socket import gethostname

from probe import __version__
from probe.capacity.model.hints import Hints
from probe.capacity.run.request import context_of, hints_of
from probe.config.capacity import CapacityConfig, ServerLimitsConfig
from probe.config.targets import TargetConfig
from probe.core.clock import Clock
from probe.core.objectives import Objectives
from probe.core.provenance import Provenance, version_facts, with_gpus
from probe.core.result import Capacity, CapacityResult, Cost, RunContext, Stopped
from probe.core.snapshot import GpuSnapshot
from probe.core.workload import Workload
from probe.monitor.capacity_workload import CapacityWorkload
from probe.monitor.wiring import shape_of
from probe.observe.server_observer import ServerObserver
from probe.observe.snapshot_history import Evidence, SnapshotHistory
from probe.report.figures import ago, number
from probe.runtime.helper_process import Compute, run_in_helper

_ENOUGH = 12
# The interval after a first forecast without evidence.
_SOON_S = 120.0


@dataclass(frozen=True, slots=True)
class _Made:
    """A forecast before its correction, and what it was made of: None in place of evidence that was too little."""

    workload: Workload
    hints: Hints
    evidence: Evidence | None
    result: CapacityResult


class LiveForecast:
    """The forecasts of one monitored target."""

    def __init__(
        self,
        target: TargetConfig,
        observer: ServerObserver,
        workload: CapacityWorkload,
        objectives: Objectives,
        clock: Clock,
    ) -> None:
        self._target = target
        self._observer = observer
        self._workload = workload
        self._objectives = objectives
        self._clock = clock
        self._made: _Made | None = None
        self._made_for_users: _Made | None = None
        self._shown: CapacityResult | None = None
        self._shown_for_users: CapacityResult | None = None

    @property
    def last_result(self) -> CapacityResult | None:
        """Return the last forecast; one that is out of date says so, and has no capacity."""
        return self._in_date(self._shown)

    @property
    def for_users(self) -> CapacityResult | None:
        """Return the last forecast for what users send, as `last_result`."""
        return self._in_date(self._shown_for_users)

    async def update(
        self,
        model: str,
        settings: CapacityConfig,
        correct: Callable[[CapacityResult], CapacityResult],
        compute: Compute = run_in_helper,
    ) -> tuple[CapacityResult, float | None]:
        """Forecast, and return the result with the seconds until the next attempt: None if a capacity was found.

        Each attempt waits for twice the evidence. `model`: the model that the server serves; `settings`: with all flags
        of the server that are known; `correct` applies the record of earlier forecasts.
        """
        workload = self._workload.current()
        if workload is not None:
            self._made = await self._make(self._made, model, settings, workload, compute)
            found = self._made.result
        else:
            capacity = Capacity(mode="forecast", reason=f"not enough evidence: {self._workload.lacking()}")
            found = self._result(model, settings, self._workload.configured, capacity)
        self._shown = correct(found)
        is_found = self._shown.capacity.requests_per_second is not None
        return self._shown, None if is_found else max(self._observer.state.history.seconds, _SOON_S)

    async def update_for_users(
        self,
        model: str,
        settings: CapacityConfig,
        correct: Callable[[CapacityResult], CapacityResult],
        compute: Compute = run_in_helper,
    ) -> CapacityResult | None:
        """Forecast for what users send, and return the result; None where that is the workload already, or not known.

        Takes the same arguments as `update`.
        """
        users = self._workload.of_users()
        if users is None:
            return None
        self._made_for_users = await self._make(self._made_for_users, model, settings, users, compute)
        self._shown_for_users = correct(self._made_for_users.result)
        return self._shown_for_users

    async def _make(
        self, last: _Made | None, model: str, settings: CapacityConfig, workload: Workload, compute: Compute
    ) -> _Made:
        """Return the forecast; the last one, as of now, where the server has shown nothing new since."""
        history, hints = self._observer.state.history, hints_of(settings.server)
        evidence = history.evidence if len(history.packed) >= _ENOUGH else None
        if (
            last is not None
            and (last.workload, last.hints) == (workload, hints)
            and not _is_news(history, last.evidence)
        ):
            return replace(last, result=replace(last.result, started=datetime.fromtimestamp(self._clock.wall_s(), UTC)))
        capacity = await live_forecast(history, workload, self._objectives, hints, compute)
        return _Made(workload, hints, evidence, self._result(model, settings, workload, capacity))

    def _in_date(self, result: CapacityResult | None) -> CapacityResult | None:
        if result is None or (rate := result.capacity.requests_per_second) is None:
            return result
        age_s = self._clock.wall_s() - result.ended_s
        if age_s <= self._target.capacity.forecast_valid_s:
            return result
        reason = f"out of date: {number(rate)} requests/s by the evidence of {ago(0.0, age_s)}, and none was made since"
        return replace(result, capacity=Capacity(mode="forecast", reason=reason))

    def _result(self, model: str, settings: CapacityConfig, workload: Workload, capacity: Capacity) -> CapacityResult:
        shape, gpus = shape_of(self._target), self._observer.gpus
        context = context_of(self._observer.server, workload, self._objectives, settings.server, shape)
        made = made_of(context, settings.server, gpus)
        return forecast_result(self._target.name, model, context, capacity, self._clock.wall_s(), made=made)


def _is_news(history: SnapshotHistory, since: Evidence | None) -> bool:
    return since is None or history.has_news(since)


async def live_forecast(
    history: SnapshotHistory,
    workload: Workload,
    objectives: Objectives,
    hints: Hints,
    compute: Compute = run_in_helper,
) -> Capacity:
    """Return the capacity that follows from a server's history. Raise HelperError where it cannot be computed."""
    packed = history.packed
    if len(packed) < _ENOUGH:
        return Capacity(mode="forecast", reason=f"not enough evidence: scrapes of the server: {len(packed)}")
    # In the helper process: seconds of arithmetic would hold the event loop up, and numpy takes memory.
    name = "probe.capacity.model.forecast:forecast_packed"
    found: Capacity = await compute(name, packed, workload, objectives, hints)
    return found


def made_of(context: RunContext, server: ServerLimitsConfig, gpus: GpuSnapshot | None = None) -> Provenance | None:
    """Return what made a forecast of a server, and what is known of that."""
    facts = {**version_facts(context.version), **server.facts}
    return with_gpus(Provenance(__version__, client=gethostname(), facts=facts), gpus)


def forecast_result(
    target: str, model: str, context: RunContext, capacity: Capacity, wall_s: float, *, made: Provenance | None
) -> CapacityResult:
    """Return a forecast as the result of a run that cost nothing."""
    started = datetime.fromtimestamp(wall_s, UTC)
    return CapacityResult(
        id=f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        target=target,
        model=model,
        started=started,
        context=context,
        steps=(),
        capacity=capacity,
        cost=Cost(requests=0, tokens=0, seconds=0.0, over_objective_seconds=0.0),
        stopped=Stopped("done"),
        provenance=made,
    )

"""The forecast of one target's capacity from its live traffic. It adds no load.

`LiveForecast` repeats it for a monitored target. In: the history of the server's snapshots. Out: a Capacity of mode
"forecast" (capacity/model/forecast.py).
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from socket import gethostname

from probe import __version__
from probe.capacity.model.hints import Hints
from probe.capacity.run.plan import context_of, hints_of
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
from probe.observe.snapshot_history import PackedSnapshots, SnapshotHistory, unpack
from probe.runtime.helper_process import run_in_helper

_ENOUGH = 12
# The interval after a first forecast without evidence.
_SOON_S = 120.0


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
        self.last_result: CapacityResult | None = None

    async def update(
        self, model: str, settings: CapacityConfig, correct: Callable[[CapacityResult], CapacityResult]
    ) -> tuple[CapacityResult, float | None]:
        """Forecast, and return the result with the seconds until the next attempt: None if a capacity was found.

        Each attempt waits for twice the evidence. `model`: the model that the server serves; `settings`: with all flags
        of the server that are known; `correct` applies the record of earlier forecasts.
        """
        history = self._observer.state.history
        workload = self._workload.current()
        if workload is not None:
            capacity = await live_forecast(history, workload, self._objectives, hints_of(settings))
        else:
            capacity = Capacity(mode="forecast", reason=f"not enough evidence: {self._workload.lacking()}")
        shape = shape_of(self._target)
        context = context_of(
            self._observer.server, workload or self._workload.configured, self._objectives, settings.server, shape
        )
        made = made_of(context, settings.server, self._observer.gpus)
        result = forecast_result(self._target.name, model, context, capacity, self._clock.wall_s(), made=made)
        self.last_result = correct(result)
        is_found = capacity.requests_per_second is not None
        return self.last_result, None if is_found else max(history.seconds, _SOON_S)


async def live_forecast(history: SnapshotHistory, workload: Workload, objectives: Objectives, hints: Hints) -> Capacity:
    """Return the capacity that follows from a server's history. Raise HelperError where it cannot be computed."""
    packed = history.packed
    if len(packed) < _ENOUGH:
        return Capacity(mode="forecast", reason=f"not enough evidence: scrapes of the server: {len(packed)}")
    # In the helper process: seconds of arithmetic would hold the event loop up.
    name = "probe.monitor.live_forecast:forecast_of_packed"
    found: Capacity = await run_in_helper(name, packed, workload, objectives, hints)
    return found


def forecast_of_packed(packed: PackedSnapshots, workload: Workload, objectives: Objectives, hints: Hints) -> Capacity:
    """Return the forecast; the helper process calls this."""
    from probe.capacity.model.forecast import forecast  # noqa: PLC0415 - numpy, which the monitor does without

    return forecast(unpack(packed), workload, objectives, hints)


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

"""The forecasts of one target's capacity from its live traffic. They add no load.

`LiveForecast` repeats them for a monitored target: one for the workload of its capacity, and a rarer one for what users
send where that is another workload. In: the history of the server's snapshots. Out: a Capacity of mode "forecast"
(capacity/model/forecast.py).
"""

import secrets
from collections.abc import Callable
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
from probe.observe.snapshot_history import PackedSnapshots, SnapshotHistory, unpack
from probe.runtime.helper_process import run_in_helper

_ENOUGH = 12
# The interval after a first forecast without evidence.
_SOON_S = 120.0
# Intervals between two forecasts for what users send: each takes as much of a core as the other forecast.
_USERS_EVERY = 4


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
        self.for_users: CapacityResult | None = None
        self._tried: tuple[Workload, int, float] | None = None  # for users: with what, when, and with how much evidence

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
            capacity = await live_forecast(history, workload, self._objectives, hints_of(settings.server))
        else:
            capacity = Capacity(mode="forecast", reason=f"not enough evidence: {self._workload.lacking()}")
        self.last_result = correct(self._result(model, settings, workload or self._workload.configured, capacity))
        is_found = capacity.requests_per_second is not None
        return self.last_result, None if is_found else max(history.seconds, _SOON_S)

    async def update_for_users(
        self, model: str, settings: CapacityConfig, correct: Callable[[CapacityResult], CapacityResult]
    ) -> CapacityResult | None:
        """Forecast for what users send, and return the result; None where that is the workload already, or not known.

        None too while it is not due: at each fourth interval, or sooner for another mix, or where the last attempt
        found nothing and there is twice the evidence. Takes the same arguments as `update`.
        """
        history, users = self._observer.state.history, self._workload.of_users()
        if users is None or not self._is_due(users, history.seconds):
            return None
        self._tried = (users, self._clock.monotonic_ns(), history.seconds)
        capacity = await live_forecast(history, users, self._objectives, hints_of(settings.server))
        self.for_users = correct(self._result(model, settings, users, capacity))
        return self.for_users

    def _is_due(self, users: Workload, evidence_s: float) -> bool:
        if self._tried is None:
            return True
        workload, at_ns, known_s = self._tried
        is_found = self.for_users is not None and self.for_users.capacity.requests_per_second is not None
        waited_s = (self._clock.monotonic_ns() - at_ns) / 1e9
        return (
            users is not workload
            or (not is_found and evidence_s >= 2 * known_s)
            or waited_s >= (_USERS_EVERY - 0.5) * self._target.capacity.forecast_every
        )

    def _result(self, model: str, settings: CapacityConfig, workload: Workload, capacity: Capacity) -> CapacityResult:
        shape, gpus = shape_of(self._target), self._observer.gpus
        context = context_of(self._observer.server, workload, self._objectives, settings.server, shape)
        made = made_of(context, settings.server, gpus)
        return forecast_result(self._target.name, model, context, capacity, self._clock.wall_s(), made=made)


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

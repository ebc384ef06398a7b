"""The forecast of one target in the monitor: keeps what was read of its server, and says now and then what follows.

In: readings of the server's metrics as they come. Out: Capacities of mode "forecast" (capacity/forecast.py). It adds no
load.
"""

import secrets
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime

from probe.aside import aside
from probe.capacity.hints import Hints
from probe.records import (
    Capacity,
    CapacityResult,
    Cost,
    Histogram,
    Objectives,
    RunContext,
    ServerSnapshot,
    Stopped,
)
from probe.restart import restarted
from probe.workload import Workload

# What is kept: so many readings, of which a difference is taken; at one in 5 s that is two hours.
_KEEP = 1440
_ENOUGH = 12
# Only sums and counts are needed; the buckets would be most of the memory.
_NEEDED = ("ttft", "itl", "iteration_tokens", "prefill", "prompt_length")


class Forecaster:
    """The last two hours or so of one server."""

    def __init__(self, workload: Workload, objectives: Objectives, hints: Hints) -> None:
        self._workload, self._objectives, self._hints = workload, objectives, hints
        self._readings: deque[ServerSnapshot] = deque(maxlen=_KEEP)

    def read(self, reading: ServerSnapshot) -> None:
        """A reading; the ones before a restart or another version are of another server, and forgotten."""
        if self._readings and restarted(self._readings[-1], reading) is not None:
            self._readings.clear()
        self._readings.append(slim(reading))

    @property
    def seconds(self) -> float:
        """How long a time is kept."""
        return (self._readings[-1].at_ns - self._readings[0].at_ns) * 1e-9 if self._readings else 0.0

    async def forecast(self) -> Capacity:
        """What follows from what is kept. Raises AsideError where it cannot be computed."""
        if len(self._readings) < _ENOUGH:
            return Capacity(
                mode="forecast", reason=f"not enough evidence: {len(self._readings)} readings of the server"
            )
        name = "probe.capacity.forecast:forecast"
        found: Capacity = await aside(name, list(self._readings), self._workload, self._objectives, self._hints)
        return found


def forecast_result(target: str, model: str, context: RunContext, capacity: Capacity, wall_s: float) -> CapacityResult:
    """A forecast as the result of a run that cost nothing."""
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
    )


def slim(reading: ServerSnapshot) -> ServerSnapshot:
    """The same without what no forecast needs."""
    kept = {name: reading.histograms[name] for name in _NEEDED if name in reading.histograms}
    sums = {name: Histogram(((float("inf"), h.count),), h.sum) for name, h in kept.items()}
    return replace(reading, histograms=sums, flags={}, finished={}, waiting_by_reason={})

"""The forecast of one target in the monitor: keeps what was read of its server, and says now and then what follows.

In: readings of the server's metrics as they come. Out: Capacities of mode "forecast" (capacity/forecast.py). It adds no
load.
"""

import secrets
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from probe.capacity.model.hints import Hints
from probe.core.objectives import Objectives
from probe.core.result import Capacity, CapacityResult, Cost, RunContext, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.observe.restarts import restarted, slim
from probe.runtime.helper_process import run_in_helper

# What is kept: two hours, in so many readings at most (one in 5 s). Packed, since two hundred targets' would take half
# a gigabyte otherwise: a reading has 2.5 kB, packed half of one.
_KEEP_NS = 7200 * 10**9
_KEEP = 1440
_PACK, _UNPACK = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ServerSnapshot)
_ENOUGH = 12
# Only sums and counts are needed; the buckets would be most of the memory.
_NEEDED = ("ttft", "itl", "iteration_tokens", "prefill", "prompt_length")


class ForecastBuffer:
    """The last two hours or so of one server."""

    def __init__(self, workload: Workload, objectives: Objectives, hints: Hints) -> None:
        self._workload, self._objectives, self._hints = workload, objectives, hints
        self._last: ServerSnapshot | None = None
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEEP)  # when (ns), and a reading, packed

    def read(self, reading: ServerSnapshot) -> None:
        """A reading; the ones before a restart or another version are of another server, and forgotten."""
        thin = replace(slim(reading, _NEEDED), waiting_by_reason={})
        if self._last is not None and restarted(self._last, thin) is not None:
            self._kept.clear()
        self._last = thin
        self._kept.append((thin.at_ns, zlib.compress(_PACK.encode(thin), 1)))
        while self._kept[0][0] < thin.at_ns - _KEEP_NS:
            self._kept.popleft()

    @property
    def seconds(self) -> float:
        """How long a time is kept."""
        return (self._kept[-1][0] - self._kept[0][0]) * 1e-9 if self._kept else 0.0

    @property
    def kept(self) -> list[bytes]:
        """What is kept, oldest first; `unpacked` gives the readings."""
        return [packed for _, packed in self._kept]

    async def forecast(self) -> Capacity:
        """What follows from what is kept. Raises AsideError where it cannot be computed."""
        if len(self._kept) < _ENOUGH:
            return Capacity(mode="forecast", reason=f"not enough evidence: {len(self._kept)} scrapes of the server")
        # Unpacked over there: here it would hold the event loop up.
        name = "probe.monitor.forecast_buffer:of_packed"
        found: Capacity = await run_in_helper(name, self.kept, self._workload, self._objectives, self._hints)
        return found


def unpacked(kept: Iterable[bytes]) -> list[ServerSnapshot]:
    """The readings that a Forecaster keeps."""
    return [_UNPACK.decode(zlib.decompress(packed)) for packed in kept]


def of_packed(kept: Sequence[bytes], workload: Workload, objectives: Objectives, hints: Hints) -> Capacity:
    """The forecast, where it is computed."""
    from probe.capacity.model.forecast import forecast  # noqa: PLC0415 - numpy and scipy, which the monitor does without

    return forecast(unpacked(kept), workload, objectives, hints)


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

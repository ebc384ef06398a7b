"""Knobs: what a server's capacity would be with another setting, by simulating its twin. Pure; takes seconds.

In: a fitted server, and the workload and objectives of its capacity. Out: for each setting twice as large, the relative
change of capacity with an interval, or the reason why there is none: a wrong number would be worse.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from probe.capacity.model.bottleneck import KV_CACHE, MAX_NUM_SEQS, MEMORY_BANDWIDTH
from probe.capacity.model.fitted_twin import stored_twin
from probe.capacity.model.spread import extrapolation_error, jackknife
from probe.capacity.model.twin import Twin, find_capacity, predict
from probe.core.fitted_server import FittedServer
from probe.core.objectives import Objectives
from probe.core.workload import Workload
from probe.simulator.cost import StepCost

MAX_NUM_BATCHED_TOKENS = "max_num_batched_tokens"
TIMES = 2
_REQUESTS = 1500  # simulated at each rate; half of it for a spread
_FEWEST_FITS = 3
_Z, _FLOOR = 1.64, 0.02  # the floor: standard deviation of a ratio of two simulations, and of what no fit shows
_TOO_WIDE = 0.35  # half of an interval, relative
_APART = 0.15  # between the stored capacity and the twin's, as a logarithm; above it the capacity is not the twin's


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting `before` and `after` its change (None: not known), and the relative change of capacity.

    `gain` 0.18 is 18 % more, between `lower` and `upper` in nine cases of ten; None for a `reason`.
    """

    name: str
    before: float | None
    after: float | None
    gain: float | None = None
    lower: float | None = None
    upper: float | None = None
    reason: str | None = None


def simulate_knobs(
    stored: FittedServer, workload: Workload, objectives: Objectives, capacity_rps: float, *, requests: int = _REQUESTS
) -> list[Knob]:
    """Return the knobs of a server with this capacity, in requests/s, by its own model.

    Raises ValueError or TypeError for a fitted server that no run can have written.
    """
    knobs = _Knobs(stored, stored_twin(stored, workload), objectives, capacity_rps, requests)
    if (reason := knobs.doubt()) is not None:
        return withheld_knobs(reason, stored)
    return [knobs.simulated(name) for name in _NAMES]


def withheld_knobs(reason: str, stored: FittedServer | None = None) -> list[Knob]:
    """Return all knobs without a gain, for one reason."""
    return [replace(_setting(name, stored), reason=reason) for name in _NAMES]


class _Knobs:
    """The knobs of one twin. Capacities of unchanged twins are simulated once."""

    def __init__(
        self, stored: FittedServer, twin: Twin, objectives: Objectives, capacity_rps: float, requests: int
    ) -> None:
        self._stored, self._twin, self._objectives = stored, twin, objectives
        self._near_rps, self._requests = capacity_rps, requests
        self._known: dict[tuple[StepCost, int], float] = {}

    def doubt(self) -> str | None:
        """Return why no gain is credible, or None."""
        stored = self._stored
        if stored.max_num_seqs is None:
            return "max_num_seqs is not known, and may stop any gain; set capacity.server.max_num_seqs, then measure"
        if len(stored.step_costs_without) < _FEWEST_FITS:
            return "too few load levels show how sure the model is; measure with `kneewatch ramp`"
        found = self._before(self._twin.cost, self._requests)
        if not found or abs(math.log(found / self._near_rps)) > _APART:
            return f"the model of this server holds {found:.3g} requests/s, the result {self._near_rps:.3g}"
        return None

    def simulated(self, name: str) -> Knob:
        """Return one knob with its gain, or the reason why there is none."""
        knob = _setting(name, self._stored)
        if (reason := self._lacking(name)) is not None:
            return replace(knob, reason=reason)
        changed = CHANGES[name](self._twin)
        after_rps = self._capacity(changed, self._near_rps, self._requests)
        ratio = after_rps / self._before(self._twin.cost, self._requests)
        if not ratio:
            return replace(knob, reason="no rate would hold the objectives")
        # A setting that changes nothing does so without each part too, and need not be simulated for each.
        spread = self._spread(name, ratio) if abs(ratio - 1) > _FLOOR else 0.0
        half = _Z * math.hypot(spread, self._extrapolation(changed, after_rps), _FLOOR)
        if half > _TOO_WIDE:
            return replace(knob, reason=f"not enough evidence: {ratio - 1:+.0%} of capacity, give or take {half:.0%}")
        return replace(knob, gain=ratio - 1, lower=ratio * (1 - half) - 1, upper=ratio * (1 + half) - 1)

    def _lacking(self, name: str) -> str | None:
        stored = self._stored
        if name == MEMORY_BANDWIDTH:
            return "a server's step times do not show how much of them is reading the weights"
        if name == KV_CACHE and stored.kv_tokens is None:
            return "the server's metrics do not show the size of its KV cache"
        if name == MAX_NUM_BATCHED_TOKENS and not stored.is_chunk_known:
            return "max_num_batched_tokens is not known; set capacity.server.max_num_batched_tokens, then measure"
        most = stored.max_num_batched_tokens
        if name == MAX_NUM_SEQS and stored.max_num_seqs is not None and TIMES * stored.max_num_seqs > most:
            return f"vLLM would not start: max_num_batched_tokens is {most}"
        return None

    def _before(self, cost: StepCost, requests: int) -> float:
        if (cost, requests) not in self._known:
            self._known[cost, requests] = self._capacity(replace(self._twin, cost=cost), self._near_rps, requests)
        return self._known[cost, requests]

    def _capacity(self, twin: Twin, near_rps: float, requests: int) -> float:
        factors = self._stored.latency_factors
        return find_capacity(twin, self._objectives, near_rps, correction=factors, seeds=(0,), requests=requests)

    def _spread(self, name: str, ratio: float) -> float:
        """Return the relative standard deviation of a ratio of capacities, from its value without each part."""
        requests, found = self._requests // 2, []
        for terms in self._stored.step_costs_without:
            twin = replace(self._twin, cost=StepCost(**terms))
            if before := self._before(twin.cost, requests):
                found.append(self._capacity(CHANGES[name](twin), before * ratio, requests) / before)
        return jackknife(found, ratio) if len(found) >= _FEWEST_FITS else math.inf

    def _extrapolation(self, changed: Twin, rate_rps: float) -> float:
        """Return the error of steps with more requests than any that was measured."""
        running = predict(changed, rate_rps, self._objectives, requests=self._requests // 2).running / changed.engines
        return extrapolation_error(self._stored.largest_batch / running if running else 1.0)


def _setting(name: str, stored: FittedServer | None) -> Knob:
    if stored is None or name == MEMORY_BANDWIDTH:
        return Knob(name, None, None)
    before = {
        MAX_NUM_SEQS: stored.max_num_seqs,
        MAX_NUM_BATCHED_TOKENS: stored.max_num_batched_tokens if stored.is_chunk_known else None,
        KV_CACHE: stored.kv_tokens,
    }[name]
    return Knob(name, before, None if before is None else before * TIMES)


CHANGES: Mapping[str, Callable[[Twin], Twin]] = {
    MAX_NUM_SEQS: lambda twin: replace(twin, max_num_seqs=twin.max_num_seqs * TIMES),
    MAX_NUM_BATCHED_TOKENS: lambda twin: replace(twin, chunk_tokens=twin.chunk_tokens * TIMES),
    KV_CACHE: lambda twin: replace(twin, kv_tokens=twin.kv_tokens * TIMES),
}
_NAMES = (*CHANGES, MEMORY_BANDWIDTH)

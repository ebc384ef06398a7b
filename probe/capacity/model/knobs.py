"""Knobs: what a server's capacity would be with another setting, by simulating its twin. Pure; takes seconds.

In: a fitted server, the workload and objectives of its capacity, and settings to try. Out: for each the relative change
of capacity with an interval, or the reason why there is none: a wrong number would be worse.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probe.capacity.model.bottleneck import KV_CACHE, MAX_NUM_SEQS, MEMORY_BANDWIDTH
from probe.capacity.model.fitted_twin import stored_twin
from probe.capacity.model.hints import SET_KV_CACHE_TOKENS
from probe.capacity.model.spread import extrapolation_error, jackknife
from probe.capacity.model.twin import Twin, find_capacity, predict
from probe.core.fitted_server import FittedServer
from probe.core.objectives import Objectives
from probe.core.workload import Workload
from probe.simulator.cost import StepCost

MAX_NUM_BATCHED_TOKENS, PREFIX_CACHE = "max_num_batched_tokens", "prefix_cache"
TIMES = 2
# The twin's attribute that is each setting.
_ATTRIBUTES: Mapping[str, str] = {
    MAX_NUM_SEQS: "max_num_seqs",
    MAX_NUM_BATCHED_TOKENS: "chunk_tokens",
    KV_CACHE: "kv_tokens",
    PREFIX_CACHE: "prefix_caching",
}
DOUBLED = (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, KV_CACHE)
_REQUESTS = 1500  # simulated at each rate; half as many for a spread
_FEWEST_FITS = 3
_Z = 1.64
_FLOOR = 0.02  # the floor: standard deviation of a ratio of two simulations, and of what no fit shows
_TOO_WIDE = 0.35  # half of an interval, relative
# Between the stored capacity and the twin's, as a logarithm; above it the capacity is not the twin's.
_MAX_DISAGREEMENT = 0.15


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
    stored: FittedServer,
    workload: Workload,
    objectives: Objectives,
    capacity_rps: float,
    knobs: Iterable[Knob],
    *,
    requests: int = _REQUESTS,
) -> list[Knob]:
    """Return these knobs with their gains for a server with this capacity, in requests/s, by its own model.

    Raises ValueError or TypeError for a fitted server that no run can have written.
    """
    simulation = _Knobs(stored, stored_twin(stored, workload), objectives, capacity_rps, requests)
    if (reason := simulation.doubt()) is not None:
        return withheld_knobs(knobs, reason)
    return [simulation.simulated(knob) for knob in knobs]


def withheld_knobs(knobs: Iterable[Knob], reason: str) -> list[Knob]:
    """Return the knobs without a gain, for one reason."""
    return [replace(knob, reason=reason) for knob in knobs]


def doubled_knobs(stored: FittedServer | None) -> Sequence[Knob]:
    """Return each setting twice as large; of memory bandwidth, which is no setting, the name."""
    before = {name: setting_of(stored, name) for name in DOUBLED}
    knobs = [Knob(name, value, None if value is None else value * TIMES) for name, value in before.items()]
    return [*knobs, Knob(MEMORY_BANDWIDTH, None, None)]


def setting_of(stored: FittedServer | None, name: str) -> float | None:
    """Return a setting of a fitted server; None where it is not known."""
    if stored is None:
        return None
    known: Mapping[str, float | None] = {
        MAX_NUM_SEQS: stored.max_num_seqs,
        MAX_NUM_BATCHED_TOKENS: stored.max_num_batched_tokens if stored.is_chunk_known else None,
        KV_CACHE: stored.kv_tokens,
        PREFIX_CACHE: float(stored.has_prefix_hits),
    }
    return known[name]


def changed(twin: Twin, name: str, after: float) -> Twin:
    """Return the twin with another setting."""
    of_its_type: dict[str, Any] = {_ATTRIBUTES[name]: type(getattr(twin, _ATTRIBUTES[name]))(after)}
    return replace(twin, **of_its_type)


def doubled(twin: Twin, name: str) -> Twin:
    """Return the twin with a setting twice as large."""
    return changed(twin, name, TIMES * getattr(twin, _ATTRIBUTES[name]))


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
            return "too few steps show how sure the model is; measure with `kneewatch ramp`"
        found = self._before(self._twin.cost, self._requests)
        if not found or abs(math.log(found / self._near_rps)) > _MAX_DISAGREEMENT:
            return f"the model of this server holds {found:.3g} requests/s, the result {self._near_rps:.3g}"
        return None

    def simulated(self, knob: Knob) -> Knob:
        """Return the knob with its gain, or the reason why there is none."""
        if (reason := self._lacking(knob)) is not None or knob.after is None:
            return replace(knob, reason=reason)
        after = changed(self._twin, knob.name, knob.after)
        after_rps = self._capacity(after, self._near_rps, self._requests)
        ratio = after_rps / self._before(self._twin.cost, self._requests)
        if not ratio:
            return replace(knob, reason="no rate would hold the objectives")
        # A setting that changes nothing does so without each part too, and need not be simulated for each.
        spread = self._spread(knob, ratio) if abs(ratio - 1) > _FLOOR else 0.0
        half = _Z * math.hypot(spread, self._extrapolation(after, after_rps), _FLOOR)
        if half > _TOO_WIDE:
            return replace(knob, reason=f"not enough evidence: {ratio - 1:+.0%} of capacity, give or take {half:.0%}")
        return replace(knob, gain=ratio - 1, lower=ratio * (1 - half) - 1, upper=ratio * (1 + half) - 1)

    def _lacking(self, knob: Knob) -> str | None:
        stored, after = self._stored, knob.after
        if knob.name == MEMORY_BANDWIDTH:
            return "a server's step times do not show how much of them is reading the weights"
        if knob.name == KV_CACHE and stored.kv_tokens is None:
            return f"the server's metrics do not show the size of its KV cache; {SET_KV_CACHE_TOKENS}, then measure"
        if knob.name == MAX_NUM_BATCHED_TOKENS and not stored.is_chunk_known:
            return "max_num_batched_tokens is not known; set capacity.server.max_num_batched_tokens, then measure"
        seqs, tokens = stored.max_num_seqs, stored.max_num_batched_tokens
        if knob.name == MAX_NUM_SEQS and after is not None and after > tokens:
            return f"vLLM would not start: max_num_batched_tokens is {tokens}"
        if knob.name == MAX_NUM_BATCHED_TOKENS and after is not None and seqs is not None and after < seqs:
            return f"vLLM would not start: max_num_seqs is {seqs}"
        return None

    def _before(self, cost: StepCost, requests: int) -> float:
        if (cost, requests) not in self._known:
            self._known[cost, requests] = self._capacity(replace(self._twin, cost=cost), self._near_rps, requests)
        return self._known[cost, requests]

    def _capacity(self, twin: Twin, near_rps: float, requests: int) -> float:
        factors = self._stored.latency_factors
        return find_capacity(twin, self._objectives, near_rps, correction=factors, seeds=(0,), requests=requests)

    def _spread(self, knob: Knob, ratio: float) -> float:
        """Return the relative standard deviation of a ratio of capacities, from its value without each part."""
        requests, found = self._requests // 2, []
        for terms in self._stored.step_costs_without:
            twin = replace(self._twin, cost=StepCost(**terms))
            if before := self._before(twin.cost, requests):
                found.append(
                    self._capacity(changed(twin, knob.name, knob.after or 0.0), before * ratio, requests) / before
                )
        return jackknife(found, ratio) if len(found) >= _FEWEST_FITS else math.inf

    def _extrapolation(self, after: Twin, rate_rps: float) -> float:
        """Return the error of steps with more requests than any that was measured."""
        running = predict(after, rate_rps, self._objectives, requests=self._requests // 2).running / after.engines
        return extrapolation_error(self._stored.largest_batch / running if running else 1.0)

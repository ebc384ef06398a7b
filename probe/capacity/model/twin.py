"""The twin: a server with a fitted step law, in virtual time. What does a load do to it, and when does it break? Pure.

In: a Twin (law, limits, lengths). Out: the latencies it would show at a rate, and its capacity. Its scheduler is that
of the stand-in (probe/sim/engine.py): what the real one does besides is not in it, and has to be found by comparing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from probe.core.objectives import Objectives
from probe.core.percentiles import percentile
from probe.core.workload import LognormalLength, Workload
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost
from probe.simulator.virtual_server import BackgroundTraffic, SimulatedRequest, VirtualServer

NO_FRONT = FrontEnd()
# No limit that is known of: more than any server allows.
UNLIMITED_SEQS = 1024
_BLOCK = 16
# So many requests tell where the capacity is, to 2 % or so.
_FINE = 3000
_PRECISION = 0.008  # of a rate, relative
_FIRST_STEP = 0.04  # of a rate, as a logarithm, doubled each time: the first guess is mostly near
_FAR = 6.0  # e-folds from the first guess
_ENDLESS = 4.0  # latency over objective, from which on it does not matter how much
# A queue that holds this share of all requests has no end.
_RUNAWAY = 0.12
_RESIDENCES = 3.0
_SLICES = 24


@dataclass(frozen=True, slots=True)
class Twin:
    """A server as it is understood. `kv_tokens`: of all its engines; `accepted_tokens`: by which speculation exceeds
    one token in a step; `added_s`: what a client sees of TTFT beyond what the server does, at any load; `live`: users
    with lengths other than the workload's, who are there besides; `shares`: of the requests, that each engine gets,
    where they do not get the same.
    """

    cost: StepCost
    kv_tokens: float
    workload: Workload
    max_num_seqs: int = UNLIMITED_SEQS
    chunk_tokens: int = 2048
    front_end: FrontEnd = NO_FRONT
    added_s: float = 0.0
    engines: int = 1
    accepted_tokens: float = 0.0
    prefix_caching: bool = False
    noise_ratio: float = 0.03
    live: BackgroundTraffic | None = None
    shares: tuple[float, ...] = ()

    def profile(self, longest: int = 0) -> Profile:
        """The server to simulate, with room for the longest request, and for one of `longest` tokens."""
        mixes = [self.workload, *([self.live.workload] if self.live else [])]
        longest = max(longest, *(_longest(mix.prompt_tokens) + _longest(mix.output_tokens) for mix in mixes))
        return Profile(
            name="twin",
            description="",
            cost=self.cost,
            max_num_seqs=min(self.max_num_seqs, self.chunk_tokens),
            block_size=_BLOCK,
            num_blocks=max(int(self.kv_tokens / self.engines), longest + _BLOCK) // _BLOCK + 1,
            max_num_batched_tokens=self.chunk_tokens,
            max_model_len=longest,
            unrest=Jitter(noise_ratio=self.noise_ratio),
            front_end=self.front_end,
            prefix_caching=self.prefix_caching,
        )

    def server(self, rate_rps: float, seed: int, longest: int = 0) -> VirtualServer:
        """It, with requests of the workload at this rate, its live users, and room for one of `longest` tokens."""
        return VirtualServer(
            self.profile(longest),
            seed=seed,
            users=BackgroundTraffic(rate_rps, self.workload, ours=True),
            others=self.live,
            shares=self.shares or [1.0] * self.engines,
            accepted_tokens=self.accepted_tokens,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a load does, in seconds; all infinite where the queue has no end. TPOT is 0 for answers of one token.

    `scatter`: standard deviation of the logarithm of a latency by chance, by its name here, where that is known.
    """

    ttft_s: float
    tpot_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    running: float
    preemptions: float
    scatter: Mapping[str, float] = field(default_factory=dict)

    def over(self, objectives: Objectives) -> float:
        """The worst latency over its objective: above 1 one is broken."""
        limits = objectives.latencies()
        return max((getattr(self, f"{name}_s") / limit.within_s for name, limit in limits.items()), default=0.0)


def predict(twin: Twin, rate_rps: float, objectives: Objectives, *, requests: int = _FINE, seed: int = 0) -> Prediction:
    """The latencies at the objectives' own percentiles, in the steady state of a Poisson load. The rate is above 0."""
    server = twin.server(rate_rps, seed)
    until_s, running = 0.0, 0.0
    # Full of its own load: as long again as it took to get there, and at least as long as three requests take.
    warm_s = requests / 8 / rate_rps
    while until_s < warm_s:
        until_s += warm_s / 8
        server.advance(until_s)
        running, waiting = server.in_flight()
        if waiting > _RUNAWAY * requests:
            return _endless(server)
        warm_s = max(warm_s, _RESIDENCES * running / rate_rps)
    begin_s, end_s = until_s, until_s + requests / rate_rps
    drain_s = _RESIDENCES * max(running, 1.0) / rate_rps
    seen: list[int] = []
    for i in range(1, _SLICES + 1):
        server.advance(begin_s + (end_s - begin_s) * i / _SLICES)
        running, waiting = server.in_flight()
        seen.append(running)
        if waiting > _RUNAWAY * requests:
            return _endless(server)
    server.advance(end_s + drain_s)  # users go on coming, so that the last ones are not better off
    judged = [visit for visit in server.visits if visit.ours and begin_s <= visit.arrival_s < end_s]
    return summary(judged, twin, objectives, sum(seen) / len(seen), server.measured.preemptions)


def capacity(
    twin: Twin,
    objectives: Objectives,
    near_rps: float,
    *,
    correction: Mapping[str, float] | None = None,
    seeds: Sequence[int] = (0, 1),
    requests: int = _FINE,
) -> float:
    """The rate at which the first objective breaks, the mean of a search with each seed. `near_rps`: a first guess.

    `correction`: by what the latencies of the server exceed those of the twin, by name. 0 where no rate holds; where
    none breaks, a rate far above the guess (400 times). ValueError without an objective for a latency, or where the
    guess is not above 0.
    """
    by = correction or {}
    limits = objectives.latencies()
    if not limits or not 0 < near_rps < math.inf:
        raise ValueError("a capacity needs an objective for a latency, and a first guess above 0")

    def excess(rate_rps: float, seed: int) -> float:
        """The logarithm of the worst latency over its objective."""
        seen = predict(twin, rate_rps, objectives, requests=requests, seed=seed)
        worst = max(getattr(seen, f"{name}_s") * by.get(name, 1.0) / o.within_s for name, o in limits.items())
        return math.log(min(max(worst, 1e-6), _ENDLESS))

    found: list[float] = []
    for seed in seeds:
        near_rps = _root(partial(excess, seed=seed), found[-1] if found else near_rps)
        if not near_rps:
            return 0.0
        found.append(near_rps)
    return sum(found) / len(found)


def _root(excess: Callable[[float], float], near: float) -> float:
    """Where a rising function of a rate crosses 0, to about half a per cent: regula falsi in logarithms."""
    low = high = math.log(near)
    at_low = at_high = excess(near)
    step = _FIRST_STEP
    while at_high <= 0:
        if high - math.log(near) > _FAR:
            return math.exp(high)
        low, at_low = high, at_high
        high += step
        at_high, step = excess(math.exp(high)), min(step * 2, 1.0)
    while at_low > 0:
        if math.log(near) - low > _FAR:
            return 0.0
        high, at_high = low, at_low
        low -= step
        at_low, step = excess(math.exp(low)), min(step * 2, 1.0)
    while high - low > _PRECISION:
        share = min(max(-at_low / (at_high - at_low), 0.1), 0.9) if at_high < math.log(_ENDLESS) else 0.5
        middle = low + share * (high - low)
        at_middle = excess(math.exp(middle))
        if abs(at_middle) < _PRECISION / 2:
            return math.exp(middle)
        if at_middle > 0:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return math.exp((low + high) / 2)


def _endless(server: VirtualServer) -> Prediction:
    return Prediction(math.inf, math.inf, math.inf, math.inf, server.in_flight()[0], server.measured.preemptions)


def summary(
    visits: Iterable[SimulatedRequest], twin: Twin, objectives: Objectives, running: float, preemptions: float
) -> Prediction:
    """What these requests met, on average of `running` at a time, with so many preemptions."""
    ttft: list[float] = []
    tpot: list[float] = []
    for visit in visits:
        ttft.append(visit.ttft_s + twin.added_s)
        if visit.output_tokens > 1:
            tpot.append(visit.tpot_s)
    ttft.sort()
    tpot.sort()
    if not ttft:
        return Prediction(math.inf, math.inf, math.inf, math.inf, running, preemptions)
    ratios = {name: objective.ratio for name, objective in objectives.latencies().items()}
    return Prediction(
        ttft_s=percentile(ttft, ratios.get("ttft", 0.95)),
        tpot_s=percentile(tpot, ratios.get("tpot", 0.95)) if tpot else 0.0,
        ttft_p50_s=percentile(ttft, 0.5),
        tpot_p50_s=percentile(tpot, 0.5) if tpot else 0.0,
        running=running,
        preemptions=preemptions,
    )


def _longest(tokens: int | LognormalLength) -> int:
    return tokens.maximum if isinstance(tokens, LognormalLength) else tokens

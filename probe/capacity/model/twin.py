"""The twin: a simulated copy of a server, with its fitted step costs, in virtual time. Pure.

In: a Twin (step costs, limits, request lengths). Out: its latencies at a given rate, and its capacity: the rate at
which an objective breaks. It runs on the simulator's scheduler (probe/simulator/engine.py); what the real server does
differently shows only when both are compared.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from probe.core.objectives import LATENCIES, Objectives
from probe.core.percentiles import percentile
from probe.core.workload import Workload, longest_request
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost
from probe.simulator.simulated_request import SimulatedRequest
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

NO_FRONT = FrontEnd()
UNLIMITED_SEQS = 1024  # stands for an unknown max_num_seqs: more than any server allows
ENDLESS_KV = 1e9  # tokens: stands for an unknown size of the KV cache
BLOCK_SIZE = 16  # tokens in a block of the KV cache where that is unknown: vLLM's default on GPUs
_FINE = 3000  # simulated requests that locate the capacity to about 2 %
# Of a rate, as logarithms. Between two rates this near a line is good enough, but not to a rate without a steady state.
_PRECISION, _RUNAWAY_PRECISION = 0.021, 0.008
_NEGLIGIBLE = 0.002  # a latency this near its objective is there
# The first guess is mostly near, so that one step is enough; where it is not, each step is so much longer.
_FIRST_STEP, _GROWTH = 0.02, 4.0
_MAX_SEARCH_DISTANCE = 6.0  # e-folds from the first guess
_MAX_LATENCY_RATIO = 4.0  # ratio of latency to objective; above it, differences do not matter
_RUNAWAY = 0.12  # a queue with this share of all requests counts as endless
_RESIDENCES = 3.0
_SLICES = 24
_USUAL_RATIO = 0.95  # the percentile of a latency without an objective
# The latencies of a Prediction, at the objective's percentile and at the median.
LATENCY_FIELDS = tuple(f"{name}{percentile}_s" for name in LATENCIES for percentile in ("", "_p50"))


@dataclass(frozen=True, slots=True)
class Twin:
    """What is known of a server, ready to simulate.

    `kv_tokens`: of all its engines; `accepted_tokens`: tokens that speculation adds to the one of a step; `added_s`: a
    constant that clients see in TTFT on top of the server's; `live`: additional users with other request lengths;
    `shares`: each engine's share of the requests, if they differ; `block_size`: tokens in a block of the KV cache;
    `plans_ahead`: a step is planned when the one before it begins; `request_tokens`: of the cache, what each request
    holds beside its tokens (observe/kv_size.py).
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
    block_size: int = BLOCK_SIZE
    plans_ahead: bool = False
    request_tokens: float = 0.0

    def profile(self, longest: int = 0) -> Profile:
        """Return the server to simulate, with room for the longest request, and for one of `longest` tokens."""
        mixes = [self.workload, *([self.live.workload] if self.live else [])]
        longest = max(longest, *map(longest_request, mixes))
        request_blocks = round(self.request_tokens / self.block_size)
        blocks = int(self.kv_tokens / self.engines) // self.block_size
        least = (longest + self.block_size) // self.block_size + request_blocks
        return Profile(
            name="twin",
            description="",
            cost=self.cost,
            max_num_seqs=min(self.max_num_seqs, self.chunk_tokens),
            block_size=self.block_size,
            num_blocks=max(blocks, least) + 1,
            max_num_batched_tokens=self.chunk_tokens,
            max_model_len=longest,
            jitter=Jitter(noise_ratio=self.noise_ratio),
            front_end=self.front_end,
            prefix_caching=self.prefix_caching,
            plans_ahead=self.plans_ahead,
            request_blocks=request_blocks,
        )

    def server(self, rate_rps: float, seed: int, longest: int = 0, *, has_page: bool = True) -> VirtualServer:
        """Return the server with the workload at this rate, its live users, and room for `longest` tokens.

        The arrivals of an odd seed mirror the seed before it. `has_page`: its metrics will be read.
        """
        return VirtualServer(
            self.profile(longest),
            seed=seed,
            users=BackgroundTraffic(rate_rps, self.workload, is_probe=True, is_mirrored=seed % 2 == 1),
            others=self.live,
            shares=self.shares or [1.0] * self.engines,
            accepted_tokens=self.accepted_tokens,
            has_page=has_page,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies under a load, in seconds; all infinite if the queue is endless.

    TPOT and ITL, a request's longest gap, are 0 for answers of one token, and ITL without its objective.
    """

    ttft_s: float
    tpot_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    running: float
    preemptions: float
    e2e_s: float = 0.0
    e2e_p50_s: float = 0.0
    itl_s: float = 0.0
    itl_p50_s: float = 0.0

    def worst_objective_ratio(self, objectives: Objectives) -> float:
        """Return the largest ratio of a latency to its objective: above 1, an objective is broken."""
        limits = objectives.latencies()
        return max((getattr(self, f"{name}_s") / limit.within_s for name, limit in limits.items()), default=0.0)


def predict(twin: Twin, rate_rps: float, objectives: Objectives, *, requests: int = _FINE, seed: int = 0) -> Prediction:
    """Simulate a steady Poisson load and return its latencies at the objectives' percentiles. The rate is above 0."""
    server = twin.server(rate_rps, seed, has_page=False)
    until_s, running = 0.0, 0.0
    # Warm up until the batch has filled, and at least for three mean request durations.
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
    in_batch: list[int] = []
    for i in range(1, _SLICES + 1):
        server.advance(begin_s + (end_s - begin_s) * i / _SLICES)
        running, waiting = server.in_flight()
        in_batch.append(running)
        if waiting > _RUNAWAY * requests:
            return _endless(server)
    server.advance(end_s + drain_s)  # arrivals continue, so that the last requests get no emptier server
    judged = [request for request in server.ended_requests if request.is_probe and begin_s <= request.arrival_s < end_s]
    return summarise(judged, twin, objectives, sum(in_batch) / len(in_batch), server.measured.preemptions)


def find_capacity(
    twin: Twin,
    objectives: Objectives,
    near_rps: float,
    *,
    correction: Mapping[str, float] | None = None,
    seeds: Sequence[int] = (0, 1),
    requests: int = _FINE,
) -> float:
    """Return the rate at which the first objective breaks, as the mean of a search with each seed.

    `near_rps`: a first guess; `correction`: ratio of the server's latencies to the twin's, by name. The result is 0 if
    no rate holds, and far above the guess (400 times) if none breaks. ValueError without a latency objective, or if
    the guess is not above 0.
    """
    by = correction or {}
    limits = objectives.latencies()
    if not limits or not 0 < near_rps < math.inf:
        raise ValueError("a capacity needs an objective for a latency, and a first guess above 0")

    def excess(rate_rps: float, seed: int) -> float:
        """Return the logarithm of the largest ratio of a latency to its objective."""
        predicted = predict(twin, rate_rps, objectives, requests=requests, seed=seed)
        worst = max(getattr(predicted, f"{name}_s") * by.get(name, 1.0) / o.within_s for name, o in limits.items())
        return math.log(min(max(worst, 1e-6), _MAX_LATENCY_RATIO))

    found: list[float] = []
    for seed in seeds:
        near_rps = _root(partial(excess, seed=seed), found[-1] if found else near_rps)
        if not near_rps:
            return 0.0
        found.append(near_rps)
    return sum(found) / len(found)


def _root(excess: Callable[[float], float], near: float) -> float:
    """Return where a rising function of a rate crosses 0, to about half a per cent where it is steep.

    Bisection in logarithms and a line at the end: below the knee the function is flat, above it steep.
    """
    low = high = math.log(near)
    at_low = at_high = excess(near)
    step = _FIRST_STEP
    while at_high <= 0:
        if high - math.log(near) > _MAX_SEARCH_DISTANCE:
            return math.exp(high)
        low, at_low = high, at_high
        high += step
        at_high, step = excess(math.exp(high)), min(step * _GROWTH, 1.0)
    while at_low > 0:
        if math.log(near) - low > _MAX_SEARCH_DISTANCE:
            return 0.0
        high, at_high = low, at_low
        low -= step
        at_low, step = excess(math.exp(low)), min(step * _GROWTH, 1.0)
    while True:
        is_runaway = at_high >= math.log(_MAX_LATENCY_RATIO)
        if high - low <= (_RUNAWAY_PRECISION if is_runaway else _PRECISION):
            share = 0.5 if is_runaway else -at_low / (at_high - at_low)
            return math.exp(low + share * (high - low))
        middle = (low + high) / 2
        at_middle = excess(math.exp(middle))
        if abs(at_middle) < _NEGLIGIBLE:
            return math.exp(middle)
        if at_middle > 0:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle


def _endless(server: VirtualServer) -> Prediction:
    return _without_end(server.in_flight()[0], server.measured.preemptions)


def _without_end(running: float, preemptions: float) -> Prediction:
    endless = dict.fromkeys(LATENCY_FIELDS, math.inf)
    return Prediction(**endless, running=running, preemptions=preemptions)


def summarise(
    requests: Iterable[SimulatedRequest], twin: Twin, objectives: Objectives, running: float, preemptions: float
) -> Prediction:
    """Summarise these requests' latencies; `running` (mean in the batch) and `preemptions` are passed through."""
    judged = list(requests)
    if not judged:
        return _without_end(running, preemptions)
    several = [request for request in judged if request.output_tokens > 1]
    samples = {
        "ttft": [request.ttft_s + twin.added_s for request in judged],
        "tpot": [request.tpot_s for request in several],
        "e2e": [request.e2e_s + twin.added_s for request in judged],
        # Of some thousand gaps a request, only where they matter.
        "itl": [request.longest_gap_s() for request in several] if objectives.itl is not None else [],
    }
    limits = objectives.latencies()
    found: dict[str, float] = {}
    for name, values in samples.items():
        values.sort()
        ratio = limits[name].ratio if name in limits else _USUAL_RATIO
        found[f"{name}_s"] = percentile(values, ratio) if values else 0.0
        found[f"{name}_p50_s"] = percentile(values, 0.5) if values else 0.0
    return Prediction(**found, running=running, preemptions=preemptions)

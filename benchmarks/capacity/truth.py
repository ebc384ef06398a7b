"""The true capacity of a case: long runs in virtual time at many rates.

It is the rate at which p95 of TTFT or of TPOT reaches its objective, with all traffic of the case's workload, Poisson
arrivals, and the server in its steady state.
"""

from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.capacity.cases import Case
from probe.core.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Truth:
    """A capacity in requests/s, its standard error, and the objective that breaks."""

    rps: float
    error_rps: float
    limiting: str


@dataclass(frozen=True, slots=True)
class _Load:
    """Each p95 at one rate over its objective; above 1 the objective is broken."""

    ttft: float
    tpot: float

    @property
    def score(self) -> float:
        return max(self.ttft, self.tpot)


def true_capacity(case: Case, *, requests: int = 6_000, seeds: int = 3, precision: float = 0.005) -> Truth:
    """Return the capacity, from `seeds` independent bisections."""
    found = [_bisect(case, seed, requests, precision) for seed in range(seeds)]
    rates = [rate for rate, _ in found]
    error = stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
    limits = [limit for _, limit in found]
    return Truth(fmean(rates), error, max(set(limits), key=limits.count))


def load_at(case: Case, rate_rps: float, seed: int, requests: int) -> _Load:
    """Return each p95 over its objective, from the requests that arrived after the first sixth."""
    server = case.server(seed, rate_rps, case.workload)
    ttft, tpot = case.objectives.ttft, case.objectives.tpot
    assert ttft is not None
    assert tpot is not None
    warm_s, end_s = requests / 6 / rate_rps, requests * 7 / 6 / rate_rps
    while server.now_s < end_s:
        server.advance(min(server.now_s + end_s / 40, end_s))
        # A queue this long belongs to no steady state.
        if sum(len(r.entering) + r.engine.waiting for r in server._replicas) > requests / 10:
            return _Load(float("inf"), 0.0)
    judged = [request for request in server.ended_requests if request.arrival_s >= warm_s]
    return _Load(
        percentile(sorted(request.ttft_s for request in judged), 0.95) / ttft.within_s,
        percentile(sorted(request.tpot_s for request in judged if request.output_tokens > 1), 0.95) / tpot.within_s,
    )


def _bisect(case: Case, seed: int, requests: int, precision: float) -> tuple[float, str]:
    low, high, limit = 0.0, 1.0, "ttft"
    while (load := load_at(case, high, seed, requests // 4)).score <= 1:
        low, high = high, high * 2
    if not low:
        while load_at(case, high / 2, seed, requests // 4).score > 1:
            high /= 2
        low = high / 2
    # The doubling used short runs, so its ends are not exact.
    low, high = low * 0.8, high * 1.2
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        load = load_at(case, middle, seed, requests)
        if load.score > 1:
            high, limit = middle, "ttft" if load.ttft >= load.tpot else "tpot"
        else:
            low = middle
    return (low * high) ** 0.5, limit

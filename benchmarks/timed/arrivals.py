"""Requests of a case as they arrive, when their tokens came, and whether that was in time. Pure.

Input: a case, a rate and a seed. Output: arrivals for virtual_twin.py and virtual_vllm.py, and their answers judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.timed.cases import Case

WARM_UP = 0.15  # of the requests, which are not judged: the server begins empty
_RATIO = 0.95  # of the requests have to meet each objective


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it arrives (s), and its tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Timed:
    """A request, and the times (s) of its first and last token; below 0 before the first."""

    arrival: Arrival
    first_s: float = -1.0
    last_s: float = -1.0
    has_ended: bool = False

    def add(self, at_s: float, tokens: int, *, has_ended: bool) -> None:
        """Take in tokens that came at `at_s`, if any."""
        if tokens:
            self.first_s = at_s if self.first_s < 0 else self.first_s
            self.last_s = at_s
        self.has_ended |= has_ended

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_s - self.arrival.at_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.last_s - self.first_s) / max(1, self.arrival.output_tokens - 1)


def poisson(case: Case, rate_rps: float, count: int, seed: int) -> list[Arrival]:
    """Return requests of the case's lengths that arrive at a Poisson rate: at another rate, the same ones faster."""
    random, at_s, arrivals = Random(seed), 0.0, []
    for _ in range(count):
        at_s += random.expovariate(rate_rps)
        arrivals.append(Arrival(at_s, *case.lengths(random)))
    return arrivals


def judged(served: Sequence[Timed]) -> Sequence[Timed]:
    """Return the requests after the warm-up."""
    return served[int(WARM_UP * len(served)) :]


def scores(case: Case, served: Sequence[Timed]) -> dict[str, float]:
    """Return the 95th percentiles of TTFT and TPOT over their objectives; above 1 one is broken."""

    def score(values: list[float], within_ms: float) -> float:
        return sorted(values)[int(_RATIO * len(values))] * 1e3 / within_ms

    return {
        "ttft": score([one.ttft_s for one in served], case.ttft_ms),
        "tpot": score([one.tpot_s for one in served], case.tpot_ms),
    }

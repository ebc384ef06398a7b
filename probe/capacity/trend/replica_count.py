"""Replicas for a peak, from the capacity of one replica. Pure.

In: a capacity, a peak and what is to stay free. Out: how many replicas hold the peak at the lower end of the capacity's
interval, how busy they are then, and what their good output tokens cost.
"""

import math
from dataclasses import dataclass

from probe.core.objectives import Objectives, promised
from probe.core.result import Capacity, CapacityResult

MILLION = 1e6
_HOUR_S = 3600.0
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Demand:
    """A peak in requests/s, the share of each replica's capacity that stays free, and how many replicas may be lost."""

    requests_per_second: float
    margin: float
    spare: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas hold a peak, `spare` ones included, and the share of their capacity that it takes.

    `count`: at the lower end of the capacity, with the margin; `fewest`: at its upper end, None without one.
    `is_at_most`: the capacity is a lower bound, so fewer may do. `utilization` and `utilization_without_spare` are
    shares of the capacity, `most_utilization` of its lower end without the spare replicas.
    """

    count: int
    fewest: int | None
    is_at_most: bool
    utilization: float
    utilization_without_spare: float
    most_utilization: float


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a GPU hour in any currency, and the GPUs of a replica."""

    gpu_hour: float
    gpus: int

    def of_tokens(self, replicas: int, output_tokens_per_second: float, good_share: float) -> float:
        """Return the price of a million good output tokens that replicas generate together."""
        return replicas * self.gpus * self.gpu_hour / _HOUR_S / (output_tokens_per_second * good_share) * MILLION


def gpus_of(result: CapacityResult) -> int:
    """Return the GPUs of a replica by the server's flags; 1 where they do not say."""
    sizes = [result.context.flags.get(name, "1") for name in _PARALLEL]
    return math.prod(int(size) if size.isdecimal() and 0 < int(size) < 10**6 else 1 for size in sizes)


def lower_end(capacity: Capacity) -> float:
    """Return the lower end of a capacity that has a rate; the rate where there is no interval."""
    return capacity.lower or capacity.requests_per_second or 0.0


def replicas_for(demand: Demand, capacity: Capacity) -> Replicas:
    """Return the replicas for a peak. The capacity has a rate, and its lower end is above 0."""
    rate, least = capacity.requests_per_second or 0.0, lower_end(capacity)
    needed = _needed(demand, least)
    return Replicas(
        count=needed + demand.spare,
        fewest=_needed(demand, capacity.upper) + demand.spare if capacity.upper is not None else None,
        is_at_most=capacity.is_lower_bound,
        utilization=demand.requests_per_second / ((needed + demand.spare) * rate),
        utilization_without_spare=demand.requests_per_second / (needed * rate),
        most_utilization=demand.requests_per_second / (needed * least),
    )


def good_share(objectives: Objectives) -> float:
    """Return the least share of good requests that the objectives allow, which is that at the knee; 1 without any."""
    return min(promised(objectives).values(), default=1.0)


def _needed(demand: Demand, rate: float) -> int:
    # Rounded down by less than a millionth: 40 requests/s at 0.8 of 10 are 5 replicas, whatever the last digit is.
    return max(math.ceil(demand.requests_per_second / (rate * (1 - demand.margin)) - 1e-6), 1)

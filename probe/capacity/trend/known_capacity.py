"""What a server's runs with load say of its capacity now: the last one measured, or a later bound below it. Pure.

A run that was not verified replaces no measured capacity: a model that is too low would keep away the runs that show
it. But its upper bound holds whether it was verified or not, and so does that of a run in which no load held. Below the
measured capacity it shows that the server does not take that much any more.
"""

from dataclasses import dataclass, replace
from typing import Self

from probe.capacity.trend.fingerprint import capacity_sample
from probe.core.result import Capacity, CapacityResult


@dataclass(frozen=True, slots=True)
class KnownCapacity:
    """`measured`: the newest run whose capacity was measured. `bounded`: the newest later one with an upper bound."""

    measured: CapacityResult | None = None
    bounded: CapacityResult | None = None

    def after(self, result: CapacityResult) -> Self:
        """Return what is known after this run."""
        capacity = result.capacity
        if capacity.requests_per_second is not None and capacity.mode != "forecast":
            return replace(self, measured=result, bounded=None)
        if _upper(result) is not None:
            return replace(self, bounded=result)
        bound = _upper(self.bounded) if self.bounded is not None else None
        if bound is not None and (capacity.lower or 0.0) > bound:
            return replace(self, bounded=None)
        return self

    @property
    def result(self) -> CapacityResult | None:
        """Return the run that says what the server takes: the measured one, unless a later bound lies below it."""
        if self.measured is None or self.bounded is None:
            return self.measured or self.bounded
        rps, upper = self.measured.capacity.requests_per_second, _upper(self.bounded)
        return self.bounded if rps is not None and upper is not None and upper < rps else self.measured

    @property
    def most(self) -> Capacity | None:
        """Return that run's capacity; the most that it may be where the run gives only a bound."""
        if self.result is None:
            return None
        found, upper = self.result.capacity, _upper(self.result)
        if self.result is self.measured or upper is None:
            return found
        rps, tokens = found.requests_per_second, found.output_tokens_per_second
        most_tokens = tokens * upper / rps if rps and tokens is not None else None
        return replace(found, requests_per_second=upper, output_tokens_per_second=most_tokens, upper=upper)


def _upper(result: CapacityResult) -> float | None:
    """Return the most requests/s of all traffic that the server takes by this run; None: unknown."""
    if result.capacity.requests_per_second is not None:
        return result.capacity.upper
    sample = capacity_sample(result)
    return sample.upper if sample is not None else None

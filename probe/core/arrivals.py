"""When the requests of an open loop are due: seeded iterators of times. Pure.

Times are nanoseconds since the step began, absolute: how long a request takes, or how late one was sent, moves
none of those after it.
"""

import math
import random
from collections.abc import Iterator
from itertools import count

from probe.core.step import Arrivals, Pattern


def due_ns(arrivals: Arrivals, seed: int = 0) -> Iterator[int]:
    """The times of an arrival pattern, in order, without an end but for "replay".

    Raises ValueError for a pattern that lacks what it needs.
    """
    if arrivals.pattern is Pattern.REPLAY:
        return _replay(arrivals.times_s)
    if not arrivals.rate_rps > 0:
        raise ValueError(f"a {arrivals.pattern} arrival pattern needs a rate above 0, not {arrivals.rate_rps:g}")
    if arrivals.pattern is Pattern.CONSTANT:
        return _constant(arrivals.rate_rps)
    if arrivals.pattern is Pattern.POISSON:
        return _poisson(arrivals.rate_rps, arrivals.counted_s, seed)
    if arrivals.pattern is Pattern.GAMMA:
        return _gamma(arrivals.rate_rps, arrivals.burstiness, seed)
    return _ramp(arrivals.rate_rps, arrivals.end_rate_rps, arrivals.ramp_s, seed)


def _constant(rate_rps: float) -> Iterator[int]:
    """Multiples of the interval: adding it up would drift by the rounding of each."""
    return (round(i / rate_rps * 1e9) for i in count())


def _poisson(rate_rps: float, counted_s: tuple[float, ...], seed: int) -> Iterator[int]:
    """A Poisson process that brings, in each of these stretches, no more and no fewer than are expected: given their
    number, its arrivals are independent and uniform (Kingman, Poisson Processes, 1993). After them, an ordinary one.
    """
    source, from_s, so_far = random.Random(seed), 0.0, 0
    for seconds in counted_s:
        to_s = from_s + seconds
        number = round(to_s * rate_rps) - so_far
        yield from (round(at_s * 1e9) for at_s in sorted(source.uniform(from_s, to_s) for _ in range(number)))
        from_s, so_far = to_s, so_far + number
    for at_ns in _gamma(rate_rps, 1.0, seed):
        yield round(from_s * 1e9) + at_ns


def _gamma(rate_rps: float, shape: float, seed: int) -> Iterator[int]:
    """Gamma-distributed gaps with mean 1/rate. Shape 1 is a Poisson process; below it arrivals come in bursts (the
    squared coefficient of variation of the gaps is 1/shape), above it they are more even. It is the `--burstiness`
    of `vllm bench serve`. Raises ValueError for a shape that is not above 0.
    """
    if not shape > 0:
        raise ValueError(f"burstiness has to be above 0, not {shape:g}")
    source, at_s = random.Random(seed), 0.0
    while True:
        at_s += source.gammavariate(shape, 1 / (shape * rate_rps))
        yield round(at_s * 1e9)


def _ramp(start_rps: float, end_rps: float, seconds: float, seed: int) -> Iterator[int]:
    """A Poisson process whose rate goes in a straight line from one rate to the other, and stays there.

    Arrivals of a unit-rate process are mapped through the inverse of the expected count N(t) = at + (b-a)t^2/2T
    (inversion method; Cinlar, Introduction to Stochastic Processes, 1975). Raises ValueError without a length.
    """
    if not (seconds > 0 and end_rps > 0):
        raise ValueError(f"a ramp needs an end rate and a length above 0, not {end_rps:g} and {seconds:g}")
    source, expected = random.Random(seed), 0.0
    slope = (end_rps - start_rps) / seconds
    in_ramp = (start_rps + end_rps) / 2 * seconds
    while True:
        expected += source.expovariate(1.0)
        if expected >= in_ramp:
            at_s = seconds + (expected - in_ramp) / end_rps
        else:
            # The quadratic's root, written so that it also holds for a slope of 0.
            at_s = 2 * expected / (start_rps + math.sqrt(start_rps**2 + 2 * slope * expected))
        yield round(at_s * 1e9)


def _replay(times_s: tuple[float, ...]) -> Iterator[int]:
    """Recorded times, counted from the first."""
    ordered = sorted(times_s)
    return (round((at_s - ordered[0]) * 1e9) for at_s in ordered)

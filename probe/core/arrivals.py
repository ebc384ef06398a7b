"""Arrival times of an open loop, as seeded iterators. Pure.

Times are nanoseconds since the start of the step. They are absolute, so a slow or late request delays none of the
later ones.
"""

import math
import random
from collections.abc import Iterator
from itertools import count

from probe.core.step import Arrivals, Pattern


def due_ns(arrivals: Arrivals, seed: int = 0) -> Iterator[int]:
    """Return the times of an arrival pattern, in order; endless except for "replay".

    Raises ValueError if a parameter of the pattern is missing.
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
    return _rising(arrivals.start_rate_rps, arrivals.rate_rps, arrivals.ramp_s, seed)


def _constant(rate_rps: float) -> Iterator[int]:
    """Yield multiples of the interval; summing intervals would accumulate rounding errors."""
    return (round(i / rate_rps * 1e9) for i in count())


def _poisson(rate_rps: float, counted_s: tuple[float, ...], seed: int) -> Iterator[int]:
    """Yield a Poisson process with exactly the expected number of arrivals in each of the `counted_s` segments.

    Given their number, the arrivals of a segment are independent and uniform (Kingman, Poisson Processes, 1993). After
    the segments, an ordinary Poisson process follows.
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
    """Yield arrivals with gamma-distributed gaps of mean 1/rate.

    Shape 1 is a Poisson process. Below 1 arrivals come in bursts (the squared coefficient of variation of the gaps is
    1/shape), above 1 they are more even. It is the `--burstiness` of `vllm bench serve`. Raises ValueError for a
    shape that is not above 0.
    """
    if not shape > 0:
        raise ValueError(f"burstiness has to be above 0, not {shape:g}")
    source, at_s = random.Random(seed), 0.0
    while True:
        at_s += source.gammavariate(shape, 1 / (shape * rate_rps))
        yield round(at_s * 1e9)


def _rising(start_rps: float, end_rps: float, seconds: float, seed: int) -> Iterator[int]:
    """Yield a Poisson process. Its rate changes linearly from `start_rps` to `end_rps`, and then stays there.

    Arrivals of a unit-rate process are mapped through the inverse of the expected count N(t) = at + (b-a)t^2/2T
    (inversion method; Cinlar, Introduction to Stochastic Processes, 1975). Raises ValueError if `seconds` is not above
    0, or `start_rps` below it.
    """
    if not (seconds > 0 and start_rps >= 0):
        raise ValueError(f"a ramp needs a start of at least 0 and a length above 0, not {start_rps:g} and {seconds:g}")
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
    """Return recorded times, relative to the first."""
    ordered = sorted(times_s)
    return (round((at_s - ordered[0]) * 1e9) for at_s in ordered)

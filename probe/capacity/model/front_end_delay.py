"""The front end's time per request, from how much later first tokens arrive than the engine reports. Pure.

In: mean delays at several rates. Out: front ends that explain them, each with a constant delay besides. A constant
delay (network, proxy) and a front end that serves one request after another look the same at one rate, but the second
grows with the rate and has a limit. Mean wait in an M/G/1 queue: Pollaczek and Khinchine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probe.simulator.cost import FrontEnd

_GRID = 200
_MOST_BUSY = 0.97
_CERTAIN = 3.0  # standard errors


@dataclass(frozen=True, slots=True)
class DelaySample:
    """Mean delay of first tokens between engine and client, at one rate of all requests; `error_s`: standard error."""

    rate_rps: float
    seconds: float
    requests: int
    error_s: float


@dataclass(frozen=True, slots=True)
class FrontEndEstimate:
    """A front end and a constant delay that together explain the samples."""

    front_end: FrontEnd
    added_s: float


NONE = FrontEndEstimate(FrontEnd(), 0.0)


def most_likely(fronts: Sequence[tuple[float, FrontEndEstimate]]) -> FrontEndEstimate:
    """Return the estimate that explains the delays best; NONE if there is none."""
    return min(fronts, key=lambda one: one[0], default=(0.0, NONE))[1]


def candidate_front_ends(delays: Sequence[DelaySample], negligible_s: float) -> list[tuple[float, FrontEndEstimate]]:
    """Return possible front ends, from none to a busy one, each with its best constant delay and its misfit.

    The misfit is the sum of squared residuals in standard errors. Empty where the delays are below `negligible_s` or
    within chance.
    """
    delays = [d for d in delays if d.rate_rps > 0 and all(map(math.isfinite, (d.rate_rps, d.seconds, d.error_s)))]
    if not delays:
        return []
    certainty = [1 / max(delay.error_s, 1e-6) for delay in delays]
    weights = [one * one for one in certainty]  # a product is never out of range, as a power is
    mean_s = sum(d.seconds * w for d, w in zip(delays, weights, strict=True)) / sum(weights)
    if mean_s < max(negligible_s, _CERTAIN / math.sqrt(sum(weights))):
        return []
    most = _MOST_BUSY / max(delay.rate_rps for delay in delays)
    return [_explained(delays, weights, most * i / _GRID) for i in range(_GRID)]


def _explained(
    delays: Sequence[DelaySample], weights: Sequence[float], service_s: float
) -> tuple[float, FrontEndEstimate]:
    """Return the misfit of a service time with the constant delay that suits it best, and both as an estimate."""
    by_queue = [service_s + d.rate_rps * service_s * service_s / (2 * (1 - d.rate_rps * service_s)) for d in delays]
    left = [d.seconds - queued for d, queued in zip(delays, by_queue, strict=True)]
    added_s = max(sum(w * x for w, x in zip(weights, left, strict=True)) / sum(weights), 0.0)
    squares = sum(w * (x - added_s) * (x - added_s) for w, x in zip(weights, left, strict=True))
    return squares, FrontEndEstimate(FrontEnd(per_request_s=service_s), added_s)

"""The length of a prompt or an answer in tokens: fixed, or a distribution. Pure."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from probe.core.measured_length import MeasuredLength

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Lengths with this median (tokens) and log-scale sigma, between 1 and `maximum`."""

    median: int
    sigma: float
    maximum: int


TokenLength = int | LognormalLength | MeasuredLength


def quantile(tokens: TokenLength, share: float) -> float:
    """Return the length that this share of requests (between 0 and 1) does not exceed."""
    if isinstance(tokens, int):
        return float(tokens)
    if isinstance(tokens, MeasuredLength):
        return tokens.quantile(share)
    return min(max(tokens.median * math.exp(tokens.sigma * _NORMAL.inv_cdf(share)), 1.0), float(tokens.maximum))


def mean_length(tokens: TokenLength) -> float:
    """Return the mean length; of a log-normal one, lengths above the maximum count as the maximum."""
    if isinstance(tokens, int):
        return float(tokens)
    if isinstance(tokens, MeasuredLength):
        return tokens.mean
    if not tokens.sigma:
        return float(min(tokens.median, tokens.maximum))
    cut = math.log(tokens.maximum / tokens.median) / tokens.sigma
    below = tokens.median * math.exp(tokens.sigma**2 / 2) * _NORMAL.cdf(cut - tokens.sigma)
    return below + tokens.maximum * (1 - _NORMAL.cdf(cut))


def longest(tokens: TokenLength) -> int:
    """Return the longest length."""
    return tokens if isinstance(tokens, int) else tokens.maximum

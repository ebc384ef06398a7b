"""The length of a prompt or an answer in tokens: fixed, log-normal, or as a histogram shows it. Pure."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

_SHOWN = (0.5, 0.95, 0.99)
# More tokens than any request has: a foreign file may have a number that no float can hold.
_MOST_TOKENS = 1e12
_FEW = 24  # distinct lengths, up to which a distribution has each of them
_PARTS = 64
_TAIL = (0.99, 0.995, 0.999)


@dataclass(frozen=True, slots=True)
class MeasuredLength:
    """A distribution of lengths: a share of `shares[i]` has at most `tokens[i]` tokens. Both rise, `shares` from 0 to
    1.

    Between two lengths the logarithm of the length is uniform; two equal lengths are that share of requests.
    """

    tokens: tuple[float, ...]
    shares: tuple[float, ...]

    def __str__(self) -> str:
        """Return the mean and percentiles in tokens, as a person reads them."""
        found = {"mean": self.mean, **{f"p{share * 100:.0f}": self.quantile(share) for share in _SHOWN}}
        return ", ".join(f"{name} {round(tokens):,}" for name, tokens in found.items())

    @property
    def maximum(self) -> int:
        """Return the longest length."""
        return max(round(self.tokens[-1]), 1)

    @property
    def mean(self) -> float:
        """Return the mean length."""
        return self.mean_within(math.inf)

    def mean_within(self, most: float) -> float:
        """Return the mean if longer lengths counted as `most`."""
        points = pairwise(zip(self.tokens, self.shares, strict=True))
        return sum((share - before) * _capped_mean(low, high, most) for (low, before), (high, share) in points)

    def quantile(self, share: float) -> float:
        """Return the length that this share of requests does not exceed."""
        i = min(max(bisect_left(self.shares, share), 1), len(self.shares) - 1)
        low, high = self.tokens[i - 1], self.tokens[i]
        before, width = self.shares[i - 1], self.shares[i] - self.shares[i - 1]
        inside = (share - before) / width if width else 1.0
        return low * math.exp(math.log(high / low) * min(max(inside, 0.0), 1.0))


def measured_of(lengths: Sequence[int]) -> MeasuredLength:
    """Return the distribution of these lengths, at least one: exact if few differ, otherwise by its quantiles."""
    ordered = sorted(lengths)
    whole = len(ordered)
    points = [0.0, *(i / _PARTS for i in range(1, _PARTS)), *_TAIL, 1.0]
    if len(counts := Counter(ordered)) <= _FEW:
        tokens = [length for length in sorted(counts) for _ in range(2)]
        ends = [round(bisect_right(ordered, length) / whole, 5) for length in sorted(counts)]
        return MeasuredLength(tuple(map(float, tokens)), (0.0, *(e for end in ends[:-1] for e in (end, end)), 1.0))
    at = (ordered[min(max(math.ceil(share * whole) - 1, 0), whole - 1)] for share in points)
    return MeasuredLength(tuple(map(float, at)), tuple(round(share, 5) for share in points))


def stored_length(values: Mapping[str, object]) -> MeasuredLength | None:
    """Return the length with these fields, as a result in JSON has them; None for anything else."""
    tokens, shares = values.get("tokens"), values.get("shares")
    if not isinstance(tokens, list) or not isinstance(shares, list) or not 1 < len(tokens) == len(shares):
        return None
    if not all(isinstance(value, int | float) and 0 <= value <= _MOST_TOKENS for value in (*tokens, *shares)):
        return None
    return MeasuredLength(tuple(max(float(one), 1.0) for one in tokens), tuple(map(float, shares)))


def _capped_mean(low: float, high: float, most: float) -> float:
    """Return the mean of a length with a uniform logarithm between two bounds; longer ones count as `most`."""
    if low >= most or low == high:
        return min(low, most)
    inside = min(high, most)
    above = math.log(high / inside)
    return ((inside - low) + (most * above if above else 0.0)) / math.log(high / low)


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

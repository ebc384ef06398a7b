"""The mix of request lengths that users send, from the server's histograms of them. Pure.

Histograms show how long prompts and answers are, but not which prompt got which answer: both are drawn independently.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from probe.core.request import Api
from probe.core.snapshot import Histogram
from probe.core.token_length import MeasuredLength
from probe.core.workload import MAX_TOKENS, Workload

USERS = "users"  # the workload's name, unless the configuration has one of this name
MIN_REQUESTS = 200  # so that the 95th percentile rests on ten requests
_PARTS = 6  # points within a bucket
_STEEPEST = 8.0
_ROUNDS = 30
_COMPARED = (0.5, 0.9, 0.99)
_ALIKE = 0.2  # relative difference of a length up to which two mixes are the same


def measured_length(histogram: Histogram, most: float) -> MeasuredLength | None:
    """Return the distribution that a histogram of lengths shows; None if it is empty.

    Between the bounds, cumulative shares are a monotone cubic of the logarithm of the length (Fritsch and Carlson,
    1980), so that the density has no steps and ends at 0. Lengths within a bucket are then moved, all by the same power
    of their place in it, until the mean is the histogram's own. `most`: the longest possible length, for what lies
    above the last finite bound.
    """
    counts = [max(after - before, 0.0) for before, after in pairwise([0.0, *(count for _, count in histogram.buckets)])]
    total = sum(counts)
    if not total:
        return None
    buckets = _buckets([min(max(bound, 1.0), max(most, 1.0)) for bound, _ in histogram.buckets], counts, total)
    mean = histogram.sum / total
    gentle, steep = 1 / _STEEPEST, _STEEPEST
    for _ in range(_ROUNDS):
        power = math.sqrt(gentle * steep)
        if _distribution(buckets, power).mean > mean:
            gentle = power
        else:
            steep = power
    return _distribution(buckets, math.sqrt(gentle * steep))


def users_workload(
    prompts: Histogram, outputs: Histogram, *, api: Api, context_tokens: int | None = None, hit_ratio: float = 0.0
) -> Workload | None:
    """Return the workload with these histograms' lengths; None with fewer than MIN_REQUESTS in one of them.

    `context_tokens`: the server's max_model_len; unknown, it is the largest bound that the server counts by. Both are
    the server's word, and prompts of this length will be made, so MAX_TOKENS is the most.
    `hit_ratio`: the share of prompt tokens that the server found in its prefix cache.
    """
    if min(prompts.count, outputs.count) < MIN_REQUESTS:
        return None
    finite = [bound for bound, _ in prompts.buckets if bound < math.inf]
    most = min(context_tokens or round(max(finite, default=1.0)), MAX_TOKENS)
    prompt, output = measured_length(prompts, most - 1), measured_length(outputs, most - 1)
    if prompt is None or output is None or most <= 1:
        return None
    return Workload(USERS, api, prompt, output, _shared_tokens(prompt, hit_ratio), most)


def are_alike(one: Workload, other: Workload) -> bool:
    """Return whether two workloads of users differ by so little that their capacities may be compared."""
    if one.context_tokens != other.context_tokens or one.api is not other.api:
        return False
    pairs: list[tuple[float, float]] = []
    for a, b in ((one.prompt_tokens, other.prompt_tokens), (one.output_tokens, other.output_tokens)):
        if not isinstance(a, MeasuredLength) or not isinstance(b, MeasuredLength):
            return False
        pairs.append((a.mean, b.mean))
        pairs += [(a.quantile(share), b.quantile(share)) for share in _COMPARED]
        pairs.append((a.mean_within(one.shared_tokens) + a.mean, a.mean_within(other.shared_tokens) + a.mean))
    return all(abs(b - a) <= _ALIKE * a for a, b in pairs)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A share of the lengths between two, and its density for the logarithm of the length at both ends."""

    low: float
    high: float
    share: float
    begins: float = 0.0
    ends: float = 0.0

    @property
    def width(self) -> float:
        return math.log(self.high / self.low)

    @property
    def density(self) -> float:
        return self.share / self.width

    def share_below(self, place: float) -> float:
        """Return the share of lengths up to a place in the bucket, from 0 to 1: a cubic by Hermite."""
        if not self.width:
            return self.share * place
        square, cube = place**2, place**3
        slopes = (cube - 2 * square + place) * self.begins + (cube - square) * self.ends
        return (3 * square - 2 * cube) * self.share + self.width * slopes


def _buckets(bounds: Sequence[float], counts: Sequence[float], total: float) -> list[_Bucket]:
    """Return the buckets, with densities at their bounds by Fritsch and Butland (1984): 0 next to an empty bucket."""
    plain = [_Bucket(low, high, n / total) for (low, high), n in zip(pairwise([1.0, *bounds]), counts, strict=True)]
    ends = [0.0, *(_between(one, other) for one, other in pairwise(plain)), 0.0]
    return [replace(one, begins=ends[i], ends=ends[i + 1]) for i, one in enumerate(plain)]


def _between(one: _Bucket, other: _Bucket) -> float:
    """Return the density where two buckets meet: a weighted harmonic mean of theirs."""
    if not (one.width and other.width and one.share and other.share):
        return 0.0
    by_one, by_other = one.width + 2 * other.width, 2 * one.width + other.width
    return (by_one + by_other) / (by_one / one.density + by_other / other.density)


def _distribution(buckets: Sequence[_Bucket], power: float) -> MeasuredLength:
    """Return the distribution of these buckets, each with its lengths moved by this power of their place."""
    tokens, shares, below = list[float](), list[float](), 0.0
    for one in buckets:
        if one.share:
            if not tokens or tokens[-1] < one.low:
                tokens.append(one.low)
                shares.append(below)
            for i in range(1, _PARTS + 1):
                tokens.append(one.low * math.exp(one.width * (i / _PARTS) ** power))
                shares.append(below + one.share_below(i / _PARTS))
            below += one.share
    shares[-1] = 1.0
    # Rounded: the distribution is in results. As floats: 200 and 200.0 would be two fingerprints.
    return MeasuredLength(tuple(round(float(one), 1) for one in tokens), tuple(round(share, 5) for share in shares))


def _shared_tokens(prompt: MeasuredLength, hit_ratio: float) -> int:
    """Return how long a prefix that all prompts share makes this share of their tokens hits."""
    low, high = 0.0, float(prompt.maximum)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if prompt.mean_within(middle) < hit_ratio * prompt.mean:
            low = middle
        else:
            high = middle
    return round(low)

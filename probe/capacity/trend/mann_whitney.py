"""The exact Mann-Whitney test, for samples as small as a week of runs. Pure.

H. B. Mann and D. R. Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the
Other", 1947. U counts the pairs in which the recent value is the higher one; a pair of equals counts one half.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache


def pairs_above(recent: Sequence[float], ordered: Sequence[float]) -> float:
    """Return U: in how many pairs the value of `recent` is above the one of `ordered` (ascending)."""
    return sum((bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in recent)


@cache
def largest_u(recent: int, before: int, p: float) -> int:
    """Return the largest U that chance alone stays at or below with a probability under `p`; -1 if none is so rare."""
    counts = _arrangements(recent, before)
    allowed = p * math.comb(recent + before, recent)
    so_far, u = 0, -1
    while u + 1 < len(counts) and so_far + counts[u + 1] < allowed:
        u += 1
        so_far += counts[u]
    return u


def _arrangements(recent: int, before: int) -> list[int]:
    """Return how many orders of both samples give U = 0, 1, 2, ...: the Gaussian binomial coefficient's."""
    counts = [1] + [0] * (recent * before)
    for i in range(1, recent + 1):
        rising, falling = before + i, i
        for u in range(len(counts) - 1, rising - 1, -1):  # times 1 - q^(before + i)
            counts[u] -= counts[u - rising]
        for u in range(falling, len(counts)):  # over 1 - q^i
            counts[u] += counts[u - falling]
    return counts

"""How far a capacity may be off: its spread over parts of the data, and the error of going beyond them. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean


def jackknife(without: Sequence[float], whole: float) -> float:
    """Return the relative standard deviation of `whole`, from its values `without` each part of the data.

    Jackknife: Quenouille, Tukey.
    """
    mean = fmean(without)
    return math.sqrt((len(without) - 1) / len(without) * sum((value - mean) ** 2 for value in without)) / whole


def extrapolation_error(share: float) -> float:
    """Return the relative error to allow for loads above the highest measured one, which is `share` of the capacity."""
    return 0.06 * math.sqrt(1 / min(max(share, 0.01), 1.0) - 1)

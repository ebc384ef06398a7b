"""Functions of a window of samples, at many steps at once: `sum_over_time`, `increase` and so on.

Sums and means are differences of running sums, and extremes come from a table of powers of two, so their cost does not
depend on the window. Increases are extrapolated as in Prometheus' functions.go.
"""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.backfill import Bools, Floats
from benchmarks.promql.samples import Indices, Millis, Stored

# Values, and where there are any.
Found = tuple[Floats, Bools]
_MOST_AT_ONCE = 4_000_000  # samples of windows that are copied at once


def _running(series: Stored, name: str, values: Callable[[], Floats]) -> Floats:
    """Return running sums with a leading zero, remembered with the series."""
    if name not in series.made:
        series.made[name] = np.concatenate(([0.0], np.cumsum(values())))
    made: Floats = series.made[name]
    return made


def _sum(series: Stored, lo: Indices, hi: Indices) -> Floats:
    total = _running(series, "sum", lambda: series.values)
    return np.asarray(total[hi] - total[lo])


def _extreme(series: Stored, lo: Indices, hi: Indices, name: str) -> Floats:
    pick = np.fmax if name == "max" else np.fmin
    level = np.frexp(np.maximum(hi - lo, 1))[1] - 1
    table: list[Floats] = series.made.setdefault(name, [series.values])
    while len(table) <= level.max(initial=0):
        half = 1 << (len(table) - 1)
        before = table[-1]
        table.append(np.concatenate((pick(before[:-half], before[half:]), before[len(before) - half :])))
    found = np.empty(len(lo))
    for each in np.unique(level):
        at = level == each
        last = len(series.values) - 1
        found[at] = pick(table[each][np.minimum(lo[at], last)], table[each][np.clip(hi[at] - (1 << each), 0, last)])
    return found


def sums(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `sum_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return _sum(series, lo, hi), hi > lo


def averages(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `avg_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return _sum(series, lo, hi) / np.maximum(hi - lo, 1), hi > lo


def counts(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `count_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return (hi - lo).astype(np.float64), hi > lo


def lasts(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `last_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return series.values[np.maximum(hi - 1, 0)], hi > lo


def highest(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `max_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return _extreme(series, lo, hi, "max"), hi > lo


def lowest(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `min_over_time`."""
    lo, hi = series.window(steps, range_ms)
    return _extreme(series, lo, hi, "min"), hi > lo


def changes(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `changes`."""
    lo, hi = series.window(steps, range_ms)
    total = _running(series, "changes", lambda: (np.diff(series.values, prepend=series.values[:1]) != 0).astype(float))
    return np.where(hi > lo, total[hi] - total[np.minimum(lo + 1, len(total) - 1)], 0.0), hi > lo


def quantiles(series: Stored, steps: Millis, range_ms: int, share: float) -> Found:
    """Return `quantile_over_time`. Windows with the same samples are sorted once."""
    lo, hi = series.window(steps, range_ms)
    there = hi > lo
    found = np.zeros(len(steps))
    if there.any():
        pairs, inverse = np.unique(np.stack((lo[there], hi[there])), axis=1, return_inverse=True)
        found[there] = _quantiles(series.values, pairs[0], pairs[1], share)[inverse.ravel()]
    return found, there


def _quantiles(values: Floats, lo: Indices, hi: Indices, share: float) -> Floats:
    found = np.empty(len(lo))
    widest = int((hi - lo).max())
    batch = max(1, _MOST_AT_ONCE // widest)
    for first in range(0, len(lo), batch):
        low, count = lo[first : first + batch], (hi - lo)[first : first + batch]
        at = low[:, None] + np.arange(widest)
        inside = np.arange(widest) < count[:, None]
        ordered = np.sort(np.where(inside, values[np.minimum(at, len(values) - 1)], np.inf), axis=1)
        rank = share * (count - 1)
        below = np.maximum(np.floor(rank), 0).astype(np.intp)
        above = np.minimum(below + 1, count - 1)
        rows, weight = np.arange(len(low)), rank - np.floor(rank)
        found[first : first + batch] = ordered[rows, below] * (1 - weight) + ordered[rows, above] * weight
    return found


def _grown(series: Stored) -> Floats:
    """Return the counter's growth since its first sample."""
    if "grown" not in series.made:
        difference = np.diff(series.values, prepend=series.values[:1])
        series.made["grown"] = np.cumsum(np.where(difference < 0, series.values, difference))
    grown: Floats = series.made["grown"]
    return grown


def increases(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `increase`, extrapolated to the window's ends."""
    lo, hi = series.window(steps, range_ms)
    there = hi - lo >= 2
    first, last = np.where(there, lo, 0), np.where(there, hi - 1, min(1, len(series.values) - 1))
    grown = _grown(series)[last] - _grown(series)[first]
    ms = series.times.ms
    between = (ms[last] - ms[first]) / 1000
    to_start, to_end = (ms[first] - (steps - range_ms)) / 1000, (steps - ms[last]) / 1000
    average = between / np.maximum(last - first, 1)
    start_value = series.values[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        to_zero = np.where((grown > 0) & (start_value >= 0), between * (start_value / grown), np.inf)
    to_start = np.minimum(to_start, to_zero)
    spans = between.copy()
    for away in (to_start, to_end):
        spans += np.where(away < 1.1 * average, away, average / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(there, grown * (spans / between), 0.0), there


def rates(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `rate`."""
    grown, there = increases(series, steps, range_ms)
    return grown / (range_ms / 1000), there


def _regression(series: Stored, steps: Millis, range_ms: int) -> tuple[Floats, Floats, Bools]:
    """Return the slope per second and the value at the step, by least squares."""
    lo, hi = series.window(steps, range_ms)
    slope, now = np.zeros(len(steps)), np.zeros(len(steps))
    widest = max(1, int((hi - lo).max(initial=1)))
    batch = max(1, _MOST_AT_ONCE // widest)
    for first in range(0, len(steps), batch):
        part = slice(first, first + batch)
        at = lo[part, None] + np.arange(widest)
        inside = at < hi[part, None]
        at = np.minimum(at, len(series.values) - 1)
        count = np.maximum(inside.sum(axis=1), 1)
        t = np.where(inside, (series.times.ms[at] - steps[part, None]) / 1000, 0.0)
        v = np.where(inside, series.values[at], 0.0)
        t_mean, v_mean = t.sum(axis=1) / count, v.sum(axis=1) / count
        t = np.where(inside, t - t_mean[:, None], 0.0)
        spread = (t * t).sum(axis=1)
        slope[part] = (t * v).sum(axis=1) / np.where(spread > 0, spread, 1.0)
        now[part] = v_mean - slope[part] * t_mean
    return slope, now, hi - lo >= 2


def slopes(series: Stored, steps: Millis, range_ms: int) -> Found:
    """Return `deriv`."""
    slope, _, there = _regression(series, steps, range_ms)
    return slope, there


def predictions(series: Stored, steps: Millis, range_ms: int, ahead_s: float) -> Found:
    """Return `predict_linear`."""
    slope, now, there = _regression(series, steps, range_ms)
    return now + slope * ahead_s, there


PLAIN: Mapping[str, Callable[[Stored, Millis, int], Found]] = {
    "sum_over_time": sums,
    "avg_over_time": averages,
    "count_over_time": counts,
    "last_over_time": lasts,
    "max_over_time": highest,
    "min_over_time": lowest,
    "changes": changes,
    "increase": increases,
    "rate": rates,
    "deriv": slopes,
}

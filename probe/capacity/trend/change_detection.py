"""Change detection: has the knee shifted? Pure. In: a target's capacity samples, oldest first. Out: a Shift.

Which samples are compared. Those with the fingerprint of the newest one, wherever they lie (after a roll-back the old
baseline applies again), verified or not: all are runs with load. Logarithms and medians throughout, so that no single
run decides anything. A sample with an interval of more than 10 % to a side is coarse. A drop has to hold for its upper
end. With fixed steps, which may double, it counts with the end that is nearer the baseline in every test, so a knee
that moves by one step is no shift. A sample without an upper bound is never a drop, and below the baseline it says
nothing; a baseline without one cannot be exceeded.

The baseline is frozen: the first 28 runs of a fingerprint, without the last five, which are being tested. A rolling one
follows a slow decay: a decay of half a percent a week went unreported for a year in 4 of 10 simulated cases, and with a
frozen baseline in none. It restarts with another fingerprint, and after a shift that has lasted 14 runs: two weeks of
tickets are notice enough, and the next change has to be measured from the new level. `Baseline.since_s` and
`follows_shift` identify the one in force. Runs during a shift never enter the baseline that it is a shift from.

The methods, with the thresholds that benchmarks/shift.py measured (docs/evidence/shifts.md has the results):

confirmed_drop  three runs in a row, all 20 % below the baseline. For a page. The second is made right after the first,
                and the third an hour later: what disturbs a run for a while may well disturb the one after it.
median_of_3     the median of the last three runs is 6.5 % below it, and each of the three at least a third of that.
                Without the second condition most false shifts come from two bad nights in three; it costs little, since
                after a shift all three are low. If the baseline is noisier than 3 %, 2.2 of its standard deviations
                replace the 6.5 %; a short baseline widens the limit as its own median is less certain.
                Or the last two, each twice that far. A run that low is measured again as a drop is, so that a fifth
                less is said in the first or second night.
mann_whitney    the last five against the baseline: p < 0.001, and their median 5 % below it. A daily test has 365
                chances a year, so 0.005 is not rare. Finds small, lasting changes.
rise            one of the last two, upwards.

A method that has fired keeps firing until its median is back by more than half the way: one shift, one alert. After a
confirmed drop, one run that is back that far ends the other methods too, and earlier runs are dropped: the page has
reported them, and a ticket that follows it would report a capacity that has recovered.
When a drop was measured twice in a row, the night counts with the second run alone: the first was selected for being
low.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from functools import cache
from statistics import median

from probe.capacity.trend.reference import (
    MAX_BASELINE,
    MIN_BASELINE,
    LogSample,
    Reference,
    compute_reference,
    log_sample,
)
from probe.core.shift import UNVERIFIED, CapacitySample, Shift

CONFIRMED_DROP, MEDIAN_OF_3, MANN_WHITNEY, RISE = METHODS = ("confirmed_drop", "median_of_3", "mann_whitney", "rise")
LASTS_RUNS = 14
_DROPPED_RUNS = 3
_MOST_UNCLEAR = 3
_RECENT = 5
_WITNESS = 1 / 3
_TWO_RUNS = 2.0
_RANKS_RATIO = 0.05
_RANKS_P = 0.001


def detect_shift(history: Sequence[CapacitySample]) -> Shift | None:
    """Compare the newest sample with its baseline; None while there are too few comparable ones for a baseline."""
    comparable = _comparable(history)
    detector = _replay(comparable)
    if detector.reference is None:
        return None
    baseline = detector.reference.baseline
    return Shift(
        ratio=comparable[-1].requests_per_second / baseline.requests_per_second - 1,
        baseline=baseline,
        fired=detector.fired(),
        since_s=detector.since_s,
    )


def needs_confirmation(history: Sequence[CapacitySample]) -> bool:
    """Return whether the newest sample is a drop that another run has to confirm."""
    comparable = _comparable(history)
    return bool(comparable) and _replay(comparable).is_unconfirmed


def _replay(samples: Sequence[CapacitySample]) -> "ChangeDetector":
    detector = ChangeDetector()
    for sample in samples:
        detector.add(sample)
    return detector


def _comparable(history: Sequence[CapacitySample]) -> list[CapacitySample]:
    usable = [sample for sample in history if 0 < sample.requests_per_second < math.inf]
    return [sample for sample in usable if sample.fingerprint == usable[-1].fingerprint]


class ChangeDetector:
    """Follows comparable samples run by run. Deterministic: the same samples always give the same verdict."""

    def __init__(self) -> None:
        self.reference: Reference | None = None
        self.recent: deque[LogSample] = deque(maxlen=_RECENT)
        self.since_s: float | None = None
        self._baseline: list[LogSample] = []
        self._follows_shift = False
        self._not_to_learn = 0  # how many of the recent runs were made before a shift had ended
        self._shifted: list[LogSample] = []  # the runs since the shift began
        self._dropped = 0  # runs that had dropped, without one between them that had not
        self._low = 0  # runs in a row that may be a shift by themselves
        self._unclear = 0  # runs after the last of them that do not say
        self._is_asking = False
        # A rise has two tests of its own, so that neither keeps the other firing.
        self._fired = dict.fromkeys((CONFIRMED_DROP, MEDIAN_OF_3, MANN_WHITNEY, "rise of 3", "rise of 5"), False)

    @property
    def is_unconfirmed(self) -> bool:
        """Return whether the newest sample is so far below the baseline that it needs another run.

        One that repeats such a run and says nothing needs one in its place.
        """
        if not self._is_asking or self._fired[CONFIRMED_DROP]:
            return False
        return self._dropped > 0 or (0 < self._low < _DROPPED_RUNS and not any(map(self._fired.get, METHODS[1:3])))

    def fired(self) -> dict[str, bool]:
        """Return for each method whether it reports a shift."""
        fired = self._fired
        return {method: fired[method] for method in METHODS[:3]} | {RISE: fired["rise of 3"] or fired["rise of 5"]}

    def add(self, sample: CapacitySample) -> None:
        """Add the next run's sample."""
        latest = log_sample(sample)
        repeated = [one for one in self.recent if sample.confirms is not None and one.run == sample.confirms]
        is_evidence = not _says_nothing(sample, latest, self.reference)
        if is_evidence:
            self._take(latest, repeated)
        if self.reference is None:
            return
        self._count(self.reference, latest, repeats=bool(repeated))
        if is_evidence:
            self._test(self.reference)
            self._follow(self.reference, latest, repeated)

    def _take(self, latest: LogSample, repeated: Sequence[LogSample]) -> None:
        """Add a run to the recent ones, in the place of the one that it repeats."""
        if repeated:
            self.recent.remove(repeated[0])
        elif len(self.recent) == _RECENT:
            self._learn(self.recent[0])
        self.recent.append(latest)

    def _count(self, norm: Reference, latest: LogSample, *, repeats: bool) -> None:
        """Count the drops. A run that does not say whether the capacity has dropped neither adds one nor ends them."""
        is_low = norm.fall_from - latest.high >= _TWO_RUNS * norm.stray
        if norm.has_dropped(latest):
            self._dropped, self._low, self._unclear, self._is_asking = self._dropped + 1, self._low + 1, 0, True
            return
        self._unclear += 1
        self._low = self._low + 1 if is_low else self._low if latest.high == math.inf else 0
        self._is_asking = repeats or is_low
        if not norm.may_have_dropped(latest) or self._unclear > _MOST_UNCLEAR:
            self._dropped = 0

    def _learn(self, sample: LogSample) -> None:
        """Add a run that is no longer recent to the baseline, unless it was made during a shift."""
        if self._not_to_learn:
            self._not_to_learn -= 1
        elif self.since_s is None and len(self._baseline) < MAX_BASELINE:
            self._baseline.append(sample)
            self._set_reference()

    def _set_reference(self) -> None:
        is_enough = len(self._baseline) >= MIN_BASELINE
        self.reference = compute_reference(self._baseline, follows_shift=self._follows_shift) if is_enough else None

    def _test(self, norm: Reference) -> None:
        """Run every method on the recent samples."""
        fired, latest = self._fired, self.recent[-1]
        if fired[CONFIRMED_DROP]:
            fired[CONFIRMED_DROP] = not norm.is_back_half_way(latest)
            self._dropped *= fired[CONFIRMED_DROP]
            if norm.is_back(latest):
                self.recent = deque([latest], maxlen=_RECENT)
        else:
            fired[CONFIRMED_DROP] = self._dropped >= _DROPPED_RUNS
        falls = [norm.fall_from - sample.high for sample in self.recent]
        rises = [sample.low - norm.rise_from for sample in self.recent]
        fired[MEDIAN_OF_3] = _has_median_shifted(falls, norm.stray, fired=fired[MEDIAN_OF_3])
        fired["rise of 3"] = _has_median_shifted(rises, norm.stray, fired=fired["rise of 3"])
        below = pairs_above([sample.high for sample in self.recent], norm.lows)
        above = pairs_above([-sample.low for sample in self.recent], [-high for high in reversed(norm.highs)])
        fired[MANN_WHITNEY] = _have_ranks_shifted(falls, below, len(norm.lows), fired=fired[MANN_WHITNEY])
        fired["rise of 5"] = _have_ranks_shifted(rises, above, len(norm.highs), fired=fired["rise of 5"])

    def _first_runs(self, norm: Reference) -> list[LogSample]:
        """Return the runs of a shift that fires now: the last ones that lie on its side, a third of the way or more."""
        is_up = not any(self._fired[method] for method in METHODS[:3])
        far = norm.stray * _WITNESS
        away = [sample.low - norm.rise_from if is_up else norm.fall_from - sample.high for sample in self.recent]
        first = next((i for i in range(len(away), 0, -1) if away[i - 1] < far), 0)
        return list(self.recent)[first:] or [self.recent[-1]]

    def _follow(self, norm: Reference, latest: LogSample, repeated: Sequence[LogSample]) -> None:
        """Record when a shift begins and ends, and start a new baseline from one that lasts."""
        if not any(self._fired.values()):
            if self.since_s is not None:
                self._not_to_learn = len(self.recent)
            self.since_s, self._shifted = None, []
            return
        if self.since_s is None:
            self._shifted = self._first_runs(norm)
            self.since_s = self._shifted[0].at_s
        else:
            self._shifted = [one for one in self._shifted if one not in repeated] + [latest]
        if len(self._shifted) >= LASTS_RUNS:
            self._baseline, self._follows_shift = self._shifted[:-_RECENT], True
            self.since_s, self._shifted, self._dropped = None, [], 0
            self._fired = dict.fromkeys(self._fired, False)
            self._set_reference()


def _says_nothing(sample: CapacitySample, latest: LogSample, norm: Reference | None) -> bool:
    """Return whether a run is no evidence: a bound on one side, and the baseline is on the other side of it."""
    if sample.is_only_at_most:
        return norm is None or not norm.has_dropped(latest)
    if sample.is_only_at_least:
        return sample.mode == UNVERIFIED if norm is None else not norm.is_back_half_way(latest)
    return False


def _has_median_shifted(away: Sequence[float], stray: float, *, fired: bool) -> bool:
    """Return whether the last three lie further from the baseline than `stray`, or the last two by twice that.

    To begin with, each of the three has to lie on that side.
    """
    last = away[-3:]
    if fired:
        return median(last) > stray / 2
    three = len(last) == 3 and median(last) >= stray and min(last) >= stray * _WITNESS  # noqa: PLR2004 - as it says
    return three or (len(last) > 1 and min(last[-2:]) >= stray * _TWO_RUNS)


def _have_ranks_shifted(away: Sequence[float], pairs: float, count: int, *, fired: bool) -> bool:
    """Return whether the last five lie away from the baseline, beyond what chance does in 999 of 1000 tests."""
    far = -math.log(1 - _RANKS_RATIO)
    if fired:
        return median(away) > far / 2
    return len(away) == _RECENT and median(away) >= far and pairs <= largest_u(_RECENT, count, _RANKS_P)


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

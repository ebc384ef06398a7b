"""Has the knee shifted? Pure. In: a target's capacity figures, oldest first. Out: a Shift against their baseline.

What is compared. Figures with the fingerprint of the newest one, wherever they lie (after a roll-back the old
baseline is the right one again), and of its kind: what load has measured (verified, empirical) or what was forecast,
never one with the other. Logarithms and medians throughout, so that no single run, high or low, decides anything.
A figure whose own interval reaches more than 10 % to a side is coarse, as with fixed steps that double: it
counts with the end of the interval that lies nearer the baseline. A knee that hops by one step is no shift by that
measure; without an upper bound ("at least") no figure is a drop, and no baseline can be risen above.

The baseline is frozen: the first 28 runs of a fingerprint, without the last five, which are the ones judged. A
rolling one follows a knee that decays slowly: half a percent a week went unsaid for a year in 4 of 10 simulated cases,
and against a frozen one in none. It starts anew with another fingerprint,
and after a shift that has lasted 14 runs: two weeks of tickets are enough to be told, and the next change has to be
seen against what is normal by then. `Baseline.since_s` and `follows_shift` say which one is in force. What is
measured while a shift lasts never enters the baseline that it is a shift from.

The methods, with the thresholds that benchmarks/shift.py measured (docs/shifts.md has its figures):

confirmed_drop  two runs, the second at once after the first, both 20 % under the baseline. For a page.
median_of_3     the median of the last three runs is 6.5 % under it, and none of the three is less than a third of that
                under it. Such a median alone has most of its false shifts from two bad nights in three: the third
                run as a witness takes these away and costs little, since after a shift all three are low. Where the
                baseline is noisier than 3 %, 2.2 of its standard deviations instead of 6.5 %; where it is short, as
                much more as its own median is less certain.
mann_whitney    the last five against the baseline: p < 0.001 and their median 5 % under it. A test that is made every
                day has 365 chances a year, so 0.005 is not rare. Finds what is small and lasts.
rise            one of the last two, upwards.

A method that has fired stays so until its median is back by more than half the way: one shift, one alert. After a
confirmed drop a single run does: one that ends it, and is back as far as a median has to be, ends the others' too, and
the runs before it are asked no more. The page has told of them; a ticket that came when the page went would tell of a
capacity that is there again.
When a drop has been measured twice at once, the night counts with the second run alone: the first was picked for
being low.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from probe.capacity.trend.mann_whitney import largest_u, pairs_above
from probe.core.shift import Baseline, CapacitySample, Shift

CONFIRMED_DROP, MEDIAN_OF_3, MANN_WHITNEY, RISE = METHODS = ("confirmed_drop", "median_of_3", "mann_whitney", "rise")
DROP_RATIO = 0.2  # a page, once confirmed
MIN_BASELINE, MAX_BASELINE = 5, 28
LASTS_RUNS = 14
_RECENT = 5
_MEDIAN_RATIO, _WITNESS = 0.065, 1 / 3
_RANKS_RATIO, _RANKS_P = 0.05, 0.001
_COARSE_RATIO = 0.1
# The noise of one figure that is assumed where little is known yet, and how many runs that assumption is worth.
_USUAL_NOISE, _USUAL_RUNS = 0.03, 10
_NOISE_FACTOR = 2.2
_MAD_TO_SD = 1.4826  # of a normal distribution
# Variance of a median over that of one value: of three, exactly; of n, pi / 2n (Kenney and Keeping, 1962).
_MEDIAN_OF_3_VARIANCE, _MEDIAN_VARIANCE = 0.449, math.pi / 2


def shift(history: Sequence[CapacitySample]) -> Shift | None:
    """The newest figure against its baseline; None while there are too few like it for a baseline."""
    alike = _alike(history)
    judge = _replay(alike)
    if judge.norm is None:
        return None
    baseline = judge.norm.baseline
    return Shift(
        ratio=alike[-1].requests_per_second / baseline.requests_per_second - 1,
        baseline=baseline,
        fired=judge.fired(),
        since_s=judge.since_s,
    )


def wants_confirmation(history: Sequence[CapacitySample]) -> bool:
    """Whether the newest figure is a drop for which a second run has to be made at once."""
    alike = _alike(history)
    return bool(alike) and not alike[-1].confirms and _replay(alike).unconfirmed


def _replay(alike: Sequence[CapacitySample]) -> "ChangeDetector":
    judge = ChangeDetector()
    for figure in alike:
        judge.take(figure)
    return judge


def _alike(history: Sequence[CapacitySample]) -> list[CapacitySample]:
    usable = [figure for figure in history if 0 < figure.requests_per_second < math.inf]
    if not usable:
        return []
    newest = usable[-1]
    return [f for f in usable if f.fingerprint == newest.fingerprint and _forecast(f) == _forecast(newest)]


def _forecast(figure: CapacitySample) -> bool:
    return figure.mode == "forecast"


@dataclass(frozen=True, slots=True)
class _Point:
    """A figure's logarithm, and what it counts as where a drop (`high`) or a rise (`low`) is asked for."""

    at_s: float
    value: float
    low: float
    high: float


def _point(figure: CapacitySample) -> _Point:
    rps, lower, upper = figure.requests_per_second, figure.lower, figure.upper
    low = rps if lower is None or lower * (1 + _COARSE_RATIO) >= rps else lower
    if upper is None and lower is not None:
        upper = math.inf
    high = rps if upper is None or upper <= rps * (1 + _COARSE_RATIO) else upper
    return _Point(figure.at_s, math.log(rps), math.log(low) if low > 0 else -math.inf, math.log(high))


@dataclass(frozen=True, slots=True)
class _Norm:
    """What a baseline says: where the middle is, seen from below and from above, and how far a median may stray."""

    baseline: Baseline
    fall_from: float
    rise_from: float
    lows: tuple[float, ...]  # rising
    highs: tuple[float, ...]
    stray: float  # of the median of three

    def has_dropped(self, point: _Point) -> bool:
        return point.high - self.fall_from <= math.log(1 - DROP_RATIO)

    def is_back(self, point: _Point) -> bool:
        return self.fall_from - point.high <= self.stray / 2


def _norm(points: Sequence[_Point], *, follows_shift: bool) -> _Norm:
    count, values = len(points), [point.value for point in points]
    middle = median(values)
    spread = _MAD_TO_SD * median([abs(value - middle) for value in values])
    noise = math.sqrt((count * spread**2 + _USUAL_RUNS * _USUAL_NOISE**2) / (count + _USUAL_RUNS))
    uncertain = math.sqrt(
        (_MEDIAN_OF_3_VARIANCE + _MEDIAN_VARIANCE / count) / (_MEDIAN_OF_3_VARIANCE + _MEDIAN_VARIANCE / MAX_BASELINE)
    )
    lows, highs = sorted(point.low for point in points), sorted(point.high for point in points)
    return _Norm(
        baseline=Baseline(math.exp(middle), count, points[0].at_s, noise, follows_shift),
        fall_from=median(lows),
        rise_from=median(highs),
        lows=tuple(lows),
        highs=tuple(highs),
        stray=max(-math.log(1 - _MEDIAN_RATIO), _NOISE_FACTOR * noise) * uncertain,
    )


class ChangeDetector:
    """Follows figures that are alike, run by run: the same ones give the same verdict whenever they are replayed."""

    def __init__(self) -> None:
        self.norm: _Norm | None = None
        self.recent: deque[_Point] = deque(maxlen=_RECENT)
        self.since_s: float | None = None
        self._baseline: list[_Point] = []
        self._follows_shift = False
        self._not_to_learn = 0  # how many of the recent runs were made before a shift had ended
        self._shifted: list[_Point] = []  # the runs since the shift began
        # A rise has two tests of its own, so that neither keeps up the other.
        self._fired = dict.fromkeys((CONFIRMED_DROP, MEDIAN_OF_3, MANN_WHITNEY, "rise of 3", "rise of 5"), False)

    @property
    def unconfirmed(self) -> bool:
        """Whether the newest figure lies so far under the baseline that it needs a second run, and had none."""
        return self.norm is not None and self.norm.has_dropped(self.recent[-1]) and not self._fired[CONFIRMED_DROP]

    def fired(self) -> dict[str, bool]:
        """By method, whether it says that the knee has shifted."""
        fired = self._fired
        return {method: fired[method] for method in METHODS[:3]} | {RISE: fired["rise of 3"] or fired["rise of 5"]}

    def take(self, figure: CapacitySample) -> None:
        """The next run's figure."""
        point = _point(figure)
        before = self.recent[-1] if self.recent else None
        confirms = figure.confirms and before is not None
        if confirms:
            self.recent.pop()
        elif len(self.recent) == _RECENT:
            self._learn(self.recent[0])
        self.recent.append(point)
        if self.norm is None:
            return
        self._ask(self.norm, before)
        self._follow(self.norm, point, confirms=confirms)

    def _learn(self, point: _Point) -> None:
        if self._not_to_learn:
            self._not_to_learn -= 1
        elif self.since_s is None and len(self._baseline) < MAX_BASELINE:
            self._baseline.append(point)
            self._settle()

    def _settle(self) -> None:
        enough = len(self._baseline) >= MIN_BASELINE
        self.norm = _norm(self._baseline, follows_shift=self._follows_shift) if enough else None

    def _ask(self, norm: _Norm, before: _Point | None) -> None:
        fired, latest = self._fired, self.recent[-1]
        if fired[CONFIRMED_DROP]:
            fired[CONFIRMED_DROP] = latest.high - norm.fall_from <= math.log(1 - DROP_RATIO / 2)
            if norm.is_back(latest):
                self.recent = deque([latest], maxlen=_RECENT)
        else:
            fired[CONFIRMED_DROP] = before is not None and norm.has_dropped(before) and norm.has_dropped(latest)
        falls = [norm.fall_from - point.high for point in self.recent]
        rises = [point.low - norm.rise_from for point in self.recent]
        fired[MEDIAN_OF_3] = _median_of_3(falls, norm.stray, fired=fired[MEDIAN_OF_3])
        fired["rise of 3"] = _median_of_3(rises, norm.stray, fired=fired["rise of 3"])
        below = pairs_above([point.high for point in self.recent], norm.lows)
        above = pairs_above([-point.low for point in self.recent], [-high for high in reversed(norm.highs)])
        fired[MANN_WHITNEY] = _ranks(falls, below, len(norm.lows), fired=fired[MANN_WHITNEY])
        fired["rise of 5"] = _ranks(rises, above, len(norm.highs), fired=fired["rise of 5"])

    def _first_runs(self, norm: _Norm) -> list[_Point]:
        """Those of a shift that fires now: as many of the last as lie on its side, a third of the way at least."""
        up = not any(self._fired[method] for method in METHODS[:3])
        far = norm.stray * _WITNESS
        away = [point.low - norm.rise_from if up else norm.fall_from - point.high for point in self.recent]
        first = next((i for i in range(len(away), 0, -1) if away[i - 1] < far), 0)
        return list(self.recent)[first:] or [self.recent[-1]]

    def _follow(self, norm: _Norm, point: _Point, *, confirms: bool) -> None:
        """Notes when a shift begins and ends, and starts a new baseline from one that lasts."""
        if not any(self._fired.values()):
            if self.since_s is not None:
                self._not_to_learn = len(self.recent)
            self.since_s, self._shifted = None, []
            return
        if self.since_s is None:
            self._shifted = self._first_runs(norm)
            self.since_s = self._shifted[0].at_s
        elif confirms:
            self._shifted[-1] = point
        else:
            self._shifted.append(point)
        if len(self._shifted) >= LASTS_RUNS:
            self._baseline, self._follows_shift = self._shifted[:-_RECENT], True
            self.since_s, self._shifted = None, []
            self._fired = dict.fromkeys(self._fired, False)
            self._settle()


def _median_of_3(away: Sequence[float], stray: float, *, fired: bool) -> bool:
    """Whether the last three lie away from the baseline by more than it may stray; each of them, to begin with."""
    last = away[-3:]
    if fired:
        return median(last) > stray / 2
    return len(last) == 3 and median(last) >= stray and min(last) >= stray * _WITNESS  # noqa: PLR2004 - as it says


def _ranks(away: Sequence[float], pairs: float, count: int, *, fired: bool) -> bool:
    """Whether the last five lie away from the baseline, beyond what chance does in 999 of 1000 tests."""
    far = -math.log(1 - _RANKS_RATIO)
    if fired:
        return median(away) > far / 2
    return len(away) == _RECENT and median(away) >= far and pairs <= largest_u(_RECENT, count, _RANKS_P)

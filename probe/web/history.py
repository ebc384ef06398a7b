"""A target's uptime, strips of slices and error budgets over 24 hours, 7 days and 30 days. Pure.

Only the monitor's own canaries count. Time without canaries is unknown: it is drawn as a gap, and counts for neither
uptime nor budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from probe.core import objectives as slo
from probe.core.canary_history import SLOT_S, SLOTS, CanaryHistory, slot_of
from probe.core.durations import format_duration
from probe.core.objectives import Objectives
from probe.core.target_status import TargetStatus
from probe.report.figures import moment, percent

_DAY = 86400 // SLOT_S
# The name of each period, its length, and the length of a slice, in half hours.
PERIODS = (("24 h", _DAY, 1), ("7 d", 7 * _DAY, 4), ("30 d", SLOTS, 16))
_WIDTH, _BAR, _HEIGHT = 4, 3, 24
_MIN_HEIGHT = 0.2  # of a failure, as a share: one in a hundred canaries must be visible
_HOUR_S = 3600.0
_TWO_DAYS = 48.0  # hours
_TIMES = 10  # an overspent budget of more needs no figure
_KNOWN, _LEAST = 2, 100  # half hours, and canaries
FEW = "too little data: it takes an hour and 100 canaries"


@dataclass(frozen=True, slots=True)
class HistoryStrip:
    """Slices as SVG paths, the oldest on the left: good, slow and failed shares, and gaps."""

    paths: tuple[tuple[str, str], ...]
    width: int
    height: int
    words: str


@dataclass(frozen=True, slots=True)
class Period:
    """The last hours or days of a target. `uptime`: the share of canaries that were answered; None: there were none.

    `known`: how long there were canaries, such as "6 h"; "" if in the whole period.
    """

    name: str
    uptime: float | None
    strip: HistoryStrip
    known: str


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """The share of an objective's error budget that is left: 1 is untouched, below 0 overspent. `words`: as text.

    `left` None: there were too few canaries to tell.
    """

    objective: str
    left: float | None
    words: str


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """A target's history on the overview: its last 24 hours, its uptime of 30 days, the smallest budget."""

    day: Period
    month_uptime: float | None
    month_known: str  # as in Period
    budget: tuple[str, float] | None  # the objective, and the share of its budget that is left; None: too little data


def target_history(status: TargetStatus, now_s: float) -> TargetHistory | None:
    """Return the history of a target; None if it gets no canaries."""
    if status.history is None:
        return None
    (day,) = periods(status.history, now_s, 1)
    is_known = _is_known(status.history, _window(status.objectives), now_s)
    left = budgets_left(status.history, status.objectives, now_s) if is_known else {}
    least = min(left.items(), key=lambda one: one[1], default=None)
    month = uptime(status.history, now_s, SLOTS)
    return TargetHistory(day, month, _known(status.history, SLOTS, now_s), least)


def periods(history: CanaryHistory, now_s: float, count: int = len(PERIODS)) -> list[Period]:
    """Return the first `count` periods, the shortest first."""
    return [_period(history, now_s, *each) for each in PERIODS[:count]]


def uptime(history: CanaryHistory, now_s: float, slots: int) -> float | None:
    """Return the share of canaries that were answered in the last half hours; None if there were none."""
    sent = history.total("sent", slots, now_s)
    return 1 - history.total("failed", slots, now_s) / sent if sent else None


def budgets_left(history: CanaryHistory, objectives: Objectives, now_s: float) -> dict[str, float]:
    """Return the share of each error budget that is left, by the canaries in the objectives' window (at most 30 days).

    1 is an untouched budget, below 0 it is overspent. Objectives that have judged no canary are left out.
    """
    slots, left = _window(objectives), {}
    for name, ratio in slo.promised(objectives).items():
        all_name, bad_name = ("sent", "failed") if name == slo.AVAILABILITY else ("judged", name)
        if judged := history.total(all_name, slots, now_s):
            left[name] = 1 - history.total(bad_name, slots, now_s) / judged / (1 - ratio)
    return left


def budgets(history: CanaryHistory, objectives: Objectives, now_s: float) -> list[BudgetLeft]:
    """Return the error budgets that have judged canaries, as text."""
    slots = _window(objectives)
    is_known = _is_known(history, slots, now_s)
    first = next((i for i, count in enumerate(history.last("sent", slots, now_s)) if count), 0)
    since = f", of canaries since {moment((slot_of(now_s) - slots + 1 + first) * SLOT_S, now_s)}" if first else ""
    window = format_duration(slots * SLOT_S)
    return [
        BudgetLeft(name, left, f"{left_words(left)} for {window}{since}") if is_known else BudgetLeft(name, None, FEW)
        for name, left in budgets_left(history, objectives, now_s).items()
    ]


def left_words(left: float) -> str:
    """Return how much of a budget is left, or how far it is overspent: of more than ten times, no figure."""
    if left >= 0:
        return f"{percent(left)} left"
    return f"overspent, {percent(1 - left)} of it used" if 1 - left <= _TIMES else f"overspent, over {_TIMES}x used"


def _is_known(history: CanaryHistory, slots: int, now_s: float) -> bool:
    """Return whether there were canaries for an hour, and a hundred of them: of fewer, each one decides."""
    # The first and the last half hour may be parts of one.
    return history.known_slots(slots, now_s) > _KNOWN and history.total("sent", slots, now_s) >= _LEAST


def _window(objectives: Objectives) -> int:
    """Return the half hours of the objectives' window."""
    return max(min(int(objectives.window_s // SLOT_S), SLOTS), 1)


def _period(history: CanaryHistory, now_s: float, name: str, slots: int, size: int) -> Period:
    sent, failed, slow = (_slices(history.last(each, slots, now_s), size) for each in ("sent", "failed", "slow"))
    known = f"{percent(1 - sum(failed) / sum(sent))} up" if sum(sent) else "unknown"
    bad = sum(bool(count) for count in failed)
    gap = sum(not count for count in sent)
    words = f"last {name}: {known}; failures in {bad} of {len(sent)} slices, {gap} unknown"
    return Period(
        name,
        1 - sum(failed) / sum(sent) if sum(sent) else None,
        HistoryStrip(_paths(sent, failed, slow), len(sent) * _WIDTH, _HEIGHT, words),
        _known(history, slots, now_s),
    )


def _known(history: CanaryHistory, slots: int, now_s: float) -> str:
    known = history.known_slots(slots, now_s)
    if known >= slots - 1:  # the half hour in progress may not have had its first canary yet
        return ""
    hours = known * SLOT_S / _HOUR_S
    return f"{hours:g} h" if hours < _TWO_DAYS else f"{hours / 24:.1f} d"


def _slices(counts: Sequence[int], size: int) -> list[int]:
    return list(counts) if size == 1 else [sum(counts[i : i + size]) for i in range(0, len(counts), size)]


def _paths(sent: Sequence[int], failed: Sequence[int], slow: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return a column for each slice: failed at the bottom, then slow, then good."""
    paths: dict[str, list[str]] = {"good": [], "slow": [], "failed": [], "gap": []}
    for i, (all_of, bad, late) in enumerate(zip(sent, failed, slow, strict=True)):
        if not all_of:
            paths["gap"].append(_bar(i, _HEIGHT - 2, _HEIGHT))
            continue
        bottom = float(_HEIGHT)
        for kind, count in (("failed", bad), ("slow", late)):
            if count:
                top = max(bottom - _HEIGHT * max(count / all_of, _MIN_HEIGHT), 0.0)
                paths[kind].append(_bar(i, top, bottom))
                bottom = top
        if bottom > 0 and bad + late < all_of:
            paths["good"].append(_bar(i, 0, bottom))
    return tuple((kind, "".join(found)) for kind, found in paths.items() if found)


@lru_cache(maxsize=1024)  # most are the same: a whole bar, or a gap
def _bar(i: int, top: float, bottom: float) -> str:
    return f"M{i * _WIDTH} {top:g}h{_BAR}V{bottom:g}h-{_BAR}z"

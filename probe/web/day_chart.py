"""The last 24 hours of TTFT and TPOT as SVG paths, with what they show in words. Pure.

The height is logarithmic: one slow minute of half a minute must not hide what is around the objective.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, log

from probe.core.latency_day import CANARIES, SLOT_S, SLOTS, USERS, LatencyDay, slot_of
from probe.core.objectives import Objectives
from probe.report.figures import short, when

_STEP, _HEIGHT = 4, 90
WIDTH = SLOTS * _STEP
_Height = Callable[[float], float]
_LEAST_RATIO = 4.0  # between the highest and the lowest value of the axis


@dataclass(frozen=True, slots=True)
class DayLine:
    """One figure as an SVG path; `kind`: its class. `now` and `worst`: as text, "-" if unknown."""

    kind: str
    name: str
    path: str
    now: str
    worst: str


@dataclass(frozen=True, slots=True)
class DayChart:
    """A latency in the last 24 hours. `failed`: marks at the top where canaries or users were not answered in time."""

    name: str
    lines: Sequence[DayLine]
    failed: str
    objective_y: float | None
    top: str
    bottom: str
    words: str
    width: int = WIDTH
    height: int = _HEIGHT


def day_charts(day: LatencyDay, objectives: Objectives, now_s: float, *, generates: bool = True) -> list[DayChart]:
    """Return a chart for each latency that has a figure. `generates`: the answers have tokens."""
    charts = (_chart(day, name, objectives, now_s, generates=generates) for name in ("ttft", "tpot"))
    return [chart for chart in charts if chart is not None]


def _chart(day: LatencyDay, name: str, objectives: Objectives, now_s: float, *, generates: bool) -> DayChart | None:
    shown = {(who, q): day.last(who, name, q, now_s) for who in (CANARIES, USERS) for q in (0.5, 0.95)}
    finite = [v for values in shown.values() for v in values if v is not None and 0 < v < inf]
    told = {kind: values for kind, values in shown.items() if any(v is not None for v in values)}
    if not told:
        return None
    limits = objectives.latencies()
    limit = limits.get(name if generates else "e2e")
    objective_s = limit.within_s if limit is not None else None
    known = [*finite, *([objective_s] if objective_s is not None else [])] or [1.0]
    low, high = min(known) / 1.1, max(known) * 1.1
    low = min(low, high / _LEAST_RATIO)

    def y(seconds: float) -> float:
        return _HEIGHT * (1 - log(max(seconds, low) / low) / log(high / low))

    lines = [_line(who, q, values, y, now_s) for (who, q), values in told.items()]
    title = name.upper() if generates else "E2E"
    return DayChart(
        title,
        lines,
        "".join(_marks(shown[CANARIES, 0.95], shown[USERS, 0.95])),
        y(objective_s) if objective_s is not None else None,
        short(high),
        short(low),
        f"{title} in the last 24 hours. " + "; ".join(f"{one.name}: now {one.now}, worst {one.worst}" for one in lines),
    )


def _line(who: str, q: float, values: Sequence[float | None], y: _Height, now_s: float) -> DayLine:
    known = [(value, i) for i, value in enumerate(values) if value is not None]
    newest = next((v for v in reversed(values[-2:]) if v is not None), None)  # the slot under way may have none yet
    worst, at = max(known)
    begun_s = (slot_of(now_s) - SLOTS + 1 + at) * SLOT_S
    return DayLine(
        f"{who} p{q * 100:.0f}",
        f"{who} p{q * 100:.0f}",
        "".join(_path(values, y)),
        _words(newest),
        f"{_words(worst)} at {when(begun_s)[11:16]} UTC",
    )


def _words(seconds: float | None) -> str:
    return "no answer" if seconds == inf else short(seconds)


def _path(values: Sequence[float | None], y: _Height) -> Iterator[str]:
    """Yield the pieces of a line: a value alone is a dot, and what is unknown or infinite a gap."""
    was = False
    for i, value in enumerate(values):
        is_there = value is not None and value < inf
        if value is not None and is_there:
            x = i * _STEP + _STEP / 2
            # A move alone draws nothing: a line of length 0 with round caps is a dot.
            yield f"L{x:g} {y(value):.1f}" if was else f"M{x:g} {y(value):.1f}h0"
        was = is_there


def _marks(*lines: Sequence[float | None]) -> Iterator[str]:
    for i, values in enumerate(zip(*lines, strict=True)):
        if inf in values:
            yield f"M{i * _STEP} 0h{_STEP}v6h-{_STEP}z"

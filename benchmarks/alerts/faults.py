"""The faults of a month: their kinds, the size from which each must be found, and the alerts expected for each.

`plan` draws the start, target, size and duration of each fault from a seed. It also draws smaller faults of the same
kinds, which do not count: an alert for one is not false, and a missing alert is not a miss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alerts import build
from alerts.rules import Alert, FaultKind
from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.rules import seconds_of

MINUTE_S = 60.0


# Faults per month: above the smallest size, and below it.
COUNTS: Mapping[FaultKind, tuple[int, int]] = {
    FaultKind.SLOW: (4, 1),
    FaultKind.QUEUE: (4, 1),
    FaultKind.KV: (3, 1),
    FaultKind.STALL: (3, 1),
    FaultKind.DEAD: (3, 1),
    FaultKind.KNEE: (3, 1),
}
# The smallest size that must be found. A burn-rate alert cannot fire before its share of the budget is spent: for 95 %
# that is 43 minutes of requests that all miss it (2 % of 30 days' budget), of 99.9 % it is 52 seconds.
SIZES: Mapping[FaultKind, str] = {
    FaultKind.SLOW: "9 in 10 requests over the TPOT objective for an hour, or 45 % for 5 hours",
    FaultKind.QUEUE: "9 in 10 requests over the TTFT objective for an hour, or 45 % for 5 hours",
    FaultKind.KV: "KV cache 97 % full, 3 requests waiting and a preemption in 5 s, for 20 minutes",
    FaultKind.STALL: "no token for 6 minutes",
    FaultKind.DEAD: "no connection for 4 minutes",
    FaultKind.KNEE: "10 % less for 6 nights, or 20 % less for 4",
}
# Faults that fail most requests: the burn rate is 100 or more. They must be found within 5 minutes.
FAST = frozenset({FaultKind.STALL, FaultKind.DEAD})


@dataclass(frozen=True, slots=True)
class Fault:
    """`size` is the share of requests that miss (SLOW, QUEUE), preemptions per second (KV) or the capacity lost (KNEE).

    `how` is a variant of the kind: the same fault looks different to a GPU's metrics, or to the load.
    """

    kind: FaultKind
    target: str
    start_s: float
    end_s: float
    size: float
    counts: bool
    how: str = ""


# An alert is false if its target has none of the faults that the alert finds or follows. Why one follows from a fault
# that it need not find: a stalled engine keeps its queue, answers late when it resumes, and makes canaries time out; a
# full cache makes requests wait and slows them down; a queue comes from load above the capacity or from slow decoding;
# a server that decodes slowly holds its requests longer; after a shift the old forecast no longer fits, and the load at
# noon may exceed the new capacity.
ALERTS: Mapping[str, Alert] = {alert.name: alert for alert in build.alerts()}

# These are also true without a fault, when users take this share of the true capacity for a quarter of an
# hour: a busy day of a server that is a little small. They are counted apart.
WHEN_BUSY = frozenset({"KneewatchHeadroomLow"})
BUSY_SHARE, BUSY_S = 0.85, 900.0


def aftermath_s(kind: FaultKind, short: str) -> float:
    """Return how long after a fault an alert may still start without being false.

    Of a burn-rate alert for its longest short window (`short`, such as 1h): until then the fault is in it. Of a knee,
    until the five runs that are judged are all of after the repair. And a quarter of an hour for what waits to be sure.
    """
    return 5 * DAY_S if kind is FaultKind.KNEE else seconds_of(short) + 15 * MINUTE_S


# The minimum distance between faults of a target, so that each alert has one cause. Knee shifts keep it only among
# themselves and may overlap other faults.
_TRIES = 10_000
_APART_S = 10 * HOUR_S
_KNEE_APART_S = 7 * DAY_S
_HOWS: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.SLOW: ("throttled GPU", "a neighbour on the GPU", "flags"),
    FaultKind.QUEUE: ("more users than it takes", "a small batch"),
    FaultKind.STALL: ("collective hangs",),
    FaultKind.DEAD: ("process", "GPU lost"),
}


def plan(seed: int, targets: Sequence[str], start_s: float, end_s: float, runs_s: Sequence[float]) -> list[Fault]:
    """Return the month's faults in order. None is active during a capacity run (`runs_s`), which would be refused."""
    rng = np.random.default_rng([seed, 1])
    found: list[Fault] = []
    for kind, (large, small) in COUNTS.items():
        for index in range(large + small):
            drawn = (
                _draw(rng, kind, targets, (start_s, end_s), large=index if index < large else None)
                for _ in range(_TRIES)
            )
            fault = next((fault for fault in drawn if _fits(fault, found, runs_s)), None)
            if fault is None:
                raise ValueError(f"no room for another fault: {kind}")
            found.append(fault)
    return sorted(found, key=lambda fault: fault.start_s)


def _draw(
    rng: np.random.Generator, kind: FaultKind, targets: Sequence[str], within: tuple[float, float], *, large: int | None
) -> Fault:
    """Draw a fault. `large` is its index among the faults that count, None for one that does not."""
    size, seconds = _large(rng, kind, large) if large is not None else _small(rng, kind)
    start_s = float(rng.uniform(within[0] + HOUR_S, within[1] - seconds - HOUR_S))
    hows = _HOWS.get(kind, ("",))
    how = hows[int(rng.integers(len(hows)))]
    return Fault(kind, str(rng.choice(targets)), start_s, start_s + seconds, size, large is not None, how)


def _fits(fault: Fault, others: Sequence[Fault], runs_s: Sequence[float]) -> bool:
    knee = fault.kind is FaultKind.KNEE
    beside = [o for o in others if o.target == fault.target and (o.kind is FaultKind.KNEE) == knee]
    apart = _KNEE_APART_S if knee else _APART_S
    if any(fault.start_s < o.end_s + apart and o.start_s < fault.end_s + apart for o in beside):
        return False
    return knee or not any(fault.start_s - HOUR_S < run < fault.end_s + HOUR_S for run in runs_s)


# How large and for how long: what must be found, of a first and of every second one, and what may go unseen. Sizes
# as in Fault; durations in seconds, those of a knee in whole days.
_Range = tuple[float, float]
_LATE = ((0.9, 1.0), (HOUR_S, 2.5 * HOUR_S)), ((0.45, 0.7), (5 * HOUR_S, 8 * HOUR_S)), ((0.2, 0.35), (600.0, 1500.0))
_DRAWN: Mapping[FaultKind, tuple[tuple[_Range, _Range], tuple[_Range, _Range], tuple[_Range, _Range]]] = {
    FaultKind.SLOW: _LATE,
    FaultKind.QUEUE: _LATE,
    FaultKind.KV: (((0.2, 3.0), (1200.0, 5400.0)), ((0.2, 3.0), (1200.0, 5400.0)), ((0.1, 0.5), (120.0, 240.0))),
    FaultKind.STALL: (((1.0, 1.0), (360.0, 2400.0)), ((1.0, 1.0), (360.0, 2400.0)), ((1.0, 1.0), (20.0, 45.0))),
    FaultKind.DEAD: (((1.0, 1.0), (240.0, 2700.0)), ((1.0, 1.0), (240.0, 2700.0)), ((1.0, 1.0), (20.0, 60.0))),
    FaultKind.KNEE: (
        ((0.1, 0.19), (6 * DAY_S, 8 * DAY_S)),
        ((0.2, 0.35), (4 * DAY_S, 6 * DAY_S)),
        ((0.03, 0.05), (2 * DAY_S, 3 * DAY_S)),
    ),
}


def _large(rng: np.random.Generator, kind: FaultKind, index: int) -> tuple[float, float]:
    return _between(rng, kind, _DRAWN[kind][index % 2])


def _small(rng: np.random.Generator, kind: FaultKind) -> tuple[float, float]:
    return _between(rng, kind, _DRAWN[kind][2])


def _between(rng: np.random.Generator, kind: FaultKind, ranges: tuple[_Range, _Range]) -> tuple[float, float]:
    size, seconds = (float(rng.uniform(*each)) for each in ranges)
    return size, round(seconds / DAY_S) * DAY_S if kind is FaultKind.KNEE else seconds

"""The faults of a month: their kinds, the size from which each must be found, and the alerts expected for each.

`plan` draws the start, target, size and duration of each fault from a seed. It also draws smaller faults of the same
kinds, which do not count: an alert for one is not false, and a missing alert is not a miss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from alerts.windows import DAY_S, HOUR_S
from benchmarks.alerts.rules import seconds_of

MINUTE_S = 60.0


class Kind(StrEnum):
    """The kinds of fault."""

    SLOW = "slow decode"
    QUEUE = "queueing"
    KV = "KV exhaustion"
    STALL = "stalled engine"
    DEAD = "dead server"
    KNEE = "knee shift"


# Faults per month: above the smallest size, and below it.
COUNTS: Mapping[Kind, tuple[int, int]] = {
    Kind.SLOW: (4, 1),
    Kind.QUEUE: (4, 1),
    Kind.KV: (3, 1),
    Kind.STALL: (3, 1),
    Kind.DEAD: (3, 1),
    Kind.KNEE: (3, 1),
}
# The smallest size that must be found. A burn-rate alert cannot fire before its share of the budget is spent: for 95 %
# that is 43 minutes of requests that all miss it (2 % of 30 days' budget), of 99.9 % it is 52 seconds.
SIZES: Mapping[Kind, str] = {
    Kind.SLOW: "9 in 10 requests over the TPOT objective for an hour, or 45 % for 5 hours",
    Kind.QUEUE: "9 in 10 requests over the TTFT objective for an hour, or 45 % for 5 hours",
    Kind.KV: "KV cache 97 % full, 3 requests waiting and a preemption in 5 s, for 20 minutes",
    Kind.STALL: "no token for 6 minutes",
    Kind.DEAD: "no connection for 4 minutes",
    Kind.KNEE: "10 % less for 6 nights, or 20 % less for 4",
}
# Faults that fail most requests: the burn rate is 100 or more. They must be found within 5 minutes.
FAST = frozenset({Kind.STALL, Kind.DEAD})


@dataclass(frozen=True, slots=True)
class Fault:
    """`size` is the share of requests that miss (SLOW, QUEUE), preemptions per second (KV) or the capacity lost (KNEE).

    `how` is a variant of the kind: the same fault looks different to a GPU's metrics, or to the load.
    """

    kind: Kind
    target: str
    start_s: float
    end_s: float
    size: float
    counts: bool
    how: str = ""


@dataclass(frozen=True, slots=True)
class Speaks:
    """The kinds of fault that an alert must find, and the other kinds that may also make it fire."""

    finds: frozenset[Kind]
    also: frozenset[Kind] = field(default_factory=frozenset)


def _speaks(*finds: Kind, also: Sequence[Kind] = ()) -> Speaks:
    return Speaks(frozenset(finds), frozenset(also))


_SLOW, _QUEUE, _KV, _STALL, _DEAD, _KNEE = Kind
# An alert is false if its target has no fault of the listed kinds. The reasons for `also`: a stalled engine keeps its
# queue, answers late when it resumes, and makes canaries time out; a full cache makes requests wait and slows them
# down; a queue comes from load above the capacity or from slow decoding; a server that decodes slowly holds its
# requests longer; after a shift the old forecast no longer fits, and the load at noon may exceed the new capacity.
ALERTS: Mapping[str, Speaks] = {
    "KneewatchAvailabilityBurn": _speaks(_DEAD, _STALL, also=[_QUEUE, _KV]),
    "KneewatchTTFTBurn": _speaks(_QUEUE, _KV, also=[_STALL, _KNEE]),
    "KneewatchTPOTBurn": _speaks(_SLOW, _KV, also=[_STALL]),
    "KneewatchE2EBurn": _speaks(),
    "KneewatchITLBurn": _speaks(),
    "KneewatchKneeDropped": _speaks(_KNEE),
    "KneewatchKneeDown": _speaks(_KNEE),
    "KneewatchCapacityStale": _speaks(),
    "KneewatchHeadroomLow": _speaks(also=[_QUEUE, _KV, _KNEE]),
    "KneewatchForecastDisagrees": _speaks(also=[_KNEE, _SLOW]),
    "KneewatchKVCachePressure": _speaks(_KV, also=[_KNEE]),
    "KneewatchPreemptionStorm": _speaks(_KV, also=[_KNEE]),
    "KneewatchQueueGrowth": _speaks(_QUEUE, also=[_KV, _STALL, _KNEE]),
    "KneewatchEngineStalled": _speaks(_STALL),
    "KneewatchPrefixHitCollapse": _speaks(),
    "KneewatchKVTransferFailing": _speaks(),
    "KneewatchRolesUnbalanced": _speaks(),
    "KneewatchUserMixMoved": _speaks(),
    "KneewatchGPUXid": _speaks(also=[_DEAD]),
    "KneewatchGPUThrottling": _speaks(_SLOW),
    "KneewatchGPUMemoryErrors": _speaks(),
    "KneewatchGPUMissing": _speaks(also=[_DEAD]),
    "KneewatchTTFTCollapse": _speaks(also=[_QUEUE, _KV, _STALL]),
    "KneewatchTargetDown": _speaks(also=[_DEAD, _STALL]),
    "KneewatchCorruptedRequests": _speaks(),
    "KneewatchInstanceGone": _speaks(),
    "KneewatchProbeGone": _speaks(),
    "KneewatchProbeSilent": _speaks(),
    "KneewatchServerMetricsUnreadable": _speaks(),
    "KneewatchClientBound": _speaks(),
    "KneewatchStreamHeldBack": _speaks(),
    "KneewatchTaskFailing": _speaks(also=[_STALL]),
    "KneewatchConfigRefused": _speaks(),
    "KneewatchTargetVanished": _speaks(),
    "KneewatchShardsMismatch": _speaks(),
    "KneewatchDiscoveryFailing": _speaks(),
    "KneewatchNothingFound": _speaks(),
}

# These are also true without a fault, when users take this share of the true capacity for a quarter of an
# hour: a busy day of a server that is a little small. They are counted apart.
WHEN_BUSY = frozenset({"KneewatchHeadroomLow"})
BUSY_SHARE, BUSY_S = 0.85, 900.0


def aftermath_s(kind: Kind, short: str) -> float:
    """Return how long after a fault an alert may still start without being false.

    Of a burn-rate alert for its longest short window (`short`, such as 1h): until then the fault is in it. Of a knee,
    until the five runs that are judged are all of after the repair. And a quarter of an hour for what waits to be sure.
    """
    return 5 * DAY_S if kind is Kind.KNEE else seconds_of(short) + 15 * MINUTE_S


# The minimum distance between faults of a target, so that each alert has one cause. Knee shifts keep it only among
# themselves and may overlap other faults.
_TRIES = 10_000
_APART_S = 10 * HOUR_S
_KNEE_APART_S = 7 * DAY_S
_HOWS: Mapping[Kind, tuple[str, ...]] = {
    Kind.SLOW: ("throttled GPU", "a neighbour on the GPU", "flags"),
    Kind.QUEUE: ("more users than it takes", "a small batch"),
    Kind.STALL: ("collective hangs",),
    Kind.DEAD: ("process", "GPU lost"),
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
    rng: np.random.Generator, kind: Kind, targets: Sequence[str], within: tuple[float, float], *, large: int | None
) -> Fault:
    """Draw a fault. `large` is its index among the faults that count, None for one that does not."""
    size, seconds = _large(rng, kind, large) if large is not None else _small(rng, kind)
    start_s = float(rng.uniform(within[0] + HOUR_S, within[1] - seconds - HOUR_S))
    hows = _HOWS.get(kind, ("",))
    how = hows[int(rng.integers(len(hows)))]
    return Fault(kind, str(rng.choice(targets)), start_s, start_s + seconds, size, large is not None, how)


def _fits(fault: Fault, others: Sequence[Fault], runs_s: Sequence[float]) -> bool:
    knee = fault.kind is Kind.KNEE
    beside = [o for o in others if o.target == fault.target and (o.kind is Kind.KNEE) == knee]
    apart = _KNEE_APART_S if knee else _APART_S
    if any(fault.start_s < o.end_s + apart and o.start_s < fault.end_s + apart for o in beside):
        return False
    return knee or not any(fault.start_s - HOUR_S < run < fault.end_s + HOUR_S for run in runs_s)


# How large and for how long: what must be found, of a first and of every second one, and what may go unseen. Sizes
# as in Fault; durations in seconds, those of a knee in whole days.
_Range = tuple[float, float]
_LATE = ((0.9, 1.0), (HOUR_S, 2.5 * HOUR_S)), ((0.45, 0.7), (5 * HOUR_S, 8 * HOUR_S)), ((0.2, 0.35), (600.0, 1500.0))
_DRAWN: Mapping[Kind, tuple[tuple[_Range, _Range], tuple[_Range, _Range], tuple[_Range, _Range]]] = {
    Kind.SLOW: _LATE,
    Kind.QUEUE: _LATE,
    Kind.KV: (((0.2, 3.0), (1200.0, 5400.0)), ((0.2, 3.0), (1200.0, 5400.0)), ((0.1, 0.5), (120.0, 240.0))),
    Kind.STALL: (((1.0, 1.0), (360.0, 2400.0)), ((1.0, 1.0), (360.0, 2400.0)), ((1.0, 1.0), (20.0, 45.0))),
    Kind.DEAD: (((1.0, 1.0), (240.0, 2700.0)), ((1.0, 1.0), (240.0, 2700.0)), ((1.0, 1.0), (20.0, 60.0))),
    Kind.KNEE: (
        ((0.1, 0.19), (6 * DAY_S, 8 * DAY_S)),
        ((0.2, 0.35), (4 * DAY_S, 6 * DAY_S)),
        ((0.03, 0.05), (2 * DAY_S, 3 * DAY_S)),
    ),
}


def _large(rng: np.random.Generator, kind: Kind, index: int) -> tuple[float, float]:
    return _between(rng, kind, _DRAWN[kind][index % 2])


def _small(rng: np.random.Generator, kind: Kind) -> tuple[float, float]:
    return _between(rng, kind, _DRAWN[kind][2])


def _between(rng: np.random.Generator, kind: Kind, ranges: tuple[_Range, _Range]) -> tuple[float, float]:
    size, seconds = (float(rng.uniform(*each)) for each in ranges)
    return size, round(seconds / DAY_S) * DAY_S if kind is Kind.KNEE else seconds

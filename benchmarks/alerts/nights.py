"""The capacity runs of a target. Samples are random; verdicts are those of probe/capacity/trend/change_detection.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from probe.capacity.trend.change_detection import detect_shift, needs_confirmation
from probe.config.capacity import CapacityConfig
from probe.core.shift import CapacitySample, Shift
from probe.runtime.cron import cron_trigger

NOISE = 0.03  # standard deviation of a run's logarithm
_BAD_NIGHT = 0.02  # share of runs disturbed by other work on the machine: 10 to 30 % lower
_NOT_RUN = 0.02  # share of nights in which the run is refused because of a lock or a rollout
_GUARDED = 0.02  # share of nights in which the guard ends the run before a knee is found
_EMPIRICAL = 0.05
_TAKES_S = 540.0
_CONFIRMED_IN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Run:
    """A capacity run: its times, its outcome and the values published from then on. `figure` is None without a knee."""

    start_s: float
    end_s: float
    outcome: str
    figure: CapacitySample | None = None
    shift: Shift | None = None


def starts(capacity: CapacityConfig, start_s: float, end_s: float) -> list[float]:
    """Return when the schedule starts a run."""
    trigger = cron_trigger(capacity.schedule.cron, capacity.schedule.timezone)
    zone = ZoneInfo(capacity.schedule.timezone)
    found: list[float] = []
    at = datetime.fromtimestamp(start_s, zone)
    while True:
        due = trigger.get_next_fire_time(None, at)
        if due is None or due.timestamp() >= end_s:
            return found
        found.append(due.timestamp())
        at = due.astimezone(UTC) + timedelta(seconds=1)


def runs(rng: np.random.Generator, at: Sequence[float], rps: Callable[[float], float]) -> list[Run]:
    """Return runs at these times on a server of capacity `rps(time)`.

    A drop is followed by a second run at once, and by a third an hour later.
    """
    history: list[CapacitySample] = []
    found: list[Run] = []
    for start_s in at:
        luck = rng.random()
        if luck < _NOT_RUN + _GUARDED:
            found.append(Run(start_s, start_s + _TAKES_S / 3, "refused" if luck < _NOT_RUN else "guard"))
            continue
        one = _run(rng, start_s, rps, history)
        found.append(one)
        if needs_confirmation(history):
            found.append(_run(rng, one.end_s + 30, rps, history, confirms=f"{start_s}"))
            if needs_confirmation(history):
                found.append(_run(rng, found[-1].end_s + _CONFIRMED_IN_S, rps, history))
    return found


def _run(
    rng: np.random.Generator,
    start_s: float,
    rps: Callable[[float], float],
    history: list[CapacitySample],
    confirms: str | None = None,
) -> Run:
    end_s = start_s + _TAKES_S * float(rng.uniform(0.8, 1.2))
    bad = float(rng.uniform(0.7, 0.9)) if rng.random() < _BAD_NIGHT else 1.0
    measured = rps(start_s) * bad * float(np.exp(rng.normal(0, NOISE)))
    mode = "empirical" if rng.random() < _EMPIRICAL else "verified"
    figure = CapacitySample(end_s, measured, measured / 1.05, measured * 1.05, mode, "the same", f"{start_s}", confirms)
    history.append(figure)
    return Run(start_s, end_s, "done", figure, detect_shift(history))

"""The true capacity of a recorded server, from its steps of fixed rates around the knee. Pure.

Each step has a rate, that at which requests came (a Poisson process brings more or fewer than were planned), and a
score, the worst of its latencies over what was promised, at the objective's own percentile: above 1 an objective is
broken. The truth is the rate where a line through the scores, both in logarithms, crosses 1; what it may be off by
comes from drawing steps again (bootstrap: Efron, 1979). A machine's drift is in it.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.real.recording import Recording, Step
from probe.core.objectives import LATENCIES, Objectives
from probe.core.percentiles import percentile
from probe.core.request import Outcome

NEAR = 0.7  # of the highest rate of its round: a step that may show where the knee is
_MOST = 3.0  # a score: a queue without an end is no further from the knee for it
_DRAWS = 400


@dataclass(frozen=True, slots=True)
class Truth:
    """Requests/s, with the interval that nine tenths of the draws are in, and what broke first. Where no step broke
    anything, the highest rate that held: the capacity is at least that, and `upper` and `limiting` are None.
    """

    rps: float
    lower: float
    upper: float | None
    limiting: str | None


@dataclass(frozen=True, slots=True)
class Scored:
    """One step: the rate of arrivals in requests/s, and each latency over its objective."""

    rate_rps: float
    over: dict[str, float]

    @property
    def score(self) -> float:
        return max(self.over.values())


def light(recording: Recording) -> list[list[Step]]:
    """Return the steps far below the knee, round by round."""
    return [[step for step in steps if not _near(step, steps)] for steps in _rounds(recording)]


def scored(recording: Recording) -> list[Scored]:
    """Return the steps near the knee, in the order of their times."""
    near = [step for steps in _rounds(recording) for step in steps if _near(step, steps)]
    return [Scored(_came(step), _over(step, recording.objectives)) for step in near]


def truth(recording: Recording) -> Truth:
    """Return the capacity. ValueError if no step held."""
    steps = scored(recording)
    if all(s.score > 1 for s in steps):
        raise ValueError(f"{recording.name}: no step near the knee held")
    if all(s.score <= 1 for s in steps):
        most = max(s.rate_rps for s in steps)
        return Truth(most, most, None, None)
    source = random.Random(1)  # noqa: S311 - draws, not secrets
    draws = sorted(_crossing([source.choice(steps) for _ in steps]) for _ in range(_DRAWS))
    kept = [rate for rate in draws if math.isfinite(rate)]
    at_knee = min(steps, key=lambda s: abs(math.log(s.score)))
    return Truth(
        rps=_crossing(steps),
        lower=kept[len(kept) // 20],
        upper=kept[-1 - len(kept) // 20],
        limiting=max(at_knee.over, key=lambda name: at_knee.over[name]),
    )


def _rounds(recording: Recording) -> list[list[Step]]:
    return [taken.steps for taken in recording.taken if taken.name.startswith("round")]


def _near(step: Step, steps: Sequence[Step]) -> bool:
    return _rate(step) > NEAR * max(map(_rate, steps))


def _rate(step: Step) -> float:
    arrivals = step.run.plan.arrivals
    assert arrivals is not None
    return arrivals.rate_rps


def _came(step: Step) -> float:
    begin, end = step.run.window_ns
    return sum(begin <= record.scheduled_ns <= end for record in step.run.records) / ((end - begin) * 1e-9)


def _over(step: Step, objectives: Objectives) -> dict[str, float]:
    begin, end = step.run.window_ns
    judged = [r for r in step.run.records if begin <= r.scheduled_ns <= end and r.outcome is Outcome.OK]
    found = {}
    for name, objective in objectives.latencies().items():
        measured = sorted(value for r in judged if (value := LATENCIES[name].of_request(r)) is not None)
        found[name] = percentile(measured, objective.ratio) / objective.within_s
    return found


def _crossing(steps: Sequence[Scored]) -> float:
    """Return where the least-squares line of log score over log rate is 0; infinite if it does not rise."""
    points = [(math.log(s.rate_rps), math.log(min(s.score, _MOST))) for s in steps]
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    spread = sum((a - x) ** 2 for a, _ in points)
    slope = sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0
    return math.exp(x - y / slope) if slope > 0 else math.inf

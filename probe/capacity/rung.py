"""One load that a search tried, and what can be read from it. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from probe import latency
from probe.capacity.front import Delay
from probe.capacity.twin import Predicted, Sent
from probe.capacity.windows import Window
from probe.distribution import percentile
from probe.records import Objectives, Outcome, RequestRecord, StepRun, StepSummary
from probe.summary import TOO_FEW

FEW = 8  # requests, that tell something
# A rung is steady where no more are in flight at its end than at its beginning, but for chance.
_GROWTH = 1.3
_LATENCIES = {"ttft": latency.ttft_s, "tpot": latency.tpot_s}
_Z = 1.645
# Requests that wait in one queue are late together: their percentiles scatter more than those of as many by themselves.
_TOGETHER = 1.5


@dataclass(frozen=True, slots=True)
class Tail:
    """A latency at its objective's percentile, in seconds, and the standard error of its logarithm."""

    seconds: float
    error: float


@dataclass(frozen=True, slots=True)
class Rung:
    """One load that was tried. Rates in requests/s of all traffic, as if all were of the workload: `came_rps`, and
    `asked_rps`, that it was planned for; by chance a Poisson process brings more or fewer.
    """

    came_rps: float
    asked_rps: float
    step: StepSummary
    run: StepRun
    tripped: str | None
    steady: bool = True
    predicted: Predicted | None = None
    delay: Delay | None = None
    tails: Mapping[str, Tail] = field(default_factory=dict)  # by objective, where there are latencies
    part: int = -1  # of what the model learnt from

    @property
    def held(self) -> bool:
        """Also one with too few requests to be judged, as long as nothing went wrong in it."""
        return self.tripped is None and not self.step.broken and self.step.reason in (None, TOO_FEW)

    @property
    def telling(self) -> bool:
        """Whether its latencies say anything."""
        return self.step.valid or (self.step.reason == TOO_FEW and self.step.requests.ok >= FEW)

    def first_tokens(self) -> list[tuple[int, float]]:
        """Of the requests that are judged, in the order they were due: prompt tokens, and TTFT in seconds (0 where
        there is none).
        """
        judged = _judged(self.run)
        return [(r.prompt_tokens or r.spec.prompt_tokens, latency.ttft_s(r) or 0.0) for r in judged]


def _judged(run: StepRun) -> list[RequestRecord]:
    """Answered, and due in the window; in the order they were due."""
    begin, end = run.window_ns
    judged = (r for r in run.records if r.outcome is Outcome.OK and begin <= r.scheduled_ns <= end)
    return sorted(judged, key=lambda r: r.scheduled_ns)


def tails(run: StepRun, objectives: Objectives) -> dict[str, Tail]:
    """The latencies of a step that its objectives judge."""
    judged = _judged(run)
    found = {}
    for name, objective in objectives.latencies().items():
        values = sorted(value for r in judged if (value := _LATENCIES[name](r)) is not None)
        if len(values) >= FEW:
            found[name] = Tail(percentile(values, objective.ratio), _tail_error(values, objective.ratio))
    return found


def _tail_error(values: Sequence[float], ratio: float) -> float:
    """From the order statistics that hold the percentile with 90 % confidence; the upper one may be beyond the last."""
    last = len(values) - 1
    at, away = ratio * last, _Z * math.sqrt(len(values) * ratio * (1 - ratio))
    middle, low = values[round(at)], values[max(round(at - away), 0)]
    high = values[min(round(at + away), last)]
    below = math.log(middle / low) if low > 0 else math.inf
    above = math.log(high / middle) if middle > 0 else math.inf
    return _TOGETHER * max(below, above) / _Z


def sent(run: StepRun) -> tuple[Sent, ...]:
    """The requests of a step, in the order of their times."""
    if not run.records:
        return ()
    begin, (window, end) = min(r.scheduled_ns for r in run.records), run.window_ns
    return tuple(
        Sent(
            at_s=(r.scheduled_ns - begin) * 1e-9,
            prompt_tokens=r.prompt_tokens or r.spec.prompt_tokens,
            output_tokens=r.spec.output_tokens,
            judged=r.outcome is Outcome.OK and window <= r.scheduled_ns <= end,
        )
        for r in sorted(run.records, key=lambda r: r.scheduled_ns)
    )


def steady(inside: Sequence[Window]) -> bool:
    """Whether the number in flight had stopped growing."""
    third = len(inside) // 3
    if not third:
        return True
    before, after = (fmean(w.running + w.waiting for w in part) for part in (inside[:third], inside[-third:]))
    return after < _GROWTH * before + 2 * math.sqrt(before)


def delay(step: StepSummary, seen: Window) -> Delay | None:
    """By how much first tokens came later to us than the server says that it gave them, ours and live ones."""
    if step.requests.ok < FEW or not seen.prompts or step.ttft_s.mean is None or step.ttft_s.p95 is None:
        return None
    late_s = step.ttft_s.mean - seen.ttft_sum_s / seen.prompts
    # Those that are only in one of the means scatter; a quarter of p95 is about the sd of a latency.
    others = max(seen.prompts - step.requests.ok, 1.0) / seen.prompts
    error_s = step.ttft_s.p95 / 4 * math.sqrt(2 * others / step.requests.ok)
    return Delay(seen.prompts / seen.seconds, late_s, step.requests.ok, error_s)

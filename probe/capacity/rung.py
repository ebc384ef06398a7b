"""One load that a search tried, and what can be read from it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from probe.capacity.front import Delay
from probe.capacity.twin import Predicted, Sent
from probe.capacity.windows import Window
from probe.records import Outcome, StepRun, StepSummary
from probe.summary import TOO_FEW

FEW = 8  # requests, that tell something
# A rung is steady where no more are in flight at its end than at its beginning, but for chance.
_GROWTH = 1.3


@dataclass(frozen=True, slots=True)
class Rung:
    """One load that was tried. Rates in requests/s: `planned_rps` of all traffic, as if all were of the workload."""

    planned_rps: float
    own_rps: float
    step: StepSummary
    run: StepRun
    tripped: str | None
    steady: bool = True
    predicted: Predicted | None = None
    delay: Delay | None = None

    @property
    def held(self) -> bool:
        """Also one with too few requests to be judged, as long as nothing went wrong in it."""
        return self.tripped is None and not self.step.broken and self.step.reason in (None, TOO_FEW)

    @property
    def telling(self) -> bool:
        """Whether its latencies say anything."""
        return self.step.valid or (self.step.reason == TOO_FEW and self.step.requests.ok >= FEW)


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

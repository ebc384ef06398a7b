"""One load that a search tried, and what can be read from it. Pure."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from probe.capacity.model.front_end_delay import DelaySample
from probe.capacity.model.replay import SentRequest, UserArrivals
from probe.capacity.model.twin import Prediction
from probe.capacity.model.windows import MetricsWindow
from probe.core import latency
from probe.core.objectives import Objectives
from probe.core.percentiles import percentile
from probe.core.request import Outcome, RequestRecord
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepRun, StepSummary
from probe.load.step_summary import TOO_FEW
from probe.observe.guard import PRECAUTIONS

FEW = 8  # requests, that tell something
# A rung is steady where no more are in flight at its end than at its beginning, but for chance.
_GROWTH = 1.3


@dataclass(frozen=True, slots=True)
class Trial:
    """One load that was tried: requests/s of all traffic that came, as if all were of the workload, and what came of
    it.
    """

    came_rps: float
    step: StepSummary
    run: StepRun
    tripped: str | None
    steady: bool = True
    predicted: Prediction | None = None
    delay: DelaySample | None = None
    tails: Mapping[str, float] = field(default_factory=dict)  # latencies at their objectives' percentiles, in seconds
    part: int = -1  # of what the model learnt from
    came: Sequence[UserArrivals] = ()  # live users meanwhile
    on_twin_too: bool = False  # the guard may have ended it on the twin, with the same requests

    @property
    def held(self) -> bool:
        """Also one with too few requests to be judged, as long as nothing went wrong in it."""
        return self.tripped is None and not self.step.broken and self.step.reason in (None, TOO_FEW)

    @property
    def broke(self) -> bool:
        """Not one that our budget or a person ended: that is neither."""
        return self.tripped is not None or bool(self.step.broken)

    @property
    def precaution(self) -> bool:
        """Whether the guard ended it before an objective of ours was broken."""
        return self.tripped in PRECAUTIONS

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


def tails(run: StepRun, objectives: Objectives) -> dict[str, float]:
    """The latencies of a step at their objectives' percentiles, in seconds."""
    judged = _judged(run)
    found = {}
    for name, objective in objectives.latencies().items():
        values = sorted(value for r in judged if (value := latency.PROMISED[name](r)) is not None)
        if len(values) >= FEW:
            found[name] = percentile(values, objective.ratio)
    return found


def sent(run: StepRun) -> tuple[SentRequest, ...]:
    """The requests of a step, in the order of their times."""
    if not run.records:
        return ()
    begin, (window, end) = min(r.scheduled_ns for r in run.records), run.window_ns
    return tuple(
        SentRequest(
            at_s=(r.scheduled_ns - begin) * 1e-9,
            prompt_tokens=r.prompt_tokens or r.spec.prompt_tokens,
            output_tokens=r.spec.output_tokens,
            judged=r.outcome is Outcome.OK and window <= r.scheduled_ns <= end,
        )
        for r in sorted(run.records, key=lambda r: r.scheduled_ns)
    )


def came(run: StepRun, readings: Sequence[ServerSnapshot]) -> tuple[UserArrivals, ...]:
    """Live users in a step, as far as readings of the metrics tell: first tokens that were not ours, on average so much
    later than the requests.
    """
    if not run.records:
        return ()
    firsts = sorted(r.events.at_ns[r.events.first_visible] for r in run.records if r.events.first_visible is not None)
    counted = [(r.at_ns, r.histograms["ttft"]) for r in readings if "ttft" in r.histograms]
    if not counted or not all(math.isfinite(value) for _, ttft in counted for value in (ttft.count, ttft.sum)):
        return ()
    (_, first), (_, last) = counted[0], counted[-1]
    late_s = (last.sum - first.sum) / (last.count - first.count) if last.count > first.count else 0.0
    zero_ns = min(r.scheduled_ns for r in run.records) + round(late_s * 1e9)
    found: list[UserArrivals] = []
    others = placed = 0.0
    for (from_ns, before), (to_ns, after) in pairwise(counted):
        if after.count < before.count:
            return ()  # it was restarted
        others += after.count - before.count - (bisect_right(firsts, to_ns) - bisect_right(firsts, from_ns))
        count = max(round(others - placed), 0)
        placed += count
        found.append(UserArrivals((from_ns - zero_ns) * 1e-9, (to_ns - zero_ns) * 1e-9, count))
    return tuple(found)


def steady(inside: Sequence[MetricsWindow]) -> bool:
    """Whether the number in flight had stopped growing."""
    third = len(inside) // 3
    if not third:
        return True
    before, after = (fmean(w.running + w.waiting for w in part) for part in (inside[:third], inside[-third:]))
    return after < _GROWTH * before + 2 * math.sqrt(before)


def delay(step: StepSummary, seen: MetricsWindow) -> DelaySample | None:
    """By how much first tokens came later to us than the server says that it gave them, ours and live ones."""
    if step.requests.ok < FEW or not seen.prompts or step.ttft_s.mean is None or step.ttft_s.p95 is None:
        return None
    late_s = step.ttft_s.mean - seen.ttft_sum_s / seen.prompts
    # Those that are only in one of the means scatter; a quarter of p95 is about the sd of a latency.
    others = max(seen.prompts - step.requests.ok, 1.0) / seen.prompts
    error_s = step.ttft_s.p95 / 4 * math.sqrt(2 * others / step.requests.ok)
    return DelaySample(seen.prompts / seen.seconds, late_s, step.requests.ok, error_s)

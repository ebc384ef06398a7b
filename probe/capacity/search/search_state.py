"""What is understood of a server in a search: the twin, how it compares with each load that was tried, and the knee
that follows. Pure.

    live traffic, rungs --> Model, front --> Twin --> replays of the rungs --> corrections --> forecast --> knee
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from probe.capacity.model.bottleneck import Bottleneck, bottleneck
from probe.capacity.model.forecast import extrapolated
from probe.capacity.model.front_end_delay import NONE, FrontEndEstimate, fronts, likeliest
from probe.capacity.model.hints import Hints
from probe.capacity.model.replay import ends_it, replay, replayed
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.twin import NO_FRONT, Prediction, Twin, capacity, predict
from probe.capacity.model.windows import total, windows
from probe.capacity.search.calibrate import correction, left_over
from probe.capacity.search.infer_limits import chunk_tokens, front_end, pair_s
from probe.capacity.search.trial import Trial, came, delay, sent, steady, tails
from probe.core.objectives import Objectives
from probe.core.snapshot import ServerSnapshot
from probe.core.step import StepRun, StepSummary
from probe.core.workload import Workload
from probe.observe.guard import GuardLimits
from probe.simulator.cost import scaled
from probe.simulator.simulated_request import SimulatedRequest

# A rung that held at so much of the forecast verifies it, and tells of all that happens at the knee.
REACHED = 0.86
FLOOR = 0.035  # a standard deviation of a capacity that no part shows
TOP = 0.95  # of the forecast: near enough that what lies beyond is no surprise
_LATENCY = 0.012  # a standard deviation of a latency of the twin, relative
_BELOW, _LEAST_SLOPE = 0.85, 0.05  # of the knee, where the latencies' rise is taken from; and what it is at least
LITTLE = 0.07  # of a rate
_SETTLE_RESIDENCES = 3.0
_NEGLIGIBLE_SHARE = 0.02  # of the TTFT objective: delays below it are noise
_Z = 1.64  # standard deviations to each side
_FEWEST_PARTS, _UNKNOWN = 3, 0.2  # with fewer, their spread says nothing of how sure a capacity is
_QUICK = 1200  # requests of a simulation that is repeated for the spread
# Requests of the simulation that the next rung is from, and of those that the knee is from.
_ON_THE_WAY, _FINAL = 2000, 10_000
_FRONT_REPLAYS = 3
_TOLD = 3  # of the highest rungs: they tell what attention costs


@dataclass(frozen=True, slots=True)
class KneeEstimate:
    """Where the twin breaks an objective: rate and interval in requests/s of all traffic, as if all were of the
    workload; the objective that breaks; how many would run there at a time; and what limits it, where that was asked.
    """

    rate_rps: float
    interval: tuple[float, float]
    limiting: str | None
    would_run: float
    bottleneck: Bottleneck | None


class SearchState:
    """Grows by `watched` and `took`; `refresh` makes of it what follows."""

    def __init__(self, workload: Workload, objectives: Objectives, hints: Hints) -> None:
        self.objectives = objectives
        self.model = ServerModel(workload, hints)
        self.rungs: list[Trial] = []
        self.twin: Twin | None = None
        self.correction: dict[str, float] = {}  # by what the twin's latencies are to be multiplied
        # Of all traffic, as if all were of the workload; None without a twin, and where no rate holds on it.
        self.forecast_rps: float | None = None
        self.live_equivalent_rps = 0.0  # live users count as so many of these as they take room of
        self.front = NONE
        self.lone_s = 1.0  # how long a single request takes
        self._news = False  # seen, and not yet thought about

    def watched(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        """Live traffic without ours, and a single request."""
        self.lone_s = lone.e2e_s.mean or 1.0
        self.model.watch(readings)
        self.live_equivalent_rps = self.model.live_rps
        self._news = True

    def took(self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None) -> None:
        """A rung; `tripped`: why the guard ended it, if it did."""
        self.model.learn(readings, overloaded=tripped is not None)
        begin, end = run.window_ns
        inside = windows([reading for reading in readings if begin <= reading.at_ns <= end])
        late = None
        if inside:
            ours = sum(begin <= record.scheduled_ns <= end for record in run.records) / ((end - begin) * 1e-9)
            seen = total(inside)
            self.model.saw_live(max(seen.prompts / seen.seconds - ours, 0.0), seen.seconds)
            late = delay(step, seen)
        self.rungs.append(
            Trial(
                _offered_rps(step, run, tripped) + self.live_equivalent_rps,
                step,
                run,
                tripped,
                steady(inside),
                delay=late,
                tails=tails(run, self.objectives),
                part=self.model.parts - 1,
                came=came(run, readings),
            )
        )
        self._news = True

    def refresh(self) -> None:
        """Where there is news: the twin anew, what it says of each rung, and the forecast."""
        if not self._news:
            return
        self._news = False
        ttft = self.objectives.ttft
        delays = [rung.delay for rung in self.rungs if rung.delay is not None]
        found = fronts(delays, _NEGLIGIBLE_SHARE * ttft.within_s if ttft else math.inf)
        self.front = likeliest(found)
        self._discern()
        bare = self.model.twin()
        if bare is None:
            return
        if found:
            told = [rung for rung in self.rungs if rung.telling]
            self.front = front_end(found, told, partial(self._ttfts_behind, bare))
        self.twin = twin = self._complete(bare)
        self.rungs = [
            replace(rung, predicted=self._replay(twin, rung), on_twin_too=self._ends_it(twin, rung))
            for rung in self.rungs
        ]
        self.correction = correction(self.rungs, self.objectives)
        near_rps = self.forecast_rps or max(2 * self.model.live_rps, 1 / self.lone_s)
        self.forecast_rps = self._capacity(twin, near_rps, _ON_THE_WAY) or None
        self.live_equivalent_rps = self.model.live_rps
        if self.model.live_differs and self.forecast_rps is not None:
            room_rps = self._capacity(replace(twin, live=self.model.live), near_rps, _ON_THE_WAY)
            self.live_equivalent_rps = max(self.forecast_rps - room_rps, 0.0)

    def residence_s(self, rate_rps: float) -> float:
        """How long a request stays at that rate."""
        if self.twin is not None:
            seen = predict(self.twin, rate_rps, self.objectives, requests=500)
            if math.isfinite(seen.tpot_p50_s):
                return seen.running / rate_rps
        last = self.rungs[-1].step.e2e_s.mean if self.rungs else None
        return last or self.lone_s

    def over(self, seen: Prediction) -> dict[str, float]:
        """The twin's latencies over their objectives, corrected."""
        return {
            name: getattr(seen, f"{name}_s") * self.correction.get(name, 1.0) / limit.within_s
            for name, limit in self.objectives.latencies().items()
        }

    def worst_over(self, rung: Trial) -> float:
        """The worst latency over its objective on the twin, with the same requests; infinite where it has none."""
        return max(self.over(rung.predicted).values(), default=0.0) if rung.predicted is not None else math.inf

    def tops(self) -> list[Trial]:
        """The highest rungs that tell something: the highest one, and those at nearly the same load."""
        told = sorted(
            (rung for rung in self.rungs if rung.telling and rung.predicted is not None),
            key=lambda rung: -rung.came_rps,
        )
        return [rung for rung in told if rung.came_rps > (1 - LITTLE) * told[0].came_rps]

    def nearly(self, rung: Trial, name: str, seen_s: float, allowed: float) -> bool:
        """Whether a rate that differs by little would explain it: near the knee a queue is long or short by chance."""
        if self.twin is None or rung.predicted is None:
            return False
        here, low, high = (
            getattr(predict(self.twin, rung.came_rps * share, self.objectives, requests=_QUICK), f"{name}_p50_s")
            for share in (1.0, 1 - LITTLE, 1 + LITTLE)
        )
        expected_s = getattr(rung.predicted, f"{name}_p50_s")
        if not math.isfinite(here):
            return True
        return bool(expected_s * low / here / allowed <= seen_s <= expected_s * high / here * allowed)

    def knee(self, *, explain: bool) -> KneeEstimate | None:
        """The knee, with more requests than the forecast is from; None where there is no forecast.

        `explain`: say what the bottleneck is, for some more seconds of arithmetic.
        """
        if self.twin is None or self.forecast_rps is None:
            return None
        self.forecast_rps = rate_rps = self._capacity(self.twin, self.forecast_rps, _FINAL, (0, 1)) or None
        if rate_rps is None:
            return None
        there = predict(self.twin, rate_rps, self.objectives, requests=_FINAL)
        over = self.over(there)
        left = min((left_over(top, self.correction, self.objectives) for top in self.tops()), default=0.0)
        half = _Z * math.hypot(
            self._spread(rate_rps),
            FLOOR,
            self.model.law.drift if self.model.law is not None else 0.0,
            math.hypot(left, _LATENCY) / self._slope(self.twin, rate_rps, max(over.values(), default=1.0)),
            extrapolated(self._seen_rps() / rate_rps / REACHED),
        )
        return KneeEstimate(
            rate_rps,
            (rate_rps * max(1 - half, 0.0), rate_rps * (1 + half)),
            max(over, key=lambda name: over[name], default=None),
            there.running,
            bottleneck(self.twin, self.objectives, self.correction, rate_rps) if explain else None,
        )

    def _seen_rps(self) -> float:
        """The highest load that told something."""
        return max((rung.came_rps for rung in self.rungs if rung.telling), default=self.model.live_rps)

    def _spread(self, rate_rps: float) -> float:
        """By how much the knee differs without one part of what was seen, each in turn: a relative standard deviation
        (the jackknife: Quenouille, Tukey).
        """
        twins = [self.model.twin(without=part) for part in self.model.telling_parts]
        found = [self._capacity(self._complete(bare), rate_rps, _QUICK) for bare in twins if bare is not None]
        if len(found) < _FEWEST_PARTS:
            return _UNKNOWN
        mean = fmean(found)
        return math.sqrt((len(found) - 1) / len(found) * sum((one - mean) ** 2 for one in found)) / rate_rps

    def _slope(self, twin: Twin, rate_rps: float, at_knee: float) -> float:
        """By how many per cent the worst latency rises with one per cent of the rate, towards the knee. Where it rises
        slowly, little that is wrong with a latency is much of a rate.
        """
        below = max(self.over(predict(twin, _BELOW * rate_rps, self.objectives, requests=_FINAL)).values(), default=0.0)
        slope = math.log(at_knee / below) / -math.log(_BELOW) if 0 < below < at_knee < math.inf else 0.0
        return max(slope, _LEAST_SLOPE)

    def _capacity(self, twin: Twin, near_rps: float, requests: int, seeds: Sequence[int] = (0,)) -> float:
        return capacity(twin, self.objectives, near_rps, correction=self.correction, seeds=seeds, requests=requests)

    def _complete(self, bare: Twin) -> Twin:
        return replace(bare, front_end=self.front.front_end, added_s=self.front.added_s)

    def _discern(self) -> None:
        """What our own requests tell of the server, where nobody else does."""
        told = sorted((rung for rung in self.rungs if rung.telling), key=lambda rung: rung.came_rps)
        stalled = [rung for rung in told if rung.step.stall_s.p50 and rung.step.stall_s.p95]
        if stalled and not self.model.chunk_known:
            self.model.chunk_tokens = chunk_tokens(self.model, stalled[-1], self._visits)
        if told and self.front.front_end == NO_FRONT:  # a tokenizer too takes longer for a long prompt
            self.model.pair_s = pair_s(self.model, told[-_TOLD:], self._visits)

    def _ttfts_behind(self, bare: Twin, tried: FrontEndEstimate, rung: Trial) -> Sequence[float]:
        """On average of some replays: nobody knows when the live users came."""
        twin = replace(bare, front_end=tried.front_end, added_s=tried.added_s)
        twin = replace(twin, cost=scaled(bare.cost, self.model.slower(rung.part)))
        played = [
            replayed(
                twin, sent(rung.run), self.model.live, settle_s=self._settle_s(rung), came=rung.came, seed=seed
            ).judged
            for seed in range(_FRONT_REPLAYS)
        ]
        return [fmean(visit.ttft_s for visit in same) + twin.added_s for same in zip(*played, strict=True)]

    def _visits(self, bare: Twin, rung: Trial) -> Sequence[SimulatedRequest]:
        return replayed(
            self._complete(bare), sent(rung.run), self.model.live, settle_s=self._settle_s(rung), came=rung.came
        ).judged

    def _replay(self, twin: Twin, rung: Trial) -> Prediction | None:
        """What the twin does with its requests; None where they tell nothing."""
        if not rung.telling or not rung.run.records:
            return None
        twin = replace(twin, cost=scaled(twin.cost, self.model.slower(rung.part)))
        return replay(
            twin, sent(rung.run), self.model.live, self.objectives, settle_s=self._settle_s(rung), came=rung.came
        )

    def _ends_it(self, twin: Twin, rung: Trial) -> bool:
        """Whether it may have been ended as a precaution by chance."""
        if not rung.precaution or not rung.run.records:
            return False
        twin = replace(twin, cost=scaled(twin.cost, self.model.slower(rung.part)))
        limits = GuardLimits().promised(self.objectives).offered(rung.came_rps)
        return ends_it(twin, sent(rung.run), self.model.live, limits, settle_s=self._settle_s(rung), came=rung.came)

    def _settle_s(self, rung: Trial) -> float:
        return _SETTLE_RESIDENCES * (rung.step.e2e_s.mean or self.lone_s)


def _offered_rps(step: StepSummary, run: StepRun, tripped: str | None) -> float:
    """What a rung was: what came, where by chance that may differ from what was planned."""
    arrivals = run.plan.arrivals
    if arrivals is not None and (arrivals.counted_s or tripped is not None):
        return arrivals.rate_rps
    return step.offered_rps

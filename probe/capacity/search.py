"""The search for the knee: predict where it is from what has been seen, then verify by going near it. Pure.

    live traffic --> windows --> law --> twin --> forecast --> a rung at a share of it --> windows, latencies --> ...

In: readings of the server's metrics and, after each rung, what our requests saw. Out: the next rung, as a StepPlan, and
at last a Capacity. The fit is slow (a second or so): call `saw` and `took` away from an event loop that has other work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from probe.capacity.fit import Law, fit
from probe.capacity.twin import UNLIMITED_SEQS, Predicted, Sent, Twin, capacity, predict, replay
from probe.capacity.windows import Window, total, windows
from probe.records import (
    Arrivals,
    Capacity,
    Objectives,
    Outcome,
    Pattern,
    ServerSnapshot,
    StepPlan,
    StepRun,
    StepSummary,
    Stopped,
)
from probe.summary import TOO_FEW
from probe.workload import Lognormal, Workload

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"

# Shares of the forecast to climb to. The last one is near enough that what lies beyond is no surprise.
_RUNGS = (0.5, 0.7, 0.85, 0.95)
# Above half of the forecast, no rung is more than this times the last one that held: the forecast may be wrong.
_STRIDE = 1.45
_FEW = 8
_FIRST_RPS_IN_FLIGHT = 2.0  # without a forecast: a rate that keeps about so many in flight
_MAX_RUNGS = 9
# A rung is long enough for its batch to fill and for its queue to show, in residence times, and at least this long.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0
_MIN_WARM_S, _MAX_WARM_S, _MIN_S, _MAX_S = 2.0, 15.0, 10.0, 30.0
_QUANTILES = 7
_KV_ROOM = 0.9
_MAX_TRIPS = 2


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a server that its metrics do not say."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Rung:
    """One load that was tried. Rates are of all traffic, ours and live."""

    planned_rps: float
    rate_rps: float
    live_rps: float
    step: StepSummary
    sent: tuple[Sent, ...]
    predicted: Predicted | None
    tripped: str | None

    @property
    def held(self) -> bool:
        """Also one with too few requests to be judged, as long as nothing went wrong in it."""
        return self.tripped is None and not self.step.broken and self.step.reason in (None, TOO_FEW)

    @property
    def telling(self) -> bool:
        """Whether its latencies say anything."""
        return self.step.valid or (self.step.reason == TOO_FEW and self.step.requests.ok >= _FEW)


class Search:
    """One search. Ask `next` for a rung, tell `took` what came of it, until there is none."""

    survives_overload = True

    def __init__(
        self, workload: Workload, objectives: Objectives, hints: Hints | None = None, *, observe_s: float = 60.0
    ) -> None:
        self.observe_s = observe_s
        self._workload, self._objectives = workload, objectives
        hints = hints or Hints()
        self._max_num_seqs = hints.max_num_seqs
        self._chunk_tokens = hints.max_num_batched_tokens
        self._readings: list[ServerSnapshot] = []
        self._segments: list[list[Window]] = []
        self._live_rps = self._watched_s = 0.0
        self._first: StepSummary | None = None
        self.rungs: list[Rung] = []
        self.law: Law | None = None
        self.twin: Twin | None = None
        self.forecast_rps: float | None = None
        self._correction: dict[str, float] = {}
        self._done: str | None = None

    def saw(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        """Live traffic, without ours, and a single request."""
        self._first = lone
        self._learn(readings)
        parts = windows(readings)
        self._live_rps = _rate(parts) if parts else 0.0
        self._watched_s = total(parts).seconds if parts else 0.0
        self._refit()

    def next(self) -> StepPlan | None:
        """The next rung, or None when the search is over."""
        rate = self._next_rate()
        if rate is None:
            return None
        residence = self._residence(rate)
        own = rate - self._live_rps
        warm = min(max(_WARM_RESIDENCES * residence, _MIN_WARM_S), _MAX_WARM_S)
        seconds = min(max(_RESIDENCES * residence, _MIN_S), _MAX_S)
        return StepPlan(
            concurrency=math.ceil(3 * own * residence + 8),
            seconds=seconds,
            loop="open",
            warm_up_s=warm,
            arrivals=Arrivals(pattern=Pattern.POISSON, rate_rps=own),
        )

    def took(self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None) -> None:
        """What came of the rung that `next` gave; `tripped`: why the guard ended it, if it did."""
        self._learn(readings, tripped)
        sent = _sent(run)
        planned = self._live_rps + (run.plan.arrivals.rate_rps if run.plan.arrivals else 0.0)
        begin, end = run.window_ns
        parts = windows([r for r in readings if begin <= r.at_ns <= end])
        if parts:
            ours = sum(begin <= r.scheduled_ns <= end for r in run.records) / max((end - begin) * 1e-9, 1e-9)
            rate = _rate(parts)
            self._watched_s += total(parts).seconds
            live = max(rate - ours, 0.0)
            self._live_rps += (live - self._live_rps) * total(parts).seconds / self._watched_s
        else:
            rate, live = planned, self._live_rps
        self.rungs.append(Rung(planned, rate, live, step, sent, None, tripped))
        self._refit()

    def ended(self) -> str | None:
        return self._done

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """What is known so far."""
        if self.forecast_rps is None:
            return Capacity(mode=FORECAST, reason=self._done or "not enough evidence")
        held = max((rung.planned_rps for rung in self.rungs if rung.held), default=0.0)
        mode = VERIFIED if held >= 0.85 * self.forecast_rps else FORECAST
        return Capacity(mode=mode, requests_per_second=self.forecast_rps)

    def _learn(self, readings: Sequence[ServerSnapshot], tripped: str | None = None) -> None:
        self._readings += readings
        self._segments.append(windows(readings))
        if self._max_num_seqs is None:
            self._max_num_seqs = _seats(self._readings, 1 if tripped else 3)

    def _refit(self) -> None:
        law = fit(self._segments, self._chunk_tokens, prompt_lengths(self._workload))
        if law is None:
            return
        self.law = law
        seen = [window for segment in self._segments for window in segment]
        kv = next((r.kv_cache_tokens for r in reversed(self._readings) if r.kv_cache_tokens), 1e9)
        self.twin = Twin(
            cost=law.cost,
            kv_tokens=kv,
            workload=self._workload,
            max_num_seqs=self._max_num_seqs or UNLIMITED_SEQS,
            engines=seen[-1].engines,
            accepted_tokens=max(total(seen).tokens_per_gap - 1.02, 0.0),
            chunk_tokens=self._chunk_tokens,
        )
        self._calibrate()
        near = self.forecast_rps or max(2 * self._live_rps, 0.1)
        self.forecast_rps = capacity(self.twin, self._objectives, near, correction=self._correction)

    def _calibrate(self) -> None:
        """By how much our requests were slower than the twin says, at the rungs so far; the highest count most."""
        assert self.twin is not None  # noqa: S101 - it has just been made
        logs: dict[str, list[tuple[float, float]]] = {"ttft": [], "tpot": []}
        for i, rung in enumerate(self.rungs):
            if not rung.telling:
                continue
            settle_s = 3 * (rung.step.e2e_s.mean or 1.0)
            predicted = replay(self.twin, rung.sent, self._live_rps, self._objectives, settle_s)
            self.rungs[i] = replace(rung, predicted=predicted)
            pairs = {
                "ttft": (rung.step.ttft_s.p50, predicted.ttft_p50_s),
                "tpot": (rung.step.tpot_s.p50, predicted.tpot_p50_s),
            }
            for name, (seen, expected) in pairs.items():
                if seen and math.isfinite(expected):
                    logs[name].append((math.log(seen / expected), rung.rate_rps**2 * rung.step.requests.ok))
        self._correction = {
            name: math.exp(sum(value * weight for value, weight in found) / sum(weight for _, weight in found))
            for name, found in logs.items()
            if found
        }

    def _next_rate(self) -> float | None:
        if len(self.rungs) >= _MAX_RUNGS or self._done:
            return None
        held = max((rung.planned_rps for rung in self.rungs if rung.held), default=self._live_rps)
        if self.forecast_rps is None:
            return held * 1.6 if held else 1.0
        failed = [rung for rung in self.rungs if not rung.held]
        if len(failed) >= _MAX_TRIPS or (failed and min(r.planned_rps for r in failed) < self.forecast_rps * 0.95):
            return None
        for share in _RUNGS:
            rate = share * self.forecast_rps
            if rate > held * 1.05:
                return min(rate, held * _STRIDE) if held else rate
        return None

    def _residence(self, rate_rps: float) -> float:
        """How long a request stays, in seconds."""
        if self.twin is not None:
            seen = predict(self.twin, rate_rps, self._objectives, requests=500)
            if math.isfinite(seen.tpot_p50_s):
                return seen.running / rate_rps
        last = self.rungs[-1].step if self.rungs else self._first
        return last.e2e_s.mean or 1.0 if last is not None else 1.0


def prompt_lengths(workload: Workload, count: int = _QUANTILES) -> list[float]:
    """Lengths of prompts that are equally likely."""
    prompt = workload.prompt_tokens
    if not isinstance(prompt, Lognormal):
        return [float(prompt)]
    normal = NormalDist()
    middles = (normal.inv_cdf((i + 0.5) / count) for i in range(count))
    return [min(prompt.median * math.exp(prompt.sigma * z), prompt.maximum) for z in middles]


def _sent(run: StepRun) -> tuple[Sent, ...]:
    """The requests of a step, in the order of their times."""
    if not run.records:
        return ()
    begin, (window, end) = min(r.scheduled_ns for r in run.records), run.window_ns
    return tuple(
        Sent(
            (r.scheduled_ns - begin) * 1e-9,
            r.prompt_tokens or r.spec.prompt_tokens,
            r.spec.output_tokens,
            judged=r.outcome is Outcome.OK and window <= r.scheduled_ns <= end,
        )
        for r in sorted(run.records, key=lambda r: r.scheduled_ns)
    )


def _rate(parts: Sequence[Window]) -> float:
    seen = total(parts)
    return seen.prompts / seen.seconds


def _seats(readings: Sequence[ServerSnapshot], polls: int) -> int | None:
    """max_num_seqs, where it has shown: requests wait while memory is free, and as many run as ever did.

    `polls`: how often that has to have been seen.
    """
    most = max((r.running or 0 for r in readings), default=0)
    waited = [r for r in readings if (r.waiting or 0) > 1 and (r.kv_cache_usage or 0) < _KV_ROOM and r.running]
    full = [r for r in waited if r.running == most]
    if len(full) < polls or len(full) < len(waited) / 2:
        return None
    return round(most / readings[-1].engines)

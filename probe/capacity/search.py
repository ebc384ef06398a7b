"""The search for the knee: predict where it is from what has been seen, then verify by going near it. Pure.

    live traffic --> Model --> forecast --> a rung at a share of it --> Model, our requests --> forecast --> ...

In: readings of the server's metrics and, after each rung, our requests. Out: the next rung, as a StepPlan, and at last
a Capacity. Rates are of requests like the workload's; live users count as so many of these as they take room of.
Where rungs show what the model does not explain, it is left aside and the knee is climbed to in small steps.

The work takes a second or so after each rung: call `saw`, `next` and `took` away from an event loop.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from probe.capacity.bottleneck import Bottleneck, bottleneck
from probe.capacity.front import Front, front
from probe.capacity.hints import Hints
from probe.capacity.knee import VOID
from probe.capacity.model import Model, mean_length
from probe.capacity.rung import Rung, delay, sent, steady
from probe.capacity.twin import NO_FRONT, Predicted, Twin, capacity, predict, replay
from probe.capacity.windows import total, windows
from probe.guard import SERVER_RESTARTED
from probe.records import (
    Arrivals,
    Capacity,
    Distribution,
    Objectives,
    Pattern,
    ServerSnapshot,
    StepPlan,
    StepRun,
    StepSummary,
    Stopped,
)
from probe.summary import CUT_SHORT, TOO_FEW
from probe.workload import Workload

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"

# Shares of the forecast to climb to. The last one is near enough that what lies beyond is no surprise.
_RUNGS = (0.5, 0.72, 0.95)
_TOP = 0.95
_REACHED = 0.86  # a rung that held at so much of the forecast verifies it
# No rung is more than this times the last one that held: the forecast may be wrong. Far below it, a bit more.
_STRIDE, _LONG_STRIDE = 1.45, 1.7
_MAX_RUNGS, _MAX_FAILED = 9, 2
# A rung is long enough for its batch to fill and for its queue to show, in residence times, and at least this long.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0
_MIN_WARM_S, _MAX_WARM_S, _MIN_S, _MAX_S = 2.0, 15.0, 10.0, 30.0
_TOP_LONGER = 1.3
# What the model's medians may be off by at a rung, and still hold; of latencies that reach such a share of their
# objective.
_OFF = {"ttft": 1.5, "tpot": 1.25}
_NEAR = 0.5
_LITTLE = 0.07  # of a rate
_MOST_OFF = 0.25  # that a correction takes from one rung, in logarithms
_MEDIAN_ERROR, _CERTAIN = 1.3, 3.0  # 1.25 / 1.645, a normal distribution's, and some for the replay
# Without a model: steps up, how near the two ends have to come, and how many rungs that may take.
_CLIMB, _CLOSE, _MAX_CLIMBS = 1.12, 1.08, 7
_ENOUGH = 40  # requests, that judge a rung without a model
_APART = 0.15  # model and rungs, in logarithms: then neither is believed
_SETTLE_RESIDENCES = 3.0
_NEGLIGIBLE_SHARE = 0.02  # of the TTFT objective: delays below it are noise
# The interval: so many standard deviations of a capacity that leaves one part out, and of what no part shows.
_Z, _FLOOR = 1.64, 0.03
_QUICK = 1200  # requests of a simulation that is repeated for the spread


class Search:
    """One search. Ask `next` for a rung, tell `took` what came of it, until there is none."""

    survives_overload = True

    def __init__(
        self,
        workload: Workload,
        objectives: Objectives,
        hints: Hints | None = None,
        *,
        observe_s: float = 60.0,
        explain: bool = True,
    ) -> None:
        """`explain`: say what the bottleneck is, for some more seconds of arithmetic at the end."""
        self.observe_s = observe_s
        self.rungs: list[Rung] = []
        self.twin: Twin | None = None
        self.forecast_rps: float | None = None  # of all traffic, as if all were of the workload
        self.interval: tuple[float, float] | None = None
        self.model = Model(workload, hints or Hints())
        self._objectives = objectives
        self._live_equivalent_rps = 0.0
        self._front = Front(NO_FRONT, 0.0)
        self._correction: dict[str, float] = {}
        self._lone_s = 1.0
        self._doubted: str | None = None  # why the model was left aside
        self._climbs = 0
        self._limiting: str | None = None
        self._would_run = 0.0  # at a time, on average, at the forecast
        self._explains = explain
        self._bottleneck: Bottleneck | None = None

    def saw(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        """Live traffic without ours, and a single request."""
        self._lone_s = lone.e2e_s.mean or 1.0
        self.model.watch(readings)
        self._live_equivalent_rps = self.model.live_rps
        self._understand()

    def next(self) -> StepPlan | None:
        """The next rung, or None when the search is over."""
        rate = self._next_rate()
        own = rate - self._live_equivalent_rps if rate is not None else 0.0
        if rate is None or own <= 0:  # users may have come meanwhile, and take all of the next rung themselves
            self._spread()
            return None
        residence_s = self._residence_s(rate)
        longer = _TOP_LONGER if self.forecast_rps and rate > _REACHED * self.forecast_rps else 1.0
        return StepPlan(
            concurrency=math.ceil(3 * own * residence_s + 8),
            seconds=longer * min(max(_RESIDENCES * residence_s, _MIN_S), _MAX_S),
            loop="open",
            warm_up_s=min(max(_WARM_RESIDENCES * residence_s, _MIN_WARM_S), _MAX_WARM_S),
            arrivals=Arrivals(pattern=Pattern.POISSON, rate_rps=own),
        )

    def took(self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None) -> None:
        """What came of the rung that `next` gave; `tripped`: why the guard ended it, if it did."""
        self.model.learn(readings, overloaded=tripped is not None)
        begin, end = run.window_ns
        inside = windows([reading for reading in readings if begin <= reading.at_ns <= end])
        own = run.plan.arrivals.rate_rps if run.plan.arrivals else 0.0
        late = None
        if inside:
            ours = sum(begin <= record.scheduled_ns <= end for record in run.records) / ((end - begin) * 1e-9)
            seen = total(inside)
            self.model.saw_live(max(seen.prompts / seen.seconds - ours, 0.0), seen.seconds)
            late = delay(step, seen)
        # By chance a Poisson process brings fewer than were planned: what held is what came.
        came = min(own, step.offered_rps) if tripped is None else own
        rate = came + self._live_equivalent_rps
        self.rungs.append(Rung(rate, own, step, run, tripped, steady(inside), delay=late))
        self._understand()

    def ended(self) -> str | None:
        return None  # the capacity says it

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """What is known so far."""
        if (broke := _broke(steps, stopped)) is not None:
            return Capacity(mode=FORECAST, reason=broke)
        if self.forecast_rps is None:
            return Capacity(mode=FORECAST, reason=f"not enough evidence: {self._seen_words()}")
        if self.interval is None:  # the run was stopped on its way
            self._spread()
        low, high = self.interval or (None, None)
        reached = max((rung.planned_rps for rung in self.rungs if rung.held), default=0.0) / self.forecast_rps
        if self._doubted is not None:
            return self._empirical()
        crowded = self.model.max_num_seqs is None and self.model.most_running < self._would_run
        return Capacity(
            mode=VERIFIED if reached >= _REACHED and not crowded else FORECAST,
            requests_per_second=self.forecast_rps,
            lower=low,
            upper=high,
            output_tokens_per_second=self.forecast_rps * mean_length(self.model.workload.output_tokens),
            limiting=self._limiting,
            bottleneck=self._bottleneck.name if self._bottleneck else None,
            advice=self._bottleneck.advice if self._bottleneck else None,
            bottleneck_gain=self._bottleneck.gain if self._bottleneck else None,
            roofline=self.model.roofline(),
            reason=f"if max_num_seqs allows {self._would_run:.0f} requests to run" if crowded else None,
        )

    def _seen_words(self) -> str:
        """What was seen, where that tells no law."""
        most = max((rung.planned_rps for rung in self.rungs), default=self.model.live_rps)
        return f"at up to {most:.3g} requests/s too few ran at a time to tell what one more costs"

    def _empirical(self) -> Capacity:
        """What the rungs alone say."""
        held = [rung for rung in self.rungs if rung.held and rung.steady and rung.step.requests.ok >= _ENOUGH]
        low = max((rung.planned_rps for rung in held), default=None)
        failed = (rung.planned_rps for rung in self.rungs if not rung.held)
        high = min((rate for rate in failed if rate > (low or 0)), default=None)
        if low is None or high is None or high > low * _CLIMB * _CLIMB:
            return Capacity(mode=EMPIRICAL, reason=f"{self._doubted}, and no rung told where the knee is without it")
        rate = math.sqrt(low * high)
        if self.forecast_rps and abs(math.log(rate / self.forecast_rps)) > _APART:
            return Capacity(
                mode=EMPIRICAL,
                reason=f"{self._doubted}; it says {self.forecast_rps:.3g} requests/s, the rungs say {rate:.3g}",
            )
        return Capacity(
            mode=EMPIRICAL,
            requests_per_second=rate,
            lower=low * (1 - _FLOOR),
            upper=high * (1 + _FLOOR),
            output_tokens_per_second=rate * mean_length(self.model.workload.output_tokens),
            reason=f"measured without a model: {self._doubted}",
            roofline=self.model.roofline(believed=False),
        )

    # What follows from what was seen.

    def _understand(self) -> None:
        bare = self.model.twin()
        if bare is None:
            return
        self._calibrate(bare)
        near = self.forecast_rps or max(2 * self.model.live_rps, 1 / self._lone_s)
        self.twin = self._complete(bare)
        self.forecast_rps = capacity(self.twin, self._objectives, near, correction=self._correction)
        self._live_equivalent_rps = self.model.live_rps
        if self.model.live_differs:
            beside = replace(self.twin, live=self.model.live)
            room = capacity(beside, self._objectives, near, correction=self._correction, seeds=(0,))
            self._live_equivalent_rps = max(self.forecast_rps - room, 0.0)

    def _complete(self, bare: Twin) -> Twin:
        return replace(bare, front_end=self._front.front_end, added_s=self._front.added_s)

    def _calibrate(self, bare: Twin) -> None:
        """By how much our requests were slower than the twin says: the front end, and a factor for the rest."""
        delays = [rung.delay for rung in self.rungs if rung.delay is not None]
        ttft = self._objectives.ttft
        negligible_s = _NEGLIGIBLE_SHARE * ttft.within_s if ttft else math.inf
        self._front = front(delays, negligible_s)
        twin = self._complete(bare)
        offs: dict[str, list[tuple[float, float, float]]] = {"ttft": [], "tpot": []}
        for i, rung in enumerate(self.rungs):
            if not rung.telling:
                continue
            predicted = self._replay(twin, rung)
            self.rungs[i] = replace(rung, predicted=predicted)
            weight = rung.planned_rps**2 * rung.step.requests.ok
            for name, seen, expected_s in (
                ("ttft", rung.step.ttft_s, predicted.ttft_p50_s),
                ("tpot", rung.step.tpot_s, predicted.tpot_p50_s),
            ):
                if seen.p50 and math.isfinite(expected_s) and expected_s > 0:
                    off = min(max(math.log(seen.p50 / expected_s), -_MOST_OFF), _MOST_OFF)
                    offs[name].append((off, _median_error(seen), weight))
        self._correction = {name: math.exp(_pooled(found)) for name, found in offs.items() if found}

    def _replay(self, twin: Twin, rung: Rung) -> Predicted:
        settle_s = _SETTLE_RESIDENCES * (rung.step.e2e_s.mean or self._lone_s)
        return replay(twin, sent(rung.run), self.model.live, self._objectives, settle_s)

    def _spread(self) -> None:
        """The interval: what the forecast would be without one part of what was seen, each in turn."""
        if self.twin is None or self.forecast_rps is None:
            return
        found = []
        for part in range(self.model.parts):
            bare = self.model.twin(without=part)
            if bare is not None:
                found.append(
                    capacity(
                        self._complete(bare),
                        self._objectives,
                        self.forecast_rps,
                        correction=self._correction,
                        seeds=(0,),
                        requests=_QUICK,
                    )
                )
        count = len(found)
        spread = 0.0
        if count > 1:
            mean = fmean(found)
            spread = math.sqrt((count - 1) / count * sum((one - mean) ** 2 for one in found)) / self.forecast_rps
        seen = predict(self.twin, self.forecast_rps, self._objectives)
        over = {
            name: getattr(seen, f"{name}_s") * self._correction.get(name, 1.0) / limit.within_s
            for name, limit in self._objectives.latencies().items()
        }
        self._would_run = seen.running
        self._limiting = max(over, key=lambda name: over[name], default=None)
        if self._explains:
            self._bottleneck = bottleneck(self.twin, self._objectives, self._correction, self.forecast_rps)
        half = _Z * math.hypot(spread, _FLOOR)
        self.interval = self.forecast_rps * (1 - half), self.forecast_rps * (1 + half)

    def _doubt(self) -> str | None:
        """Why the model is not to be believed, from the highest rung that tells something; None if it is."""
        told = [rung for rung in self.rungs if rung.telling and rung.predicted is not None]
        top = max(told, key=lambda rung: rung.planned_rps, default=None)
        return self._unexplained(top) if top is not None else None

    def _unexplained(self, rung: Rung) -> str | None:
        """What of a rung the model does not explain, of the latencies that come near their objectives."""
        for name, limit in self._objectives.latencies().items():
            seen = rung.step.ttft_s if name == "ttft" else rung.step.tpot_s
            expected_s = getattr(rung.predicted, f"{name}_p50_s")
            if (
                not seen.p50
                or not seen.p95
                or max(seen.p95, getattr(rung.predicted, f"{name}_s")) < _NEAR * limit.within_s
            ):
                continue
            off = math.log(seen.p50 / expected_s)
            if abs(off) > max(math.log(_OFF[name]), _CERTAIN * _median_error(seen)) and not self._nearly(
                rung, name, seen.p50
            ):
                return f"{name.upper()} was {math.exp(off):.2f} times what the model of this server says"
        return None

    def _nearly(self, rung: Rung, name: str, seen_s: float) -> bool:
        """Whether a rate that differs by little would explain it: near the knee a queue is long or short by chance."""
        if self.twin is None or rung.predicted is None:
            return False
        here, low, high = (
            getattr(predict(self.twin, rung.planned_rps * share, self._objectives, requests=_QUICK), f"{name}_p50_s")
            for share in (1.0, 1 - _LITTLE, 1 + _LITTLE)
        )
        expected_s = getattr(rung.predicted, f"{name}_p50_s")
        if not math.isfinite(here):
            return True
        return bool(expected_s * low / here / _OFF[name] <= seen_s <= expected_s * high / here * _OFF[name])

    # Where to go next.

    def _next_rate(self) -> float | None:
        if self.rungs and self.rungs[-1].step.reason not in (None, TOO_FEW, CUT_SHORT):
            return None  # our own side failed; more load would not help
        failed = [rung.planned_rps for rung in self.rungs if not rung.held]
        held = max((rung.planned_rps for rung in self.rungs if rung.held), default=self._live_equivalent_rps)
        if self._doubted is None and (doubt := self._doubt()) is not None:
            self._doubted, self._climbs = doubt, 0
        if self._doubted is not None:
            return self._climb(held, failed)
        if len(self.rungs) >= _MAX_RUNGS or len(failed) >= _MAX_FAILED:
            return None
        if self.forecast_rps is None and failed:
            return (held + min(failed)) / 2  # with no forecast yet: half way back
        if self.forecast_rps is None:
            return held * _LONG_STRIDE if self.rungs else max(held * _STRIDE, held + 0.7 / self._lone_s)
        return self._towards(self.forecast_rps, held, min(failed, default=math.inf))

    def _towards(self, forecast_rps: float, held: float, failed: float) -> float | None:
        """The next share of the forecast, no further from what held than a stride."""
        if failed < _TOP * forecast_rps:
            return None
        for share in _RUNGS:
            rate = share * forecast_rps
            if rate > held * 1.06 and (share > _RUNGS[0] or rate > self._live_equivalent_rps * 1.2):
                stride = _LONG_STRIDE if held < 0.4 * forecast_rps else _STRIDE
                return min(rate, held * stride) if held else rate
        return None

    def _climb(self, held: float, failed: Sequence[float]) -> float | None:
        """Up in small steps, then between the highest that held and the lowest that did not."""
        self._climbs += 1
        above = min((rate for rate in failed if rate > held), default=None)
        if self._climbs > _MAX_CLIMBS or (above is not None and above < held * _CLOSE):
            return None
        return held * _CLIMB if above is None or above > held * _CLIMB**2 else math.sqrt(held * above)

    def _residence_s(self, rate_rps: float) -> float:
        """How long a request stays."""
        if self.twin is not None:
            seen = predict(self.twin, rate_rps, self._objectives, requests=500)
            if math.isfinite(seen.tpot_p50_s):
                return seen.running / rate_rps
        last = self.rungs[-1].step.e2e_s.mean if self.rungs else None
        return last or self._lone_s


def _broke(steps: Sequence[StepSummary], stopped: Stopped) -> str | None:
    """Why nothing that was seen makes a capacity."""
    if stopped.by == "error":
        return f"the run failed ({stopped.reason})"
    if stopped.reason == SERVER_RESTARTED:
        return "the server restarted: what was seen is of two servers; measure again"
    ours = next((step.reason for step in steps if step.reason not in (None, TOO_FEW, CUT_SHORT)), None)
    return f"{VOID.get(ours, 'a step judged nothing')} ({ours})" if ours is not None else None


def _median_error(seen: Distribution) -> float:
    """The standard error of a median's logarithm, from how far the 95th percentile is from it.

    The live users of a replay scatter as well.
    """
    if not seen.p50 or not seen.p95:
        return math.inf
    return _MEDIAN_ERROR * math.log(seen.p95 / seen.p50) / math.sqrt(max(seen.count, 1))


def _pooled(offs: Sequence[tuple[float, float, float]]) -> float:
    """The weighted mean of values with standard errors, drawn towards 0 by as much of it as may be chance (James and
    Stein, 1961).
    """
    weights = sum(weight for _, _, weight in offs)
    mean = sum(off * weight for off, _, weight in offs) / weights
    error = math.sqrt(sum((error * weight) ** 2 for _, error, weight in offs)) / weights
    return mean * max(1 - (error / mean) ** 2, 0.0) if mean else 0.0

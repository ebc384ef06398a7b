"""The search for the knee: predict where it is from what has been seen, then verify by going near it. Pure.

    live traffic --> Model --> forecast --> a rung at a share of it --> Model, our requests --> forecast --> ...

In: readings of the server's metrics and, after each rung, our requests. Out: the next rung, as a StepPlan, and at last
a Capacity. Rates are of requests like the workload's; live users count as so many of these as they take room of.
Where rungs show what the model does not explain, it is left aside and the knee is climbed to in small steps.

The work takes some seconds, in `next` and at the end: call it away from an event loop.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from probe.capacity.bottleneck import Bottleneck, bottleneck
from probe.capacity.calibrate import correction, left_over, unexplained
from probe.capacity.discern import chunk_tokens, pair_s
from probe.capacity.forecast import extrapolated
from probe.capacity.front import Front, front
from probe.capacity.hints import Hints
from probe.capacity.knee import VOID
from probe.capacity.model import Model, mean_length
from probe.capacity.replay import replay, replayed
from probe.capacity.rung import Rung, came, delay, sent, steady, tails
from probe.capacity.twin import NO_FRONT, Predicted, Twin, capacity, predict
from probe.capacity.windows import total, windows
from probe.guard import PRECAUTIONS, SERVER_RESTARTED
from probe.records import (
    Arrivals,
    Capacity,
    Objectives,
    Pattern,
    ServerSnapshot,
    StepPlan,
    StepRun,
    StepSummary,
    Stopped,
)
from probe.sim.cost import scaled
from probe.sim.visit import Visit
from probe.summary import CUT_SHORT, MIN_REQUESTS, TOO_FEW
from probe.workload import Workload

FORECAST, VERIFIED, EMPIRICAL = "forecast", "verified", "empirical"

# Shares of the forecast to climb to. The last one is near enough that what lies beyond is no surprise.
_RUNGS = (0.5, 0.72, 0.95)
_TOP = 0.95
_BELOW = 0.95  # of a load that was too much: what is still to be tried
_REACHED = 0.86  # a rung that held at so much of the forecast verifies it
# No rung is more than this times the last one that held: the forecast may be wrong. Far below it, a bit more.
_STRIDE, _LONG_STRIDE = 1.45, 1.7
_MAX_RUNGS, _MAX_FAILED = 9, 2
# A rung is long enough for its batch to fill and for its queue to show, in residence times, and at least this long.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0
_MIN_WARM_S, _MAX_WARM_S, _MIN_S, _MAX_S = 2.0, 15.0, 10.0, 30.0
_TOP_LONGER = 1.3
_LITTLE = 0.07  # of a rate
_LUCK, _FURTHER = 1.04, 1.06
_FORESEEN = 0.9  # of an objective, that the twin reaches with the requests of a rung that broke it
_REFUTES = 0.85  # a load that breaks at so much of the forecast is no chance: the model is wrong
_MORE = 1.25  # as many as were seen to run may run as well
_SURE = 0.08  # half of an interval, relative, above which a figure is not called verified
# Without a model: steps up, how near the two ends have to come, how far one may go between them, and how many rungs
# that may take.
_CLIMB, _CLOSE, _LEAP, _MAX_CLIMBS = 1.12, 1.08, 1.3, 7
_ENOUGH = 40  # requests, that judge a rung near the knee or without a model
_LONGEST_S = 90.0  # for requests that are rare
_APART = 0.3  # of rungs above the model, in logarithms: a queue that has not filled lets them pass, so neither counts
_SETTLE_RESIDENCES = 3.0
_NEGLIGIBLE_SHARE = 0.02  # of the TTFT objective: delays below it are noise
# The interval: so many standard deviations of a capacity that leaves one part out, and of what no part shows.
_Z, _FLOOR = 1.64, 0.035
_FEWEST_PARTS, _UNKNOWN = 3, 0.2  # with fewer, their spread says nothing of how sure a capacity is
_QUICK = 1200  # requests of a simulation that is repeated for the spread
# Requests of the simulation that the next rung is from, and of those that the result is from.
_ON_THE_WAY, _FINAL = 2000, 10_000
_TOLD = 3  # of the highest rungs: they tell what attention costs


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
        self._correction: dict[str, float] = {}  # by what the twin's latencies are to be multiplied
        self._lone_s = 1.0
        self._news = False  # seen, and not yet thought about
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
        self._news = True

    def next(self) -> StepPlan | None:
        """The next rung, or None when the search is over."""
        self._understand()
        rate = self._next_rate()
        own = rate - self._live_equivalent_rps if rate is not None else 0.0
        if rate is None or own <= 0:  # users may have come meanwhile, and take all of the next rung themselves
            self._spread()
            return None
        residence_s = self._residence_s(rate)
        top = self._doubted is not None or (self.forecast_rps and rate > _REACHED * self.forecast_rps)
        seconds = min(max(_RESIDENCES * residence_s, _MIN_S), _MAX_S) * (_TOP_LONGER if top else 1.0)
        return StepPlan(
            concurrency=math.ceil(3 * own * residence_s + 8),
            seconds=max(seconds, min(1.2 * (_ENOUGH if top else MIN_REQUESTS) / own, _LONGEST_S)),
            loop="open",
            warm_up_s=min(max(_WARM_RESIDENCES * residence_s, _MIN_WARM_S), _MAX_WARM_S),
            arrivals=Arrivals(pattern=Pattern.POISSON, rate_rps=own),
        )

    def took(self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None) -> None:
        """What came of the rung that `next` gave; `tripped`: why the guard ended it, if it did."""
        self.model.learn(readings, overloaded=tripped is not None)
        part = self.model.parts - 1
        begin, end = run.window_ns
        inside = windows([reading for reading in readings if begin <= reading.at_ns <= end])
        own = run.plan.arrivals.rate_rps if run.plan.arrivals else 0.0
        late = None
        if inside:
            ours = sum(begin <= record.scheduled_ns <= end for record in run.records) / ((end - begin) * 1e-9)
            seen = total(inside)
            self.model.saw_live(max(seen.prompts / seen.seconds - ours, 0.0), seen.seconds)
            late = delay(step, seen)
        # By chance a Poisson process brings more or fewer than were planned: what was judged is what came.
        offered = step.offered_rps if tripped is None else own
        self.rungs.append(
            Rung(
                offered + self._live_equivalent_rps,
                own + self._live_equivalent_rps,
                step,
                run,
                tripped,
                steady(inside),
                delay=late,
                tails=tails(run, self._objectives),
                part=part,
                came=came(run, readings),
            )
        )
        self._news = True

    def ended(self) -> str | None:
        return None  # the capacity says it

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """What is known so far."""
        if (broke := _broke(steps, stopped)) is not None:
            return Capacity(mode=FORECAST, reason=broke)
        self._understand()
        if self.forecast_rps is None:
            return Capacity(mode=FORECAST, reason=f"not enough evidence: {self._seen_words()}")
        if self.interval is None:  # the run was stopped on its way
            self._spread()
        self._doubted = self._doubted or self._doubt()
        if self._doubted is not None:
            return self._empirical()
        crowded = self.model.max_num_seqs is None and _MORE * self.model.most_running < self._would_run
        # What was too much is too much, whatever the model says of it; but what the guard ended as a precaution broke
        # no objective of ours, so it may have been a little less than that.
        most = min(
            (rung.came_rps * (1 + _FLOOR if rung.tripped in PRECAUTIONS else 1.0) for rung in self._too_much()),
            default=math.inf,
        )
        rate = min(self.forecast_rps, most)
        low, high = self.interval or (rate, rate)
        return Capacity(
            mode=VERIFIED if self._verified() and not crowded else FORECAST,
            requests_per_second=rate,
            lower=low * rate / self.forecast_rps,
            upper=min(high, most * (1 + _SURE)),
            output_tokens_per_second=rate * mean_length(self.model.workload.output_tokens),
            limiting=self._limiting,
            bottleneck=self._bottleneck.name if self._bottleneck else None,
            advice=self._bottleneck.advice if self._bottleneck else None,
            bottleneck_gain=self._bottleneck.gain if self._bottleneck else None,
            roofline=self.model.roofline(),
            reason=f"if max_num_seqs allows {self._would_run:.0f} requests to run" if crowded else None,
        )

    def _seen_words(self) -> str:
        """What was seen, where that tells no law."""
        most = max((rung.came_rps for rung in self.rungs), default=self.model.live_rps)
        return f"at up to {most:.3g} requests/s too few ran at a time to tell what one more costs"

    def _verified(self) -> bool:
        """Whether a load near the forecast was judged and held, and the forecast is sure enough for the word."""
        judged = max((rung.came_rps for rung in self.rungs if rung.held and rung.step.valid), default=0.0)
        low, high = self.interval or (0.0, math.inf)
        return _REACHED * (self.forecast_rps or math.inf) <= judged <= high and high - low <= _SURE * (high + low)

    def _empirical(self) -> Capacity:
        """What the rungs alone say."""
        low = self._stood() or None
        high = min(self._broken(), default=None)
        if low is not None and high is None:
            return Capacity(
                mode=EMPIRICAL,
                requests_per_second=low,
                lower=low,
                output_tokens_per_second=low * mean_length(self.model.workload.output_tokens),
                reason=f"no load that was tried broke an objective: the capacity is at least this ({self._doubted})",
            )
        if low is None or high is None or high > low * _CLIMB * _CLIMB:
            return Capacity(mode=EMPIRICAL, reason=f"{self._doubted}, and no rung told where the knee is without it")
        rate = math.sqrt(low * high)
        if self.forecast_rps and math.log(rate / self.forecast_rps) > _APART:
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
        """Where there is news: the twin anew, what it says of each rung, and the forecast."""
        if not self._news:
            return
        self._news = False
        ttft = self._objectives.ttft
        delays = [rung.delay for rung in self.rungs if rung.delay is not None]
        self._front = front(delays, _NEGLIGIBLE_SHARE * ttft.within_s if ttft else math.inf)
        self._discern()
        bare = self.model.twin()
        if bare is None:
            return
        self.twin = twin = self._complete(bare)
        self.rungs = [
            replace(rung, predicted=self._replay(twin, rung)) if rung.telling else rung for rung in self.rungs
        ]
        self._correction = correction(self.rungs, self._objectives)
        near = self.forecast_rps or max(2 * self.model.live_rps, 1 / self._lone_s)
        self.forecast_rps = capacity(
            twin, self._objectives, near, correction=self._correction, seeds=(0,), requests=_ON_THE_WAY
        )
        self._live_equivalent_rps = self.model.live_rps
        if self.model.live_differs:
            beside = replace(twin, live=self.model.live)
            room = capacity(
                beside, self._objectives, near, correction=self._correction, seeds=(0,), requests=_ON_THE_WAY
            )
            self._live_equivalent_rps = max(self.forecast_rps - room, 0.0)

    def _complete(self, bare: Twin) -> Twin:
        return replace(bare, front_end=self._front.front_end, added_s=self._front.added_s)

    def _discern(self) -> None:
        """What our own requests tell of the server, where nobody else does."""
        told = sorted((rung for rung in self.rungs if rung.telling), key=lambda rung: rung.came_rps)
        stalled = [rung for rung in told if rung.step.stall_s.p50 and rung.step.stall_s.p95]
        if stalled and not self.model.chunk_known:
            self.model.chunk_tokens = chunk_tokens(self.model, stalled[-1], self._visits)
        if told and self._front.front_end == NO_FRONT:  # a tokenizer too takes longer for a long prompt
            self.model.pair_s = pair_s(self.model, told[-_TOLD:], self._visits)

    def _visits(self, bare: Twin, rung: Rung) -> Sequence[Visit]:
        return replayed(
            self._complete(bare), sent(rung.run), self.model.live, settle_s=self._settle_s(rung), came=rung.came
        ).judged

    def _replay(self, twin: Twin, rung: Rung) -> Predicted:
        twin = replace(twin, cost=scaled(twin.cost, self.model.slower(rung.part)))
        return replay(
            twin, sent(rung.run), self.model.live, self._objectives, settle_s=self._settle_s(rung), came=rung.came
        )

    def _settle_s(self, rung: Rung) -> float:
        return _SETTLE_RESIDENCES * (rung.step.e2e_s.mean or self._lone_s)

    def _spread(self) -> None:
        """The interval: what the forecast would be without one part of what was seen, each in turn."""
        if self.twin is None or self.forecast_rps is None:
            return
        self.forecast_rps = capacity(
            self.twin,
            self._objectives,
            self.forecast_rps,
            correction=self._correction,
            requests=_FINAL,
        )
        found = []
        for part in self.model.telling_parts:
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
        spread = _UNKNOWN
        if count >= _FEWEST_PARTS:
            mean = fmean(found)
            spread = math.sqrt((count - 1) / count * sum((one - mean) ** 2 for one in found)) / self.forecast_rps
        knee = predict(self.twin, self.forecast_rps, self._objectives)
        over = self._over(knee)
        self._would_run = knee.running
        self._limiting = max(over, key=lambda name: over[name], default=None)
        if self._explains:
            self._bottleneck = bottleneck(self.twin, self._objectives, self._correction, self.forecast_rps)
        drift = self.model.law.drift if self.model.law is not None else 0.0
        seen = max((rung.came_rps for rung in self.rungs if rung.telling), default=self.model.live_rps)
        half = _Z * math.hypot(
            spread,
            _FLOOR,
            drift,
            self._off(max(over.values(), default=1.0)),
            extrapolated(seen / self.forecast_rps / _REACHED),
        )
        self.interval = self.forecast_rps * max(1 - half, 0.0), self.forecast_rps * (1 + half)

    def _over(self, seen: Predicted) -> dict[str, float]:
        """The twin's latencies over their objectives, corrected."""
        return {
            name: getattr(seen, f"{name}_s") * self._correction.get(name, 1.0) / limit.within_s
            for name, limit in self._objectives.latencies().items()
        }

    def _off(self, at_knee: float) -> float:
        """By how much of a rate the highest rung differs from the model: its latencies' difference, over how steeply
        they rise towards the knee.
        """
        left = min((left_over(top, self._correction, self._objectives) for top in self._tops()), default=0.0)
        if not left or self.twin is None or self.forecast_rps is None:
            return 0.0
        below = max(self._over(predict(self.twin, _TOP * self.forecast_rps, self._objectives)).values(), default=0.0)
        slope = math.log(at_knee / below) / -math.log(_TOP) if 0 < below < at_knee < math.inf else 1.0
        return left / max(slope, 1.0)

    def _doubt(self) -> str | None:
        """Why the model is not to be believed; None if it is."""
        broke = min(self._broken(), default=math.inf)
        if self.forecast_rps and broke < _REFUTES * self.forecast_rps:
            return (
                f"{broke:.3g} requests/s were too many, of {self.forecast_rps:.3g} that the model of this server holds"
            )
        # By the model it should have broken; one whose queue has not filled holds on the twin as well.
        stood = self._stood(lambda rung: self._predicted_over(rung) > 1 / _FORESEEN)
        if self.forecast_rps and _REFUTES * stood > self.forecast_rps:
            return f"{stood:.3g} requests/s were in time, of {self.forecast_rps:.3g} that the model says it holds"
        reasons = [unexplained(rung, self._objectives, self._nearly) for rung in self._tops()]
        return next(iter(reasons), None) if all(reasons) else None

    def _stood(self, of: Callable[[Rung], bool] = lambda _: True) -> float:
        """The highest rate, of such rungs, that was judged by many requests and held."""
        held = (rung for rung in self.rungs if rung.held and rung.steady and rung.step.requests.ok >= _ENOUGH)
        return max((rung.came_rps for rung in held if of(rung)), default=0.0)

    def _predicted_over(self, rung: Rung) -> float:
        """The worst latency over its objective on the twin, with the same requests; infinite where it has none."""
        return max(self._over(rung.predicted).values(), default=0.0) if rung.predicted is not None else math.inf

    def _tops(self) -> list[Rung]:
        """The highest rungs that tell something: the highest one, and those at nearly the same load."""
        told = sorted(
            (rung for rung in self.rungs if rung.telling and rung.predicted is not None),
            key=lambda rung: -rung.came_rps,
        )
        return [rung for rung in told if rung.came_rps > (1 - _LITTLE) * told[0].came_rps]

    def _broken(self) -> list[float]:
        return [rung.came_rps for rung in self._too_much()]

    def _too_much(self) -> list[Rung]:
        """The rungs that were too much. What held at the same one or a higher one refutes what broke by chance, and so
        does the model where it breaks with the same requests and says that others would be fine: some are longer.
        """
        held = [rung for rung in self.rungs if rung.held]
        came = max((rung.came_rps for rung in held), default=0.0)
        asked = max((rung.asked_rps for rung in held), default=0.0)
        return [
            rung
            for rung in self.rungs
            if rung.broke and rung.came_rps > came and rung.asked_rps > asked and not self._foreseen(rung)
        ]

    def _foreseen(self, rung: Rung) -> bool:
        if rung.predicted is None or self.forecast_rps is None or rung.came_rps > _TOP * self.forecast_rps:
            return False
        return self._predicted_over(rung) > _FORESEEN

    def _nearly(self, rung: Rung, name: str, seen_s: float, allowed: float) -> bool:
        """Whether a rate that differs by little would explain it: near the knee a queue is long or short by chance."""
        if self.twin is None or rung.predicted is None:
            return False
        here, low, high = (
            getattr(predict(self.twin, rung.came_rps * share, self._objectives, requests=_QUICK), f"{name}_p50_s")
            for share in (1.0, 1 - _LITTLE, 1 + _LITTLE)
        )
        expected_s = getattr(rung.predicted, f"{name}_p50_s")
        if not math.isfinite(here):
            return True
        return bool(expected_s * low / here / allowed <= seen_s <= expected_s * high / here * allowed)

    # Where to go next.

    def _next_rate(self) -> float | None:
        if self.rungs and self.rungs[-1].step.reason not in (None, TOO_FEW, CUT_SHORT):
            return None  # our own side failed; more load would not help
        failed = self._broken()
        # By chance far fewer may have come than were asked for.
        tried = (min(rung.asked_rps, _LUCK * rung.came_rps) for rung in self.rungs if rung.held)
        held = max(tried, default=self._live_equivalent_rps)
        if self._doubted is None and (doubt := self._doubt()) is not None:
            if (again := self._once_more()) is not None:
                return again
            self._doubted, self._climbs = doubt, 0
        if self._doubted is not None:
            return self._climb(held, failed)
        if len(self.rungs) >= _MAX_RUNGS or sum(rung.broke for rung in self.rungs) >= _MAX_FAILED:
            return None
        if self.forecast_rps is None:
            return self._before_a_forecast(held, failed)
        return self._towards(self.forecast_rps, held, min(failed, default=math.inf))

    def _once_more(self) -> float | None:
        """The rate that raised a doubt, where it was tried only once: it may have been a slow moment."""
        broken = self._too_much()
        if not broken:
            tops = self._tops()
            return tops[0].came_rps if len(tops) == 1 else None
        asked_rps = min(rung.asked_rps for rung in broken)
        tries = sum(abs(rung.asked_rps / asked_rps - 1) < _LITTLE for rung in self.rungs)
        return asked_rps if tries == 1 else None

    def _before_a_forecast(self, held: float, failed: Sequence[float]) -> float:
        """Up in long strides from about one request at a time; half way back from what was too much."""
        if failed:
            return (held + min(failed)) / 2
        return held * _LONG_STRIDE if self.rungs else max(held * _STRIDE, held + 0.7 / self._lone_s)

    def _towards(self, forecast_rps: float, held: float, failed: float) -> float | None:
        """The next share of the forecast, or of a little less than what was too much; no further from what held than a
        stride.
        """
        ceiling = min(forecast_rps, _BELOW * failed)
        for share in _RUNGS:
            rate = share * ceiling
            if rate > held * _FURTHER and (share > _RUNGS[0] or rate > self._live_equivalent_rps * 1.2):
                stride = _LONG_STRIDE if held < 0.4 * ceiling else _STRIDE
                return min(rate, held * stride) if held else rate
        # A single rung tells a law, but not how sure it is.
        return _TOP * ceiling if sum(rung.telling for rung in self.rungs) < _FEWEST_PARTS - 1 else None

    def _climb(self, held: float, failed: Sequence[float]) -> float | None:
        """Up in small steps, then between the highest that held and the lowest that did not."""
        self._climbs += 1
        above = min((rate for rate in failed if rate > held), default=None)
        if self._climbs > _MAX_CLIMBS or (above is not None and above < held * _CLOSE):
            return None
        return held * _CLIMB if above is None else min(math.sqrt(held * above), held * _LEAP)

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

"""The search for the knee: predict where it is from what has been seen, then verify by going near it. Pure.

    live traffic --> Understanding --> forecast --> a rung at a share of it --> Understanding --> forecast --> ...

In: readings of the server's metrics and, after each rung, our requests. Out: the next rung, as a StepPlan, and at last
a Capacity (verdict.py). Rates are of requests like the workload's; live users count as so many of these as they take
room of. Where rungs show what the model does not explain, it is left aside and the knee is climbed to in small steps.

The work takes some seconds, in `next` and at the end: search_aside.py does it away from an event loop.
"""

import math
from collections.abc import Sequence

from probe.capacity.model.hints import Hints
from probe.capacity.search.search_state import LITTLE, REACHED, TOP, KneeEstimate, SearchState
from probe.capacity.search.verdict import (
    CLIMB,
    ENOUGH,
    FORECAST,
    by_model,
    ceiling,
    doubt,
    empirical,
    nothing,
    too_much,
    void,
)
from probe.core.objectives import Objectives
from probe.core.result import Capacity, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.step import Arrivals, Pattern, StepPlan, StepRun, StepSummary
from probe.core.workload import Workload
from probe.load.step_summary import CUT_SHORT, MIN_REQUESTS, TOO_FEW

# Shares of the forecast to climb to. The last one is near enough that what lies beyond is no surprise.
_RUNGS = (0.5, 0.72, TOP)
_BELOW = 0.95  # of a load that was too much: what is still to be tried
# No rung is more than this times the last one that held: the forecast may be wrong. Far below it, a bit more.
_STRIDE, _LONG_STRIDE = 1.45, 1.7
_MAX_RUNGS, _MAX_FAILED = 9, 2
_FEWEST_TELLING = 2  # a single rung tells a law, but not how sure it is
# A rung is long enough for its batch to fill and for its queue to show, in residence times, and at least this long.
_WARM_RESIDENCES, _RESIDENCES = 1.0, 2.0
_MIN_WARM_S, _MAX_WARM_S, _MIN_S, _MAX_S = 2.0, 15.0, 10.0, 30.0
_TOP_LONGER = 1.3
_LONGEST_S = 90.0  # for requests that are rare
_FURTHER = 1.06
# Without a model: how near the two ends have to come, how far one may go between them, and how many rungs that takes.
_CLOSE, _LEAP, _MAX_CLIMBS = 1.08, 1.3, 7


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
        self.known = SearchState(workload, objectives, hints or Hints())
        self._explains = explain
        self._knee: KneeEstimate | None = None  # by all that was seen
        self._doubted: str | None = None  # why the model was left aside
        self._climbs = 0

    def saw(self, readings: Sequence[ServerSnapshot], lone: StepSummary) -> None:
        """Live traffic without ours, and a single request."""
        self.known.watched(readings, lone)
        self._knee = None

    def next(self) -> StepPlan | None:
        """The next rung, or None when the search is over."""
        self.known.refresh()
        rate = self._next_rate()
        own = rate - self.known.live_equivalent_rps if rate is not None else 0.0
        if rate is None or own <= 0:  # users may have come meanwhile, and take all of the next rung themselves
            return None
        residence_s, forecast_rps = self.known.residence_s(rate), self.known.forecast_rps
        top = self._doubted is not None or (forecast_rps and rate > REACHED * forecast_rps)
        seconds = min(max(_RESIDENCES * residence_s, _MIN_S), _MAX_S) * (_TOP_LONGER if top else 1.0)
        seconds = max(seconds, min(1.2 * (ENOUGH if top else MIN_REQUESTS) / own, _LONGEST_S))
        warm_up_s = min(max(_WARM_RESIDENCES * residence_s, _MIN_WARM_S), _MAX_WARM_S)
        return StepPlan(
            concurrency=math.ceil(3 * own * residence_s + 8),
            seconds=seconds,
            loop="open",
            warm_up_s=warm_up_s,
            # Where by chance a fifth more come than were asked for, users wait longer than anybody wanted.
            # A step that goes on, since too few requests came, does so for twice its length at most.
            arrivals=Arrivals(Pattern.POISSON, own, counted_s=(warm_up_s, seconds, seconds, seconds)),
        )

    def took(self, step: StepSummary, run: StepRun, readings: Sequence[ServerSnapshot], tripped: str | None) -> None:
        """What came of the rung that `next` gave; `tripped`: why the guard ended it, if it did."""
        self.known.took(step, run, readings, tripped)
        self._knee = None

    def ended(self) -> str | None:
        return None  # the capacity says it

    def capacity(self, steps: Sequence[StepSummary], stopped: Stopped) -> Capacity:
        """What is known so far."""
        if (why := void(steps, stopped)) is not None:
            return Capacity(mode=FORECAST, reason=why)
        self.known.refresh()
        self._knee = knee = self._knee or self.known.knee(explain=self._explains)
        if knee is None:
            return nothing(self.known)
        # A model that was put aside may have learnt from what came then.
        if (doubted := doubt(self.known)) is not None:
            return empirical(self.known, doubted)
        return by_model(self.known, knee, verified=self._doubted is None)

    def _next_rate(self) -> float | None:
        known = self.known
        if known.rungs and known.rungs[-1].step.reason not in (None, TOO_FEW, CUT_SHORT):
            return None  # our own side failed; more load would not help
        held = max((rung.came_rps for rung in known.rungs if rung.held), default=known.live_equivalent_rps)
        if self._doubted is None and (doubted := doubt(known)) is not None:
            if (again := self._once_more()) is not None:
                return again
            self._doubted, self._climbs = doubted, 0
        failed = ceiling(known)
        if self._doubted is not None:
            return self._climb(held, failed)
        if len(known.rungs) >= _MAX_RUNGS or sum(rung.broke for rung in known.rungs) >= _MAX_FAILED:
            return None
        if known.forecast_rps is not None:
            return self._towards(known.forecast_rps, held, failed)
        # A twin without a forecast says that no rate holds.
        return self._before_a_forecast(held, failed) if known.twin is None else None

    def _once_more(self) -> float | None:
        """The rate that raised a doubt, where it was tried only once: it may have been a slow moment."""
        broken = too_much(self.known)
        if not broken:
            tops = self.known.tops()
            return tops[0].came_rps if len(tops) == 1 else None
        rate = min(rung.came_rps for rung in broken)
        tries = sum(abs(rung.came_rps / rate - 1) < LITTLE for rung in self.known.rungs)
        return rate if tries == 1 else None

    def _before_a_forecast(self, held: float, failed: float) -> float:
        """Up in long strides from about one request at a time; half way back from what was too much."""
        if failed < math.inf:
            return (held + failed) / 2
        return held * _LONG_STRIDE if self.known.rungs else max(held * _STRIDE, held + 0.7 / self.known.lone_s)

    def _towards(self, forecast_rps: float, held: float, failed: float) -> float | None:
        """The next share of the forecast, or of a little less than what was too much; no further from what held than a
        stride.
        """
        ceiling = min(forecast_rps, _BELOW * failed)
        for share in _RUNGS:
            rate = share * ceiling
            if rate > held * _FURTHER and (share > _RUNGS[0] or rate > self.known.live_equivalent_rps * 1.2):
                stride = _LONG_STRIDE if held < 0.4 * ceiling else _STRIDE
                return min(rate, held * stride) if held else rate
        return TOP * ceiling if sum(rung.telling for rung in self.known.rungs) < _FEWEST_TELLING else None

    def _climb(self, held: float, failed: float) -> float | None:
        """Up in small steps, then between the highest that held and the lowest that did not."""
        self._climbs += 1
        if self._climbs > _MAX_CLIMBS or failed < held * _CLOSE:
            return None
        return held * CLIMB if failed == math.inf else min(math.sqrt(held * failed), held * _LEAP)

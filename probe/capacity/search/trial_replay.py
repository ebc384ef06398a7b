"""Replays of trials on the twin, as the search needs them: latencies, single requests, and the guard's reaction. Pure.

In: a trial, and the twin to replay it on. The live users and the speed of that segment come from the server model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from probe.capacity.model.front_end_delay import FrontEndEstimate
from probe.capacity.model.replay import replay, replay_once, would_guard_stop
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.twin import Prediction, Twin
from probe.capacity.search.trial import Trial, sent_requests
from probe.core.objectives import Objectives
from probe.observe.guard_limits import GuardLimits
from probe.simulator.cost import scaled
from probe.simulator.simulated_request import SimulatedRequest

_SETTLE_RESIDENCES = 3.0  # mean request durations until the live users of a replay are as many as usual
_FRONT_REPLAYS = 3  # of each candidate: their mean, as users' arrivals are random; without users one


def with_front_end(bare: Twin, estimate: FrontEndEstimate) -> Twin:
    return replace(bare, front_end=estimate.front_end, added_s=estimate.added_s)


@dataclass(frozen=True, slots=True)
class TrialReplays:
    """Replays among the model's live users.

    `unloaded_s`: E2E of the unloaded baseline; `slowdown`: by what factor steps of each part took longer than the fit
    says, 1 where that is not known.
    """

    model: ServerModel
    objectives: Objectives
    unloaded_s: float
    slowdown: Sequence[float] = ()

    def latencies(self, twin: Twin, trial: Trial) -> Prediction | None:
        """Return the mean latencies of several replays; None if the trial is not informative."""
        if not trial.is_informative or not trial.run.records:
            return None
        return replay(
            self._at_speed_of(trial, twin),
            sent_requests(trial.run),
            self.model.live,
            self.objectives,
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
        )

    def would_guard_stop(self, twin: Twin, trial: Trial) -> bool:
        """Return whether the guard would stop the twin as well, in a trial that it stopped as a precaution."""
        if not trial.is_precaution or not trial.run.records:
            return False
        return would_guard_stop(
            self._at_speed_of(trial, twin),
            sent_requests(trial.run),
            self.model.live,
            GuardLimits().promised(self.objectives).offered(trial.load_rps),
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
        )

    def requests(self, twin: Twin, trial: Trial, seed: int = 0) -> Sequence[SimulatedRequest]:
        """Return the judged requests of one replay, at the server's usual speed."""
        return replay_once(
            twin,
            sent_requests(trial.run),
            self.model.live,
            settle_s=self._settle_s(trial),
            user_arrivals=trial.user_arrivals,
            seed=seed,
        ).judged

    def ttfts_behind(self, bare: Twin, estimate: FrontEndEstimate, trial: Trial) -> Sequence[float]:
        """Return each request's TTFT behind a front end: the mean of some replays, since users' arrivals are random."""
        twin = self._at_speed_of(trial, with_front_end(bare, estimate))
        has_users = self.model.live_rps > 0 or any(arrived.count for arrived in trial.user_arrivals)
        played = [self.requests(twin, trial, seed) for seed in range(_FRONT_REPLAYS if has_users else 1)]
        return [fmean(request.ttft_s for request in same) + twin.added_s for same in zip(*played, strict=True)]

    def _at_speed_of(self, trial: Trial, twin: Twin) -> Twin:
        factor = self.slowdown[trial.part] if 0 <= trial.part < len(self.slowdown) else 1.0
        return replace(twin, cost=scaled(twin.cost, factor))

    def _settle_s(self, trial: Trial) -> float:
        return _SETTLE_RESIDENCES * (trial.step.e2e_s.mean or self.unloaded_s)

"""One engine in virtual time, with its requests. Pure.

Input: requests in the order in which the front end passes them on, and how far time may advance. Output: the times of
each request, and the metrics. Scheduler and costs are the mock server's (probe/mock_server).

Consecutive steps that only decode, most of a server's steps, are simulated at once, with the noise of their mean.

Where steps are planned ahead, a request that finds the engine busy enters the step after the next.
"""

import math
from math import inf
from random import Random
from typing import Final

from probe.simulator.clocks import FrontEndThread, StepClock
from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.metrics_model import SimulatedMetrics
from probe.simulator.simulated_request import SimulatedRequest

_WORTH_SKIPPING: Final = 3  # steps


class Departures:
    """Tokens on their way to clients, in the order of time: the first one of a request, or the last."""

    def __init__(self) -> None:
        self._at_s: list[float] = []
        self._requests: list[SimulatedRequest] = []
        self._is_last: list[bool] = []

    def add(self, at_s: float, request: SimulatedRequest, is_last: bool) -> None:  # noqa: FBT001 - called positionally
        """Let a token leave at `at_s`."""
        self._at_s.append(at_s)
        self._requests.append(request)
        self._is_last.append(is_last)

    def deliver(self, until_s: float, ended: list[SimulatedRequest]) -> None:
        """Give requests what has left by then, unless the client is gone; add those with their last to `ended`."""
        count = 0
        for at_s in self._at_s:
            if at_s > until_s:
                break
            request = self._requests[count]
            if not request.ended:
                if self._is_last[count]:
                    request.last_s, request.ended = at_s, True
                    ended.append(request)
                else:
                    request.first_s = at_s
            count += 1
        del self._at_s[:count], self._requests[:count], self._is_last[:count]


class Replica:
    """One engine and its clock. Tokens that the front end sends are appended to `departures`, in order."""

    def __init__(
        self,
        profile: Profile,
        random: Random,
        front: FrontEndThread,
        measured: SimulatedMetrics,
        departures: Departures,
    ) -> None:
        self.engine = SimulatedEngine(profile)
        self.entering: list[SimulatedRequest] = []  # in the order of entered_s
        self.times_s: list[float] = []  # when the tokens of each step were sent
        self.generated = 0.0  # tokens
        self._front, self._measured, self._departures = front, measured, departures
        self._clock = StepClock(profile.cost, profile.jitter, random)
        self._may_skip = not (profile.jitter.hiccup_every_s or profile.front_end.per_output_token_s)
        self._is_caching, self._plans_ahead = profile.prefix_caching, profile.plans_ahead
        self._tokens_a_step = 0.0  # of all that decode
        self._is_planned = False
        self._step_ends_s = 0.0
        self._now_s = 0.0
        self._began_s = 0.0  # the last step
        self._made_s = 0.0  # when the last step was over

    def next_s(self) -> float:
        """Return when this engine does something next; infinite when idle."""
        if self._is_planned:
            return self._step_ends_s
        if self.engine.has_work:
            return self._now_s
        return max(self._now_s, self.entering[0].entered_s) if self.entering else inf

    def run(self, until_s: float) -> None:
        """Run the steps that end by then."""
        engine, entering = self.engine, self.entering
        while True:
            if self._is_planned:
                if self._step_ends_s > until_s:
                    return
                self._now_s = self._step_ends_s
                self._is_planned = False
                engine.complete()
                self._complete()
            while entering and entering[0].entered_s <= self._planned_s():
                request = entering.pop(0)
                if not request.ended:
                    engine.enter(request)
            self._skip(min(until_s, entering[0].entered_s) if entering else until_s)
            planned_s = self._planned_s()
            if engine.plan():
                self._begin(planned_s)
            elif entering and entering[0].entered_s <= until_s:
                self._now_s = max(self._now_s, entering[0].entered_s)
            else:
                self._now_s = max(self._now_s, until_s)
                return

    def abort(self, request: SimulatedRequest) -> None:
        """Drop the request of a client that is gone; do nothing if it is not here."""
        if self.engine.holds(request):
            self._stop_decoding(request)
            self.engine.abort(request.number)

    def _planned_s(self) -> float:
        """Return when the step that begins now was planned."""
        return self._began_s if self._plans_ahead and self.engine.is_occupied() else self._now_s

    def _skip(self, until_s: float) -> None:
        """Run consecutive decode-only steps at once."""
        calm = self.engine.decode_only_steps() if self._may_skip else 0
        if calm < _WORTH_SKIPPING:
            return
        one_s = self._mean_cost_s(calm)
        steps = min(calm, self._clock.certain_steps(one_s, max(until_s - self._now_s, 0.0))) if one_s else calm
        if steps < _WORTH_SKIPPING:
            return
        one_s = self._clock.mean_taken_s(self._mean_cost_s(steps), self._now_s, steps)
        decoding = self.engine.skip(steps)
        begin_s, measured = self._now_s, self._measured
        measured.itl.add(one_s, decoding * steps)
        measured.iteration_tokens.add(self._tokens_a_step, steps)
        measured.generation_tokens += self._tokens_a_step * steps
        self.generated += self._tokens_a_step * steps
        for i in range(1, steps + 1):
            self.times_s.append(begin_s + one_s * i)
        self._began_s = begin_s + one_s * (steps - 1)
        self._now_s = self._made_s = begin_s + one_s * steps

    def _mean_cost_s(self, steps: int) -> float:
        decoding = self.engine.running
        return self._clock.cost_s(decoding, decoding, self.engine.mean_kv_tokens(steps), 0.0)

    def _begin(self, planned_s: float) -> None:
        step, measured = self.engine.in_flight, self._measured
        self._is_planned = True
        self._began_s = self._now_s
        clock = self._clock
        cost_s = clock.cost_s(step.sequences, step.tokens, step.kv_tokens, step.pairs) if step.sequences else 0.0
        self._step_ends_s = self._now_s + clock.taken_s(cost_s, self._now_s)
        for request in step.started:
            if request.preemptions:
                continue
            request.scheduled_s = planned_s
            if self._is_caching:
                request.found_tokens = self.engine.cached_tokens(request.prompt_tokens, request.shared_tokens)
                measured.prefix_queries += request.prompt_tokens
                measured.prefix_hits += request.found_tokens
        for request in step.preempted:
            measured.preemptions += 1
            if self._stop_decoding(request):
                request.earlier = request.step_ranges()
                request.from_step = -1

    def _complete(self) -> None:
        measured, step, before_s = self._measured, self.engine.in_flight, self._made_s
        generated = self._tokens_a_step
        self._made_s = self._now_s
        out_s = self._front.hand_out(self._made_s, step.decoded + len(step.prefilled))
        turned_s = self._front.begun_s
        self.times_s.append(out_s)
        prompt_tokens = found_tokens = 0
        for request in step.prefilled:
            if math.isnan(request.made_first_s):
                request.made_first_s = self._made_s
                prompt_tokens += request.prompt_tokens
                found_tokens += request.found_tokens
                generated += 1
                measured.ttft.add(turned_s - request.entered_s, 1)
                self._departures.add(out_s, request, False)  # noqa: FBT003
            else:  # recomputed after a preemption
                generated += request.tokens_a_step()
                measured.itl.add(self._made_s - request.made_last_s, 1)
            request.from_step, request.to_step = len(self.times_s) - 1, -1
            self._tokens_a_step += request.tokens_a_step()
        if step.decoded:
            measured.itl.add(self._made_s - before_s, step.decoded)
        if step.decoded or step.prefilled:
            measured.step(prompt_tokens, found_tokens, generated)
            self.generated += generated
        for request in step.finished:
            self._stop_decoding(request)
            measured.ended(request, turned_s)
            self._departures.add(out_s, request, True)  # noqa: FBT003

    def _stop_decoding(self, request: SimulatedRequest) -> bool:
        """End the request's current range of steps with the last completed one. Return False if it has none."""
        if request.from_step < 0 or request.to_step >= 0:
            return False
        request.to_step = len(self.times_s)
        request.made_last_s = self._made_s
        self._tokens_a_step -= request.tokens_a_step()
        return True

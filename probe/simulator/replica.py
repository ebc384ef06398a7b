"""One engine in virtual time, with its requests. Pure.

Input: requests in the order in which the front end passes them on, and how far time may advance. Output: the times of
each request, and the metrics. Scheduler and costs are the mock server's (probe/mock_server).

Consecutive steps that only decode, most of a server's steps, are simulated at once, with the noise of their mean.

Where steps are planned ahead, a request that finds the engine busy enters the step after the next.
"""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from probe.simulator.cost import FrontEndThread, Profile
from probe.simulator.engine import SimulatedEngine
from probe.simulator.engine_step import ScheduledStep, StepOutcome
from probe.simulator.metrics_model import SimulatedMetrics
from probe.simulator.simulated_request import SimulatedRequest

_WORTH_SKIPPING = 3  # steps


class Departure(NamedTuple):
    """Tokens that leave at `at_s`: the first ones of `started`, the last ones of `finished`."""

    at_s: float
    started: Sequence[SimulatedRequest]
    finished: Sequence[SimulatedRequest]


class Replica:
    """One engine and its clock. Tokens that the front end sends are appended to `departures`, in order."""

    def __init__(
        self,
        profile: Profile,
        random: Random,
        front: FrontEndThread,
        measured: SimulatedMetrics,
        departures: deque[Departure],
    ) -> None:
        self.engine = SimulatedEngine(profile)
        self.entering: deque[SimulatedRequest] = deque()  # in the order of entered_s
        self.times_s = array("d")  # when the tokens of each step were sent
        self.generated = 0.0  # tokens
        self._profile, self._random, self._front = profile, random, front
        self._measured, self._departures = measured, departures
        self._open: dict[int, SimulatedRequest] = {}
        self._tokens_a_step = 0.0  # of all that decode
        self._plan: ScheduledStep | None = None
        self._step_ends_s = 0.0
        self._now_s = 0.0
        self._began_s = 0.0  # the last step
        self._made_s = 0.0  # when the last step was over

    @property
    def next_s(self) -> float:
        """Return when this engine does something next; infinite when idle."""
        if self._plan is not None:
            return self._step_ends_s
        if self.engine.has_work:
            return self._now_s
        return max(self._now_s, self.entering[0].entered_s) if self.entering else math.inf

    def run(self, until_s: float) -> None:
        engine, entering = self.engine, self.entering
        while True:
            if self._plan is not None:
                if self._step_ends_s > until_s:
                    return
                self._now_s = self._step_ends_s
                self._plan = None
                self._complete(engine.complete_step())
            while entering and entering[0].entered_s <= self._planned_s:
                self._enter(entering.popleft())
            self._skip(min(until_s, entering[0].entered_s) if entering else until_s)
            planned_s = self._planned_s
            plan = engine.plan_step()
            if plan is not None:
                self._begin(plan, planned_s)
            elif entering and entering[0].entered_s <= until_s:
                self._now_s = max(self._now_s, entering[0].entered_s)
            else:
                self._now_s = max(self._now_s, until_s)
                return

    def abort(self, request: SimulatedRequest) -> None:
        """Drop the request of a client that is gone; do nothing if it is not here."""
        if self._open.get(request.number) is request:
            del self._open[request.number]
            self._stop_decoding(request)
            self.engine.abort(request.number)

    @property
    def _planned_s(self) -> float:
        """Return when the step that begins now was planned."""
        return self._began_s if self._profile.plans_ahead and self.engine.is_occupied else self._now_s

    def _skip(self, until_s: float) -> None:
        """Run consecutive decode-only steps at once."""
        calm = self.engine.decode_only_steps()
        jitter = self._profile.jitter
        if calm < _WORTH_SKIPPING or jitter.hiccup_every_s or self._profile.front_end.per_output_token_s:
            return
        one_s = self._profile.cost.step_seconds(self.engine.decode_only_batch(calm))
        room = max(until_s - self._now_s, 0.0) / (one_s * (1 + jitter.drift_ratio)) if one_s else float(calm)
        # Three standard deviations below what fits, or slow steps would end after the limit.
        steps = min(calm, int(room - 3 * jitter.noise_ratio * math.sqrt(room)))
        if steps < _WORTH_SKIPPING:
            return
        one_s = self._profile.cost.step_seconds(self.engine.decode_only_batch(steps))
        # Steps have independent noise, so their mean's falls with the root of their number.
        noise = max(1 + self._random.gauss(0.0, jitter.noise_ratio) / math.sqrt(steps), 0.5)
        one_s = jitter.drifted(one_s * noise, self._now_s)
        decoding = len(self.engine.skip(steps))
        begin_s, measured = self._now_s, self._measured
        measured.itl.add(one_s, decoding * steps)
        measured.iteration_tokens.add(self._tokens_a_step, steps)
        measured.generation_tokens += self._tokens_a_step * steps
        self.generated += self._tokens_a_step * steps
        self.times_s.extend([begin_s + one_s * i for i in range(1, steps + 1)])
        self._began_s = begin_s + one_s * (steps - 1)
        self._now_s = self._made_s = begin_s + one_s * steps

    def _enter(self, request: SimulatedRequest) -> None:
        if request.ended:
            return
        request.number = self.engine.submit(
            prompt_tokens=request.prompt_tokens, output_tokens=request.steps, shared_tokens=request.shared_tokens
        )
        self._open[request.number] = request

    def _begin(self, plan: ScheduledStep, planned_s: float) -> None:
        self._plan = plan
        profile, measured = self._profile, self._measured
        self._began_s = self._now_s
        cost_s = profile.cost.step_seconds(plan.batch) if plan.batch.sequences else 0.0
        self._step_ends_s = self._now_s + profile.jitter.seconds(cost_s, self._now_s, self._random)
        for number in plan.admitted:
            request = self._open[number]
            request.scheduled_s = planned_s
            if profile.prefix_caching:
                request.found_tokens = self.engine.cached_tokens(request.prompt_tokens, request.shared_tokens)
                measured.prefix_queries += request.prompt_tokens
                measured.prefix_hits += request.found_tokens
        for number in plan.preempted:
            request = self._open[number]
            request.preemptions += 1
            measured.preemptions += 1
            self._stop_decoding(request)

    def _complete(self, outcome: StepOutcome) -> None:
        measured, step, before_s = self._measured, len(self.times_s), self._made_s
        decoded = len(outcome.decoded)
        generated = self._tokens_a_step
        self._made_s = self._now_s
        turned_s, out_s = self._front.hand_out(self._made_s, decoded + len(outcome.prefilled))
        self.times_s.append(out_s)
        prompt_tokens = found_tokens = 0
        started: list[SimulatedRequest] = []
        for number in outcome.prefilled:
            request = self._open[number]
            if math.isnan(request.made_first_s):
                request.made_first_s = self._made_s
                prompt_tokens += request.prompt_tokens
                found_tokens += request.found_tokens
                generated += 1
                measured.ttft.add(turned_s - request.entered_s)
                started.append(request)
            else:  # recomputed after a preemption
                generated += request.tokens_a_step
                measured.itl.add(self._made_s - request.made_last_s)
            request.since = step
            self._tokens_a_step += request.tokens_a_step
        if decoded:
            measured.itl.add(self._made_s - before_s, decoded)
        if decoded or outcome.prefilled:
            measured.step(prompt_tokens, found_tokens, generated)
            self.generated += generated
        finished = [self._open.pop(number) for number in outcome.finished]
        for request in finished:
            self._stop_decoding(request)
            measured.ended(request, turned_s)
        if started or finished:
            self._departures.append(Departure(out_s, started, finished))

    def _stop_decoding(self, request: SimulatedRequest) -> None:
        """End the request's current range of steps with the last completed one."""
        if request.since >= 0:
            request.step_ranges.append((request.since, len(self.times_s)))
            request.since = -1
            request.made_last_s = self._made_s
            self._tokens_a_step -= request.tokens_a_step

"""How long engine steps and the front end take: what cost.py says, and chance."""

import math
from math import nan
from random import Random
from typing import Final

from probe.simulator.cost import NO_JITTER, Batch, FrontEnd, Jitter, StepCost

# Memory traffic and compute overlap, so a step takes about the longer of the two, and a bit more where they are close.
# The p-norm with this exponent is 19 % higher where they are equal.
_OVERLAP: Final = 4.0
_DEVIATIONS: Final = 3.0  # of the noise that steps simulated at once have room for, or slow ones would end too late
_WIDTH: Final = 4 * math.exp(-0.5) / math.sqrt(2.0)


class StepClock:
    """How long the steps of one engine take: what they cost, and chance."""

    def __init__(self, cost: StepCost, jitter: Jitter = NO_JITTER, random: Random | None = None) -> None:
        self._law = None if type(cost).step_seconds is StepCost.step_seconds else cost  # a formula of its own
        self._host_s, self._per_sequence_s, self._per_token_s = cost.host_s, cost.per_sequence_s, cost.per_token_s
        self._weights_s, self._per_kv_token_s, self._per_pair_s = cost.weights_s, cost.per_kv_token_s, cost.per_pair_s
        self._noise_ratio, self._drift_ratio = jitter.noise_ratio, jitter.drift_ratio
        self._drift_period_s = jitter.drift_period_s
        self._hiccup_every_s, self._hiccup_s = jitter.hiccup_every_s, jitter.hiccup_s
        self._uniform = (random or Random()).random
        self._spare = nan  # a number that _gauss made beside the last one

    def cost_s(self, sequences: int, tokens: int, kv_tokens: int, pairs: float) -> float:
        """Return what a step costs; the arguments are as in Batch."""
        if self._law is not None:
            return self._law.step_seconds(Batch(sequences, tokens, kv_tokens, pairs))
        larger = self._weights_s + self._per_kv_token_s * kv_tokens
        smaller = self._per_token_s * tokens
        if larger <= smaller:
            larger, smaller = smaller, larger
        overlapped_s = larger * math.pow(1 + math.pow(smaller / larger, _OVERLAP), 1 / _OVERLAP) if smaller else larger
        return self._host_s + self._per_sequence_s * sequences + overlapped_s + self._per_pair_s * pairs

    def taken_s(self, cost_s: float, at_s: float) -> float:
        """Return how long a step of that cost takes if it begins at `at_s`; never negative."""
        taken_s = cost_s
        if self._noise_ratio:
            sigma = self._noise_ratio
            taken_s *= math.exp(-sigma * sigma / 2 + self._normal() * sigma)
        taken_s = self._drifted(taken_s, at_s)
        if self._hiccup_every_s and self._uniform() < cost_s / self._hiccup_every_s:
            taken_s += self._hiccup_s
        return taken_s

    def mean_taken_s(self, cost_s: float, at_s: float, steps: int) -> float:
        """Return how long each of several steps of that cost takes in the mean, without hiccups."""
        # Steps have independent noise, so their mean's falls with the root of their number.
        noise = self._noise_ratio * self._gauss() / math.sqrt(steps)
        return self._drifted(cost_s * max(1 + noise, 0.5), at_s)

    def certain_steps(self, cost_s: float, room_s: float) -> int:
        """Return how many steps of that cost are almost certain to end in this time."""
        room = room_s / (cost_s * (1 + self._drift_ratio))
        return int(room - _DEVIATIONS * self._noise_ratio * math.sqrt(room))

    def _drifted(self, taken_s: float, at_s: float) -> float:
        """Scale a mean duration to the speed of that moment."""
        if not self._drift_ratio:
            return taken_s
        return taken_s * (1 + self._drift_ratio * math.sin(2 * math.pi * at_s / self._drift_period_s))

    def _gauss(self) -> float:
        """Return a standard normal number, as Python's Random.gauss: two at a time (Box and Muller, 1958)."""
        spare, self._spare = self._spare, nan
        if not math.isnan(spare):
            return spare
        angle = self._uniform() * 2 * math.pi
        radius = math.sqrt(-2.0 * math.log(1.0 - self._uniform()))
        self._spare = math.sin(angle) * radius
        return math.cos(angle) * radius

    def _normal(self) -> float:
        """Return one too, as Random.normalvariate: a ratio of uniform ones (Kinderman and Monahan, 1977)."""
        while True:
            first = self._uniform()
            second = 1.0 - self._uniform()
            ratio = _WIDTH * (first - 0.5) / second
            if ratio * ratio / 4.0 <= -math.log(second):
                return ratio


class FrontEndThread:
    """The API server before the engine: one thread that does one thing after another. Call it in the order of time.

    A step's tokens leave together, when all of them are written: vLLM's loop hands a step's outputs to the responses
    before it sends the first of them. Where tokens cost nothing, they do not wait for requests either.
    """

    def __init__(self, costs: FrontEnd) -> None:
        self.free_at_s = 0.0
        self.begun_s = 0.0  # the last thing done
        self._per_request_s, self._per_prompt_token_s = costs.per_request_s, costs.per_prompt_token_s
        self._per_output_token_s = costs.per_output_token_s

    def pass_on(self, at_s: float, prompt_tokens: int) -> float:
        """Return when the engine gets a request that arrived at `at_s`."""
        return self._do(at_s, self._per_request_s + self._per_prompt_token_s * prompt_tokens)

    def hand_out(self, at_s: float, tokens: int) -> float:
        """Return when the tokens of a step that ended at `at_s` are sent; `begun_s` is when the thread begins."""
        return self._do(at_s, self._per_output_token_s * tokens)

    def _do(self, at_s: float, cost_s: float) -> float:
        if not cost_s:
            self.begun_s = at_s
            return at_s
        self.begun_s = max(self.free_at_s, at_s)
        self.free_at_s = self.begun_s + cost_s
        return self.free_at_s

"""The cost of an engine step, and the profile of a simulated server. Pure.

Input: what a step holds. Output: seconds. Only this module decides how long anything takes, so the capacity of a
simulated server is known, and a search for that capacity can be checked.
"""

import math
from dataclasses import astuple, dataclass
from math import inf, nan
from random import Random
from typing import NamedTuple

# vLLM reserves one block of the pool (the null block) and leaves it out of the usage ratio.
NULL_BLOCKS = 1


class Batch(NamedTuple):
    """What one engine step holds.

    `tokens`: all that it computes; `kv_tokens`: those in the KV cache before, over all sequences; `pairs`: pairs of a
    prompt's token with one before it, the work of attention over a long prompt.
    """

    sequences: int
    tokens: int
    kv_tokens: int = 0
    pairs: float = 0.0


# Memory traffic and compute overlap, so a step takes about the longer of the two, and a bit more where they are close.
# The p-norm with this exponent is 19 % higher where they are equal.
_OVERLAP = 4.0
_DEVIATIONS = 3.0  # of the noise that steps simulated at once have room for, or slow ones would end too late
_WIDTH = 4 * math.exp(-0.5) / math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one engine step by what is in it: a roofline plus a constant.

    host + per_sequence * sequences + max(weights + per_kv_token * kv_tokens, per_token * tokens) + per_pair * pairs,
    with a smooth maximum. `host_s` is launch overhead; `per_sequence_s` sampling and detokenising; the maximum is
    reading weights and KV cache or computing the tokens, whichever takes longer (Williams, Waterman, Patterson:
    Roofline, 2009); `per_pair_s` is attention over long prompts.
    """

    host_s: float
    per_sequence_s: float
    per_token_s: float
    weights_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_pair_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= term < inf for term in astuple(self)):
            raise ValueError("a step's cost cannot be negative or infinite")

    def step_seconds(self, batch: Batch) -> float:
        """Return the seconds of a step that holds `batch`."""
        return StepClock(self).cost_s(*batch)


@dataclass(frozen=True, slots=True)
class Jitter:
    """Variation of step times around their cost.

    `noise_ratio`: standard deviation of each step's log-normal noise, of mean one, so that averages stay. Hiccups:
    pauses of `hiccup_s`, one per `hiccup_every_s` of work. Drift: the speed goes up and down by `drift_ratio` with
    the period `drift_period_s`, like clocks that follow the temperature.
    """

    noise_ratio: float = 0.0
    hiccup_every_s: float = 0.0
    hiccup_s: float = 0.0
    drift_ratio: float = 0.0
    drift_period_s: float = 600.0

    def __post_init__(self) -> None:
        if not (0 <= self.noise_ratio < 1 and 0 <= self.drift_ratio < 1):
            raise ValueError("noise_ratio and drift_ratio must be in [0, 1)")
        if min(self.hiccup_every_s, self.hiccup_s) < 0 or self.drift_period_s <= 0:
            raise ValueError("hiccups take no negative time, and a drift some time")


NO_JITTER = Jitter()


def scaled(cost: StepCost, factor: float) -> StepCost:
    """Return the cost multiplied by a factor: the same server, that many times as slow."""
    return StepCost(*(term * factor for term in astuple(cost)))


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Costs of the API server before the engine: one thread, which takes requests and sends tokens in turn."""

    per_request_s: float = 0.0
    per_prompt_token_s: float = 0.0
    per_output_token_s: float = 0.0

    def request_seconds(self, prompt_tokens: int) -> float:
        """Return the seconds that a request takes before the engine has it."""
        return self.per_request_s + self.per_prompt_token_s * prompt_tokens


@dataclass(frozen=True, slots=True)
class Profile:
    """A server to simulate: its step cost, and its limits under vLLM's names.

    Raises ValueError where vLLM would refuse to start: if a request of `max_model_len` does not fit in the KV cache, or
    a decode of every sequence not in one step's tokens. Both rules keep the scheduler free of starvation.

    `plans_ahead`: a step is planned when the one before it begins, so a request that finds the engine busy waits one
    step more (vLLM's asynchronous scheduling, its default on GPUs). `request_blocks`: what each request holds beside
    the blocks of its tokens, such as full windows of other kinds of attention. `max_num_queued_reqs`: requests that may
    be in the server, running ones too; `max_num_queued_tokens`: of prompts without a first token. More are refused, by
    the mock server alone; None: no limit.
    """

    name: str
    description: str
    cost: StepCost
    max_num_seqs: int
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_model_len: int
    jitter: Jitter = Jitter()
    front_end: FrontEnd = FrontEnd()
    prefix_caching: bool = False
    plans_ahead: bool = False
    request_blocks: int = 0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.block_size < 1 or self.max_model_len < 1:
            raise ValueError(f"{self.name}: max_num_seqs, block_size and max_model_len must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"{self.name}: max_num_batched_tokens must be at least max_num_seqs")
        if self.blocks_for(self.max_model_len) > self.usable_blocks:
            raise ValueError(
                f"{self.name}: a request of max_model_len needs {self.blocks_for(self.max_model_len)} KV blocks,"
                f" there are {self.usable_blocks}"
            )

    @property
    def usable_blocks(self) -> int:
        """Return the KV blocks available to requests."""
        return self.num_blocks - NULL_BLOCKS

    def check_lengths(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raise ValueError for a request that is empty or longer than max_model_len."""
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if prompt_tokens + output_tokens > self.max_model_len:
            raise ValueError(f"a request may have at most {self.max_model_len} tokens, in and out")

    def blocks_for(self, tokens: int) -> int:
        """Return how many KV blocks `tokens` tokens of one request occupy."""
        return -(-tokens // self.block_size) + self.request_blocks


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

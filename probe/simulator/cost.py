"""The cost of an engine step, and the profile of a simulated server. Pure.

Input: what a step holds. Output: seconds. Only this module decides how long anything takes, so the capacity of a
simulated server is known, and a search for that capacity can be checked.
"""

from dataclasses import astuple, dataclass
from math import inf
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
        from probe.simulator.clocks import StepClock  # noqa: PLC0415 - which imports this module

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

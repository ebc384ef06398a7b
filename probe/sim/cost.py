"""What a step costs, and the made-up servers the stand-in can pretend to be. Pure.

Input: how many sequences and tokens a step holds. Output: seconds. Because this is the only
place that decides how long anything takes, the capacity of a simulated server is known from
it, and a search for that capacity can be checked.

No profile models a particular machine or engine build: the numbers are round, and chosen for
where the knee falls.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

# vLLM keeps one block of the pool to itself (the null block), and leaves it out of the usage ratio.
NULL_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one engine step: a constant, plus a share for each sequence and each token in it.

    The constant stands for launch overhead and for reading the weights, which no batch size
    saves; the share of a sequence for sampling and detokenising; the share of a token for compute.
    """

    host_s: float
    per_sequence_s: float
    per_token_s: float

    def __post_init__(self) -> None:
        terms = (self.host_s, self.per_sequence_s, self.per_token_s)
        if min(terms) < 0 or not all(map(math.isfinite, terms)):
            raise ValueError("a step's cost cannot be negative or infinite")

    def step_seconds(self, *, sequences: int, tokens: int) -> float:
        """Seconds for a step of `tokens` tokens spread over `sequences` sequences."""
        return self.host_s + self.per_sequence_s * sequences + self.per_token_s * tokens


def jittered(seconds: float, noise_ratio: float, random: Random) -> float:
    """`seconds` times log-normal noise of mean one, so that noise moves no average; never negative."""
    if noise_ratio <= 0:
        return seconds
    return seconds * random.lognormvariate(-noise_ratio * noise_ratio / 2, noise_ratio)


@dataclass(frozen=True, slots=True)
class Profile:
    """A server to pretend to be: its step cost, and limits under vLLM's own names for them.

    Raises ValueError where vLLM would refuse to start: when a request of `max_model_len` cannot
    fit in the KV cache, or a decode of every sequence not in one step's tokens. Both rules are
    what keeps the scheduler free of starvation.
    """

    name: str
    description: str
    cost: StepCost
    max_num_seqs: int
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_model_len: int
    noise_ratio: float = 0.0

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
        if not 0 <= self.noise_ratio < 1:
            raise ValueError(f"{self.name}: noise_ratio must be in [0, 1)")

    @property
    def usable_blocks(self) -> int:
        """KV blocks that requests can hold."""
        return self.num_blocks - NULL_BLOCKS

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that `tokens` tokens of one request occupy."""
        return -(-tokens // self.block_size)


_TINY = Profile(
    name="tiny",
    description="fast, for tests: 25 ms to the first of 128-in/64-out, then 4 ms a token; queues beyond 8",
    cost=StepCost(host_s=0.0036, per_sequence_s=0.0002, per_token_s=0.00016),
    max_num_seqs=8,
    block_size=16,
    num_blocks=512,
    max_num_batched_tokens=512,
    max_model_len=1024,
    noise_ratio=0.02,
)
_LLAMA_8B = Profile(
    name="llama-8b",
    description="about an 8B model on one GPU; 256-in/64-out passes 500 ms TTFT and 50 ms TPOT between 16 and 32",
    cost=StepCost(host_s=0.0105, per_sequence_s=0.0012, per_token_s=0.00008),
    max_num_seqs=64,
    block_size=16,
    num_blocks=1281,
    max_num_batched_tokens=2048,
    max_model_len=8192,
    noise_ratio=0.03,
)
_SMALL_KV = Profile(
    name="small-kv",
    description="the tiny server with room for 8 requests of 128-in/64-out in its KV cache: preempts beyond",
    cost=_TINY.cost,
    max_num_seqs=32,
    block_size=16,
    num_blocks=97,
    max_num_batched_tokens=512,
    max_model_len=1024,
    noise_ratio=0.02,
)

PROFILES: Mapping[str, Profile] = MappingProxyType({p.name: p for p in (_TINY, _LLAMA_8B, _SMALL_KV)})

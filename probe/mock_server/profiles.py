"""The profiles: fictional servers that the mock server can imitate.

No profile models a particular machine or engine build. Sizes and speeds are typical for a model and a GPU of that
kind, and are chosen for the limit that the profile is named after.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypedDict, Unpack

from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost

_ROUGH = Jitter(noise_ratio=0.06, hiccup_every_s=5.0, hiccup_s=0.05)


def _gpu(
    *,
    weights_gb: float,
    gb_per_s: float,
    gflop_per_token: float,
    tflop_per_s: float,
    kv_kb: float,
    host_ms: float = 3.0,
) -> StepCost:
    """Return the step cost of a model: bytes over memory bandwidth, and a token's work over the speed in practice."""
    return StepCost(
        host_s=host_ms * 1e-3,
        per_sequence_s=2e-5,
        per_token_s=gflop_per_token / tflop_per_s * 1e-3,
        weights_s=weights_gb / gb_per_s,
        per_kv_token_s=kv_kb / gb_per_s * 1e-6,
        per_pair_s=gflop_per_token / tflop_per_s * 1e-3 * 2e-6,
    )


class _Limits(TypedDict, total=False):
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    jitter: Jitter
    front_end: FrontEnd
    prefix_caching: bool


def _server(
    name: str, description: str, cost: StepCost, kv_tokens: int = 400_000, **limits: Unpack[_Limits]
) -> Profile:
    num_blocks = kv_tokens // _USUAL.block_size + 1
    return replace(_USUAL, name=name, description=description, cost=cost, num_blocks=num_blocks, **limits)


_TINY_COST = StepCost(host_s=0.0036, per_sequence_s=0.0002, per_token_s=0.00016)
_TINY = Profile(
    name="tiny",
    description="fast, for tests: 25 ms to the first of 128-in/64-out, then 4 ms a token; queues beyond 8 requests",
    cost=_TINY_COST,
    max_num_seqs=8,
    block_size=16,
    num_blocks=512,
    max_num_batched_tokens=512,
    max_model_len=1024,
    jitter=Jitter(noise_ratio=0.02),
)
_LLAMA_8B = Profile(
    name="llama-8b",
    description="about an 8B model on one GPU; 256-in/64-out exceeds 500 ms TTFT and 50 ms TPOT between 16 and"
    " 32 requests in flight",
    cost=StepCost(host_s=0.0105, per_sequence_s=0.0012, per_token_s=0.00008),
    max_num_seqs=64,
    block_size=16,
    num_blocks=1281,
    max_num_batched_tokens=2048,
    max_model_len=8192,
    jitter=Jitter(noise_ratio=0.03),
)
_SMALL_KV = Profile(
    name="small-kv",
    description="the tiny server with room for 8 requests of 128-in/64-out in its KV cache: preempts beyond that",
    cost=_TINY_COST,
    max_num_seqs=32,
    block_size=16,
    num_blocks=97,
    max_num_batched_tokens=512,
    max_model_len=1024,
    jitter=Jitter(noise_ratio=0.02),
)

# Models on GPUs: A100 about 1.6 TB/s and 150 Tflop/s reached, H100 2.6 and 400, L4 0.25 and 50, H200 3.8 and 420.
_1B_L4 = _gpu(weights_gb=2.5, gb_per_s=250, gflop_per_token=2.5, tflop_per_s=50, kv_kb=32)
_8B_L4 = _gpu(weights_gb=16, gb_per_s=250, gflop_per_token=16, tflop_per_s=50, kv_kb=128)
_1B_H100 = _gpu(weights_gb=2.5, gb_per_s=2600, gflop_per_token=2.5, tflop_per_s=300, kv_kb=32)
_8B_A100 = _gpu(weights_gb=16, gb_per_s=1600, gflop_per_token=16, tflop_per_s=150, kv_kb=128)
_8B_H100 = _gpu(weights_gb=16, gb_per_s=2600, gflop_per_token=16, tflop_per_s=400, kv_kb=128)
_8B_FP8 = _gpu(weights_gb=8, gb_per_s=2600, gflop_per_token=16, tflop_per_s=700, kv_kb=64)
_14B_A100 = _gpu(weights_gb=28, gb_per_s=1600, gflop_per_token=28, tflop_per_s=150, kv_kb=192)
_32B_H100 = _gpu(weights_gb=64, gb_per_s=5200, gflop_per_token=64, tflop_per_s=760, kv_kb=256, host_ms=4)
_70B_H100 = _gpu(weights_gb=140, gb_per_s=10_400, gflop_per_token=140, tflop_per_s=1450, kv_kb=320, host_ms=6)
_70B_A100 = _gpu(weights_gb=140, gb_per_s=6400, gflop_per_token=140, tflop_per_s=560, kv_kb=320, host_ms=6)
_MOE_H200 = _gpu(weights_gb=60, gb_per_s=15_000, gflop_per_token=40, tflop_per_s=1500, kv_kb=70, host_ms=9)

_USUAL = Profile(
    name="usual",
    description="the default limits of the servers below",
    cost=_8B_A100,
    max_num_seqs=256,
    block_size=16,
    num_blocks=25_001,
    max_num_batched_tokens=2048,
    max_model_len=16_384,
    jitter=Jitter(noise_ratio=0.03),
)
_ALL = (
    _TINY,
    _LLAMA_8B,
    _SMALL_KV,
    _server("1b-l4", "a small model on a small GPU", _1B_L4),
    _server("8b-l4", "an 8B model on a GPU with low memory bandwidth: reading the weights takes 64 ms", _8B_L4,
            kv_tokens=40_000),
    _server("1b-h100", "a small model on a large GPU: host time dominates each step", _1B_H100),
    _server("8b-a100", "an 8B model on one GPU", _8B_A100),
    _server("8b-h100", "an 8B model on one fast GPU", _8B_H100),
    _server("8b-fp8", "an 8B model with 8-bit weights", _8B_FP8, kv_tokens=800_000),
    _server("14b-a100", "a 14B model on one GPU", _14B_A100, kv_tokens=200_000),
    _server("32b-h100", "a 32B model on two GPUs", _32B_H100),
    _server("70b-h100", "a 70B model on four fast GPUs", _70B_H100),
    _server("70b-a100", "a 70B model on four GPUs", _70B_A100),
    _server("moe-h200", "a large mixture of experts on eight GPUs: high host overhead", _MOE_H200, max_num_seqs=512),
    _server("kv-tight", "the 8B model with a KV cache of 24k tokens: preempts", _8B_H100, kv_tokens=24_000),
    _server("kv-14b", "the 14B model with little memory left for the KV cache", _14B_A100, kv_tokens=24_000),
    _server("kv-70b", "the 70B model with little memory left for the KV cache", _70B_H100, kv_tokens=40_000),
    _server("seats-16", "the 8B model with max_num_seqs 16: queues while the GPU is half idle", _8B_H100,
            max_num_seqs=16),
    _server("seats-32", "the 14B model with max_num_seqs 32", _14B_A100, max_num_seqs=32),
    _server("seats-64", "the small model with max_num_seqs 64", _1B_H100, max_num_seqs=64),
    _server("chunk-512", "the 8B model with max_num_batched_tokens 512", _8B_A100, max_num_batched_tokens=512),
    _server("chunk-8192", "the 8B model with max_num_batched_tokens 8192", _8B_A100, max_num_batched_tokens=8192),
    _server("long-context", "the 8B model with 128k of context", _8B_H100,
            kv_tokens=600_000, max_num_batched_tokens=8192, max_model_len=131_072),
    _server("rough", "the 8B model on a noisy machine with pauses", _8B_A100, jitter=_ROUGH),
    _server("drifting", "the 8B model on a machine whose speed goes up and down by 6 %", _8B_A100,
            jitter=Jitter(noise_ratio=0.03, drift_ratio=0.06)),
    _server("slow-front", "a small model behind an API server that adds 12 ms per request", _1B_H100,
            front_end=FrontEnd(per_request_s=0.012)),
    _server("slow-stream", "a small model behind an API server that adds 60 us per token", _1B_H100,
            front_end=FrontEnd(per_request_s=0.001, per_output_token_s=6e-5)),
    _server("tokenizer", "the 8B model behind an API server that is slow to tokenise", _8B_H100,
            front_end=FrontEnd(per_request_s=0.002, per_prompt_token_s=2e-5)),
    _server("prefix", "the 8B model with a prefix cache", _8B_A100, prefix_caching=True),
    _server("attention", "a model whose prompts' cost grows with the square of their length",
            StepCost(0.004, 2e-5, 4e-5, 0.006, 5e-8, 4e-9),
            kv_tokens=600_000, max_num_batched_tokens=8192, max_model_len=65_536),
)  # fmt: skip

PROFILES: Mapping[str, Profile] = MappingProxyType({p.name: p for p in _ALL})

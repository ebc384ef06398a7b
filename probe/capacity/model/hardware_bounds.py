"""What a model can do at most on its GPUs, by arithmetic alone: no server is asked. Pure.

In: a ModelShape, a GpuSpec and the lengths of requests. Out: HardwareBounds. Real servers stay below them, since
kernels do not reach peak rates, GPUs exchange data, and the host takes time. That holds for ASSUMPTIONS: a server may
pass a bound where the prefix cache hits more than the shared tokens, or where it keeps or reads them once for several
requests; where a step gives more than one token (speculative decoding); where it computes in FP4 or INT8; and where
attention is linear or has a sliding window, which keep and read less.

The formulas:

- A decode step reads the weights once, and the KV cache of every request in it: step >= (weights + KV) / bandwidth
  (Pope et al.: Efficiently Scaling Transformer Inference, 2022, section 2; Williams et al.: Roofline, 2009).
- A token takes two operations for each active parameter (Kaplan et al., 2020, table 1: 2N a token forward).
- A token's KV cache is a key and a value, for each layer and each KV head: 2 x layers x heads x head size x bytes
  (Kwon et al.: PagedAttention, 2023, section 3; grouped heads: Ainslie et al.: GQA, 2023). With latent attention it is
  one compressed vector for each layer (DeepSeek-V2, 2024, section 2.1).
- Requests in flight = requests/s x time of each (Little's law).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from probe.capacity.model.hints import ModelSize
from probe.capacity.model.roofline import prefill_peak_tokens_s
from probe.gpu.peak_specs import GpuSpec

_GB = 1e9
_GIB = 2**30
ASSUMPTIONS = "BF16 or FP8 compute, full attention, no speculative decoding, prefix-cache hits on shared tokens only"


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV cache of a token: `elements` of each of `heads` heads in each layer. Every GPU holds at least one head.

    `elements`: of one head, key and value together; with latent attention, of the compressed vector, and one head.
    """

    layers: int
    heads: int
    elements: int
    bits: int = 16
    given_bytes: float | None = None  # of a token over all GPUs, where that is known instead

    def bytes_per_token(self, gpus: int) -> float:
        """Return the bytes over all GPUs. More GPUs than heads hold copies."""
        if self.given_bytes is not None:
            return self.given_bytes
        return self.layers * max(self.heads, gpus) * self.elements * self.bits / 8


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model on its GPUs. `parameters`: all of them; `active`: those used for one token; None: all of them.

    `gpu_weight_bytes`: of one GPU, as the server's log says; None: by the parameters. `gpu_activation_bytes`: what one
    GPU keeps for activations, CUDA graphs and buffers. `block_tokens`: of a block of the KV cache.
    """

    parameters: float
    active: float | None = None
    weight_bits: int = 16
    gpus: int = 1
    kv: KvShape | None = None
    gpu_weight_bytes: float | None = None
    gpu_activation_bytes: float = 0.0
    block_tokens: int = 16

    @property
    def size(self) -> ModelSize:
        """Return the parameters that a token is computed with."""
        return ModelSize(self.active or self.parameters, self.weight_bits, self.gpus)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of all weights, over all GPUs."""
        if self.gpu_weight_bytes is not None:
            return self.gpu_weight_bytes * self.gpus
        return self.parameters * self.weight_bits / 8

    @property
    def read_bytes(self) -> float:
        """Return the bytes of weights that a decode step reads, over all GPUs."""
        return self.size.weight_bytes if self.active is not None else self.weight_bytes


@dataclass(frozen=True, slots=True)
class LoadBound:
    """Bounds with so many requests in flight. `kv_share`: of the KV cache's memory, above 1 if they do not fit."""

    in_flight: int
    step_s: float
    output_tokens_s: float
    requests_s: float
    kv_share: float | None


@dataclass(frozen=True, slots=True)
class HardwareBounds:
    """The bounds of a model on its GPUs. None: not known without the memory or the shape of the KV cache.

    `shared_tokens`: of each prompt, which the prefix cache has; their KV cache counts for each request all the same.
    `kv_bytes`: the memory that weights and activations leave, over all GPUs; 0 or less: they do not fit. `kv_blocks`:
    whole ones that fit there, and `kv_tokens` what they hold. `sequences`: the most requests of these lengths that fit
    whole in the KV cache.
    """

    model: ModelShape
    gpu: GpuSpec
    prompt_tokens: float
    output_tokens: float
    prefill_tokens_s: float
    kv_bytes_per_token: float | None
    kv_bytes: float | None
    kv_blocks: int | None
    kv_tokens: int | None
    sequences: int | None
    shared_tokens: float = 0.0

    @property
    def computed_tokens(self) -> float:
        """Return how many tokens of a prompt are computed: at least the last one."""
        return max(self.prompt_tokens - self.shared_tokens, 1.0)

    @property
    def ttft_s(self) -> float:
        """Return the least time of a prompt alone."""
        return self.computed_tokens / self.prefill_tokens_s

    def at(self, in_flight: int) -> LoadBound:
        """Return the bounds with so many requests in flight, in the middle of their answers on average."""
        context = self.prompt_tokens + self.output_tokens / 2
        kv = (self.kv_bytes_per_token or 0.0) * context * in_flight
        read_s = (self.model.read_bytes + kv) / (self.model.gpus * self.gpu.bandwidth_gb_s * _GB)
        step_s = max(read_s, in_flight / self.prefill_tokens_s)
        alone_s = self.ttft_s + max(self.output_tokens - 1, 0.0) * step_s
        computed_s = (self.computed_tokens + self.output_tokens) / self.prefill_tokens_s
        requests_s = min(in_flight / alone_s, 1 / computed_s)
        used = (self.kv_bytes_per_token or 0.0) * (self.prompt_tokens + self.output_tokens) * in_flight
        share = used / self.kv_bytes if self.kv_bytes and self.kv_bytes > 0 and self.kv_bytes_per_token else None
        return LoadBound(in_flight, step_s, requests_s * self.output_tokens, requests_s, share)

    def loads(self) -> Iterator[LoadBound]:
        """Yield the bounds at 1, 2, 4 ... requests in flight, to the most that fit or to 256."""
        most = self.sequences if self.sequences is not None else 256
        count = 1
        while count < min(most, 1024):
            yield self.at(count)
            count *= 2
        if most > 0:
            yield self.at(min(most, 1024))


def hardware_bounds(
    model: ModelShape,
    on: GpuSpec,
    prompt_tokens: float,
    output_tokens: float,
    memory_share: float = 0.9,
    *,
    shared_tokens: float = 0.0,
) -> HardwareBounds:
    """Return the bounds for requests of these mean lengths. The prefix cache has their first `shared_tokens`.

    `memory_share`: vLLM's --gpu-memory-utilization.
    """
    rate = prefill_peak_tokens_s(model.size, on)
    per_token = model.kv.bytes_per_token(model.gpus) if model.kv is not None else None
    free = None
    if on.memory_gib is not None:
        kept = model.weight_bytes + model.gpus * model.gpu_activation_bytes
        free = model.gpus * on.memory_gib * _GIB * memory_share - kept
    blocks = int(max(free, 0.0) / (per_token * model.block_tokens)) if free is not None and per_token else None
    tokens = blocks * model.block_tokens if blocks is not None else None
    return HardwareBounds(
        model=model,
        gpu=on,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefill_tokens_s=rate,
        kv_bytes_per_token=per_token,
        kv_bytes=free,
        kv_blocks=blocks,
        kv_tokens=tokens,
        sequences=int(tokens / (prompt_tokens + output_tokens)) if tokens is not None else None,
        shared_tokens=shared_tokens,
    )

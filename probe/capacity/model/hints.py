"""Facts about a server that its metrics do not show, from the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.core.server_limits import LARGE_GPU, SMALL_GPU

_FP8_BITS = 8
SET_MAX_NUM_SEQS = (
    f"set capacity.server.max_num_seqs to the server's --max-num-seqs (vLLM's default is {SMALL_GPU.max_num_seqs}, but"
    f" {LARGE_GPU.max_num_seqs} on {LARGE_GPU.hardware})"
)
SET_KV_CACHE_TOKENS = "set capacity.server.kv_cache_tokens to it, as vLLM logs it at its start"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model on its GPUs.

    `parameters`: those used for one token (of a mixture of experts, the active ones); `gpus`: how many share each step
    (tensor parallel).
    """

    parameters: float
    weight_bits: int = 16
    gpus: int = 1

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights over all GPUs."""
        return self.parameters * self.weight_bits / 8

    @property
    def is_fp8(self) -> bool:
        """Return whether the model computes in 8 bits. 4-bit weights are unpacked to 16 bits first (AWQ, GPTQ)."""
        return self.weight_bits == _FP8_BITS


@dataclass(frozen=True, slots=True)
class Hints:
    """The server's limits and hardware. None: unknown, or to be inferred.

    `max_num_seqs`: the most requests that run at once in an engine, also by max_num_active_seqs; `least_max_num_seqs`:
    a lower bound where that is unknown. `max_num_batched_tokens`: the most tokens of a step. `flags`: the startup flags
    that a twin does not have (unmodelled.READ).
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu: str | None = None  # a name that probe.gpu.peak_specs.gpu() knows
    model: ModelSize | None = None
    least_max_num_seqs: int = 1
    flags: Mapping[str, str] = field(default_factory=dict)


NO_HINTS = Hints()

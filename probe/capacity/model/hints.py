"""Facts about a server that its metrics do not show, from the configuration."""

from dataclasses import dataclass

_FP8_BITS = 8
# vLLM's least default of max_num_seqs (vllm/engine/arg_utils.py, 0.32): on CPUs; on GPUs it is 256 or 1024.
LEAST_DEFAULT = 128
SET_MAX_NUM_SEQS = (
    "set capacity.server.max_num_seqs to the server's --max-num-seqs (vLLM's default is 256, but 1024 on GPUs of 70 GiB"
    " and more except the A100)"
)


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
    """The server's flags and hardware. None: unknown, or to be inferred.

    `least_max_num_seqs`: a lower bound where max_num_seqs is unknown.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu: str | None = None  # a name that probe.gpu.peak_specs.gpu() knows
    model: ModelSize | None = None
    least_max_num_seqs: int = 1


NO_HINTS = Hints()

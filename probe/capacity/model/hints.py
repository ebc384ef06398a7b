"""What is known of a server that its metrics do not say."""

from dataclasses import dataclass

_FP8_BITS = 8


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model on its GPUs. `parameters`: those that work on a token, which a step with one request reads (of a mixture
    of experts, the active ones); `gpus`: that share each step (tensor parallel).
    """

    parameters: float
    weight_bits: int = 16
    gpus: int = 1

    @property
    def weight_bytes(self) -> float:
        """Over all GPUs."""
        return self.parameters * self.weight_bits / 8

    @property
    def fp8(self) -> bool:
        """Whether it computes in 8 bits. Weights of 4 are unpacked to 16 first (AWQ, GPTQ)."""
        return self.weight_bits == _FP8_BITS


@dataclass(frozen=True, slots=True)
class Hints:
    """Flags that it was started with, and what it runs on. None: it has to be seen, or is not known."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu: str | None = None  # as gpus.gpu() takes it
    model: ModelSize | None = None


NO_HINTS = Hints()

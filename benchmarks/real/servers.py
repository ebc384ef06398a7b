"""The real servers that are recorded: vLLM on the CPU, each with another bottleneck. Sizes suit one core.

The objectives were chosen once, from what a server of that kind answers unloaded, before anything was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.core.objectives import Objective, Objectives
from probe.core.request import Api
from probe.core.workload import LognormalLength, Workload

# A decode step of some 4 ms on one core, about as long as the API server needs for a request; and one of some 15 ms.
_TINY: Mapping[str, int] = {}
_MEDIUM = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}


@dataclass(frozen=True, slots=True)
class Spec:
    """One server and its workload. `flags`: vLLM's, beside those that all of them have."""

    name: str
    bound_by: str
    model: Mapping[str, int]
    flags: tuple[str, ...]
    workload: Workload
    objectives: Objectives = field(default=Objectives("recorded"))


def _objectives(ttft_s: float, tpot_s: float) -> Objectives:
    return Objectives("recorded", ttft=Objective(0.95, ttft_s), tpot=Objective(0.95, tpot_s))


def _flags(seqs: int, blocks: int, chunk: int = 512, length: int = 1024) -> tuple[str, ...]:
    return (
        f"--max-model-len={length}",
        f"--max-num-seqs={seqs}",
        f"--num-gpu-blocks-override={blocks}",
        f"--max-num-batched-tokens={chunk}",
    )


def _chat(prompt: int, output: int) -> Workload:
    """Return a workload with lengths like people's: some far longer than most."""
    return Workload(
        "recorded",
        Api.COMPLETIONS,
        LognormalLength(prompt, 0.5, 4 * prompt),
        LognormalLength(output, 0.5, 4 * output),
    )


SPECS = {
    spec.name: spec
    for spec in (
        Spec("api", "the API server", _TINY, _flags(64, 1024), _chat(64, 24), _objectives(0.25, 0.025)),
        Spec("engine", "decoding", _MEDIUM, _flags(64, 1024), _chat(96, 48), _objectives(0.5, 0.05)),
        Spec(
            "kv",
            "KV cache",
            _MEDIUM,
            _flags(32, 48),
            Workload("recorded", Api.COMPLETIONS, 160, 64),
            _objectives(0.75, 0.06),
        ),
        Spec("seats", "max_num_seqs", _MEDIUM, _flags(4, 1024), _chat(48, 32), _objectives(0.75, 0.05)),
        Spec(
            "prompts",
            "prefill",
            _MEDIUM,
            _flags(64, 2048, length=2048),
            Workload("recorded", Api.COMPLETIONS, LognormalLength(500, 0.5, 1500), 16),
            _objectives(2.0, 0.3),
        ),
    )
}

"""How far a server is from what its GPU can do at most. Pure.

The roofline (Williams, Waterman, Patterson: Roofline, 2009) has two limits. A step reads all weights once, so it takes
at least their bytes over the memory's bandwidth, however few requests are in it. A token
takes two floating-point operations for each parameter (Kaplan et al.: Scaling Laws for Neural Language Models, 2020,
table 1: 2N a token forward, attention over the context left out), so prompts are read at no more than peak FLOP/s over
2N tokens a second.

In: a GPU's name as NVML or dcgm-exporter gives it, the model's size, a fitted StepCost; or two readings of vLLM's own
estimates. Out: ratios, and one sentence of words. None where the GPU is not in the table: a guess would be no limit.
"""

import re
from dataclasses import dataclass

from probe.records import ServerSnapshot
from probe.sim.cost import Batch, StepCost

_GB, _TERA = 1e9, 1e12
FLOP_PER_PARAMETER = 2.0
# A step of this many tokens of prompts is all compute: where the two limits meet is at some hundred tokens.
_PROMPT_TOKENS = 2048
_BEYOND = 1.05  # of a limit, above which what was said of the model or the GPU is wrong


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak figures of one GPU: memory bandwidth, dense tensor throughput in BF16 (FP16 where it has no BF16) and in FP8
    (None where it has none), memory. `sure`: the figures are the maker's own for this very card.
    """

    name: str
    bandwidth_gb_s: float
    bf16_tflop_s: float
    fp8_tflop_s: float | None
    memory_gb: float
    sure: bool = True

    def flop_s(self, *, fp8: bool = False) -> float:
        """Peak FLOP/s, in FP8 where it is asked for and there."""
        return (self.fp8_tflop_s if fp8 and self.fp8_tflop_s else self.bf16_tflop_s) * _TERA


# Data sheets print tensor throughput "with sparsity", twice the dense one: here it is halved. Sources: NVIDIA's data
# sheets of each product (H100, H200, A100, A30, A10, A40, L4, L40, L40S, T4, V100, RTX A6000, RTX 6000 Ada), the
# HGX and GB200 NVL72 tables of NVIDIA's Blackwell data sheet, the Ada and RTX Blackwell architecture whitepapers for
# GeForce (FP32 accumulation, which is what inference uses, is half of the printed figure), and AMD's data sheets of
# MI210 to MI355X. `sure=False`: H20 and L20 (sold in China only; NVIDIA publishes no data sheet, figures as resellers
# give them), A10G (made for one cloud), H100 NVL and H200 NVL (revisions of the data sheet differ), RTX PRO 6000 (only
# the FP4 figure is printed; a quarter and an eighth of it), B300 and GB300 (FP8 and BF16 as B200's and GB200's).
# The first pattern that is found in a name counts, so the special ones come first.
_GPUS: tuple[tuple[str, Gpu], ...] = (
    (r"GB300", Gpu("GB300", 8000, 2500, 5000, 279, sure=False)),
    (r"\bB300", Gpu("B300", 8000, 2250, 4500, 270, sure=False)),
    (r"GB200", Gpu("GB200", 8000, 2500, 5000, 186)),
    (r"\bB200", Gpu("B200", 7700, 2250, 4500, 180)),
    (r"GH200 144G", Gpu("GH200 144GB", 4900, 989.5, 1979, 144)),
    (r"GH200", Gpu("GH200 96GB", 4000, 989.5, 1979, 96)),
    (r"H200 NVL", Gpu("H200 NVL", 4800, 835.5, 1670.5, 141, sure=False)),
    (r"H200$|H200 SXM", Gpu("H200", 4800, 989.5, 1979, 141)),
    (r"H100 NVL", Gpu("H100 NVL", 3900, 835.5, 1670.5, 94, sure=False)),
    (r"H(100|800) PCIe|H100 80GB HBM2e", Gpu("H100 PCIe", 2000, 756.5, 1513, 80)),
    (r"H(100|800)( 80GB HBM3| SXM5?)?$", Gpu("H100 SXM", 3350, 989.5, 1979, 80)),
    (r"\bH20-3e", Gpu("H20 141GB", 4800, 148, 296, 141, sure=False)),
    (r"\bH20\b", Gpu("H20", 4000, 148, 296, 96, sure=False)),
    (r"A(100|800)-SXM\d?-80GB", Gpu("A100 SXM 80GB", 2039, 312, None, 80)),
    (r"A(100|800)[- ](PCIE?-)?80GB", Gpu("A100 PCIe 80GB", 1935, 312, None, 80)),
    (r"A(100|800)[- ](SXM\d?-|PCIE?-)?40GB", Gpu("A100 40GB", 1555, 312, None, 40)),
    (r"\bA10G\b", Gpu("A10G", 600, 70, None, 24, sure=False)),
    (r"\bA10\b", Gpu("A10", 600, 125, None, 24)),
    (r"\bA30\b", Gpu("A30", 933, 165, None, 24)),
    (r"\bA40\b", Gpu("A40", 696, 149.7, None, 48)),
    (r"RTX A6000", Gpu("RTX A6000", 768, 154.8, None, 48)),
    (r"RTX PRO 6000.*Server", Gpu("RTX PRO 6000 server", 1597, 500, 1000, 96, sure=False)),
    (r"RTX PRO 6000", Gpu("RTX PRO 6000", 1792, 500, 1000, 96, sure=False)),
    (r"RTX 6000 Ada", Gpu("RTX 6000 Ada", 960, 364.2, 728.5, 48)),
    (r"RTX 5090\b(?! ?(D|Laptop))", Gpu("RTX 5090", 1792, 209.5, 419, 32)),
    (r"RTX 4090\b(?! ?(D|Laptop))", Gpu("RTX 4090", 1008, 165.2, 330.3, 24)),
    (r"RTX 3090\b(?! ?(Ti|Laptop))", Gpu("RTX 3090", 936, 71, None, 24)),
    (r"\bL40S\b", Gpu("L40S", 864, 362, 733, 48)),
    (r"\bL40\b", Gpu("L40", 864, 181, 362, 48)),
    (r"\bL20\b", Gpu("L20", 864, 119.5, 239, 48, sure=False)),
    (r"\bL4\b", Gpu("L4", 300, 121, 242.5, 24)),
    (r"\bT4\b", Gpu("T4", 320, 65, None, 16)),
    (r"V100S-PCIE-32GB", Gpu("V100S", 1134, 130, None, 32)),
    (r"V100-PCIE-32GB", Gpu("V100 PCIe 32GB", 900, 112, None, 32)),
    (r"V100-PCIE-16GB", Gpu("V100 PCIe 16GB", 900, 112, None, 16)),
    (r"V100-SXM\d-32GB", Gpu("V100 SXM 32GB", 900, 125, None, 32)),
    (r"V100-SXM\d-16GB", Gpu("V100 SXM 16GB", 900, 125, None, 16)),
    (r"MI355X", Gpu("MI355X", 8000, 2516.6, 5033.2, 288)),
    (r"MI350X", Gpu("MI350X", 8000, 2306.9, 4613.7, 288)),
    (r"MI325X", Gpu("MI325X", 6000, 1307.4, 2614.9, 256)),
    (r"MI300X", Gpu("MI300X", 5300, 1307.4, 2614.9, 192)),
    (r"MI210", Gpu("MI210", 1638.4, 181, None, 64)),
)


def gpu(name: str) -> Gpu | None:
    """The GPU of that name (NVML's, dcgm-exporter's `modelName`), or None where it is not known.

    A slice of a GPU (MIG) and a virtual one (GRID, or a profile such as -24Q) have a share that the name does not tell.
    """
    if re.search(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b", name, re.IGNORECASE):
        return None
    return next((found for pattern, found in _GPUS if re.search(pattern, name, re.IGNORECASE)), None)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model on its GPUs. `parameters`: those that work on a token (of a mixture of experts, the active ones);
    `weight_bytes`: of those that a step reads, over all GPUs; `gpus`: that share each step (tensor parallel); `fp8`:
    whether it computes in 8 bits.
    """

    parameters: float
    weight_bytes: float
    gpus: int = 1
    fp8: bool = False


def decode_floor_s(model: ModelSize, on: Gpu) -> float:
    """Seconds that a step takes at least: its share of the weights over the bandwidth of a GPU."""
    return model.weight_bytes / model.gpus / (on.bandwidth_gb_s * _GB)


def prefill_peak_tokens_s(model: ModelSize, on: Gpu) -> float:
    """Tokens of prompts a second at most: FLOP/s of all GPUs over two operations a parameter."""
    return model.gpus * on.flop_s(fp8=model.fp8) / (FLOP_PER_PARAMETER * model.parameters)


@dataclass(frozen=True, slots=True)
class Distance:
    """What a server does, beside what its GPUs can at most. Ratios are of the limit: 1 is as fast as can be.

    `step_s`: a step with a single request; `prefill_tokens_s`: prompt tokens of a step that is full of them.
    """

    step_s: float
    floor_s: float
    prefill_tokens_s: float
    peak_tokens_s: float
    on: Gpu
    model: ModelSize

    @property
    def decode_ratio(self) -> float:
        """The share of the smallest step that reading the weights takes."""
        return self.floor_s / self.step_s

    @property
    def prefill_ratio(self) -> float:
        """The share of peak FLOP/s that reading prompts reaches."""
        return self.prefill_tokens_s / self.peak_tokens_s

    @property
    def words(self) -> str:
        """Both, in one sentence."""
        if max(self.decode_ratio, self.prefill_ratio) > _BEYOND:
            return (
                f"faster than {self.on.name} can be ({max(self.decode_ratio, self.prefill_ratio):.1f} times its limit):"
                " the model's size or precision, the number of GPUs or the GPU's name is not what was said"
            )
        gigabytes = self.model.weight_bytes / self.model.gpus / _GB
        return (
            f"a step takes {_ms(self.step_s)} at least; reading {gigabytes:.3g} GB of weights at"
            f" {self.on.bandwidth_gb_s:.0f} GB/s takes {_ms(self.floor_s)} of it; prompts are read at"
            f" {self.prefill_tokens_s:.3g} tokens/s, {self.prefill_ratio:.0%} of what {self.on.name} can"
        )


def distance(cost: StepCost, model: ModelSize, gpu_name: str) -> Distance | None:
    """How far a step law is from both limits; None for a GPU that is not known, or a law or a model of nothing.

    Whole steps are compared and not the law's terms: which of its terms a second is in, windows hardly tell.
    """
    on = gpu(gpu_name)
    step_s = cost.step_seconds(Batch(1, 1))
    full_s = cost.step_seconds(Batch(1, _PROMPT_TOKENS, pairs=_PROMPT_TOKENS**2 / 2))
    if on is None or min(step_s, full_s, model.parameters, model.weight_bytes) <= 0 or model.gpus < 1:
        return None
    return Distance(
        step_s=step_s,
        floor_s=decode_floor_s(model, on),
        prefill_tokens_s=_PROMPT_TOKENS / full_s,
        peak_tokens_s=prefill_peak_tokens_s(model, on),
        on=on,
        model=model,
    )


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of a GPU's peaks between two readings, 0 to 1 (or above, where vLLM's estimate is): model FLOP/s (MFU),
    and memory bandwidth.
    """

    flops_ratio: float
    bandwidth_ratio: float


def live_use(before: ServerSnapshot, after: ServerSnapshot, on: Gpu, *, fp8: bool = False) -> Use | None:
    """How much of each GPU a server used, by vLLM's own estimates (--enable-mfu-metrics), its idle time included.

    None where it does not say, was restarted or has no time passed. The mean of its engines.
    """
    seconds = (after.at_ns - before.at_ns) * 1e-9
    flops = _growth(before.estimated_flops, after.estimated_flops)
    read = _growth(before.estimated_read_bytes, after.estimated_read_bytes)
    if flops is None or read is None or seconds <= 0 or before.engines != after.engines:
        return None
    written = _growth(before.estimated_write_bytes, after.estimated_write_bytes) or 0.0
    each = seconds * after.engines  # the counters are for a GPU of an engine, and summed over engines
    return Use(flops / each / on.flop_s(fp8=fp8), (read + written) / each / (on.bandwidth_gb_s * _GB))


def _growth(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"

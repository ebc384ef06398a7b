"""How far a server is from what its GPU can do at most. Pure.

The roofline (Williams, Waterman, Patterson: Roofline, 2009) has two limits. A step reads all weights once, so it takes
at least their bytes over the memory's bandwidth, however few requests are in it. A token
takes two floating-point operations for each parameter (Kaplan et al.: Scaling Laws for Neural Language Models, 2020,
table 1: 2N a token forward, attention over the context left out), so prompts are read at no more than peak FLOP/s over
2N tokens a second.

In: a fitted Law, readings with vLLM's own estimates, and the hints, which name the GPU and the model's size. Out: a
Roofline, of what of these is known.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from probe.capacity.model.hints import Hints, ModelSize
from probe.capacity.model.step_cost_fit import StepCostModel
from probe.core.result import Roofline
from probe.core.snapshot import ServerSnapshot
from probe.gpu.peak_specs import GpuSpec, gpu
from probe.simulator.cost import Batch, StepCost

_GB = 1e9
FLOP_PER_PARAMETER = 2.0
_ALONE = Batch(1, 1)
# A step of this many tokens of prompts is all compute: where the two limits meet is at some hundred tokens.
_PROMPT_TOKENS = 2048
_FULL = Batch(1, _PROMPT_TOKENS, pairs=_PROMPT_TOKENS**2 / 2)
# Standard error of a step's duration, relative, above which the law does not tell it. It holds what scatters alone: on
# simulated servers the law was off by up to four times as much, where means stand for spreads.
_TELLING = 0.04
_STRETCH_S = 10.0  # what a GPU is busy with over less is chance


def decode_floor_s(model: ModelSize, on: GpuSpec) -> float:
    """Seconds that a step takes at least: a GPU's share of the weights over its bandwidth."""
    return model.weight_bytes / model.gpus / (on.bandwidth_gb_s * _GB)


def prefill_peak_tokens_s(model: ModelSize, on: GpuSpec) -> float:
    """Tokens of prompts a second at most: FLOP/s of all GPUs over two operations a parameter."""
    return model.gpus * on.flop_s(fp8=model.fp8) / (FLOP_PER_PARAMETER * model.parameters)


def roofline(law: StepCostModel | None, readings: Sequence[ServerSnapshot], hints: Hints) -> Roofline | None:
    """How near a server comes to its limits; None where the GPU is not known, or nothing to hold against it.

    Whole steps are compared and not the law's terms: which of its terms a second is in, windows hardly tell.
    """
    on = gpu(hints.gpu) if hints.gpu is not None else None
    if on is None:
        return None
    model = hints.model
    uses = list(_uses(readings, on, fp8=model is not None and model.fp8))
    found = Roofline(
        gpu=on.name,
        sure=on.sure,
        bandwidth_ratio=max((use.bandwidth_ratio for use in uses), default=None),
        flops_ratio=max((use.flops_ratio for use in uses), default=None),
    )
    step_s = full_s = None
    if law is not None and model is not None:
        step_s, full_s = _seconds(law, _ALONE), _seconds(law, _FULL)
        if step_s is not None:
            floor_s = decode_floor_s(model, on)
            found = replace(found, step_s=step_s, floor_s=floor_s, decode_ratio=floor_s / step_s)
        if full_s is not None:
            found = replace(found, prefill_ratio=_PROMPT_TOKENS / full_s / prefill_peak_tokens_s(model, on))
    return found if uses or step_s is not None or full_s is not None else None


def _seconds(law: StepCostModel, batch: Batch) -> float | None:
    """How long such a step takes; None where what was seen does not tell that, as of long prompts where all were short.

    Its error is what the duration changes by along each axis of the terms' scatter (an unscented transform: Julier,
    Uhlmann, 1997). At a term that is next to nothing, slopes would say that there is none.
    """
    seconds = law.cost.step_seconds(batch)
    terms = np.array(astuple(law.cost)[: len(law.covariance)])
    sizes, axes = np.linalg.eigh(np.array(law.covariance))
    error = 0.0
    for size, axis in zip(sizes, axes.T, strict=True):
        away = math.sqrt(max(size, 0.0)) * axis
        more, less = (StepCost(*np.maximum(moved, 0.0)).step_seconds(batch) for moved in (terms + away, terms - away))
        error = math.hypot(error, max(abs(more - seconds), abs(less - seconds)))
    return seconds if error < _TELLING * seconds else None


@dataclass(frozen=True, slots=True)
class PeakShare:
    """Shares of a GPU's peaks between two readings, 0 to 1 (or above, where vLLM's estimate is): model FLOP/s (MFU),
    and memory bandwidth.
    """

    flops_ratio: float
    bandwidth_ratio: float


def live_use(before: ServerSnapshot, after: ServerSnapshot, on: GpuSpec, *, fp8: bool = False) -> PeakShare | None:
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
    return PeakShare(flops / each / on.flop_s(fp8=fp8), (read + written) / each / (on.bandwidth_gb_s * _GB))


def _uses(readings: Sequence[ServerSnapshot], on: GpuSpec, *, fp8: bool) -> Iterator[PeakShare]:
    """One for each stretch of readings that is long enough."""
    begin = readings[0] if readings else None
    for reading in readings:
        if begin is None or (reading.at_ns - begin.at_ns) * 1e-9 < _STRETCH_S:
            continue
        if (use := live_use(begin, reading, on, fp8=fp8)) is not None:
            yield use
        begin = reading


def _growth(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None

"""The roofline: how close a server comes to the limits of its GPU. Pure.

A roofline (Williams, Waterman, Patterson: Roofline, 2009) has two limits. A step reads all weights once, so it takes
at least their bytes over the memory bandwidth, however few requests are in it. A token takes two floating-point
operations for each parameter (Kaplan et al.: Scaling Laws for Neural Language Models, 2020, table 1: 2N a token
forward, attention over the context left out), so prefill is limited to peak FLOP/s over 2N tokens a second.

In: a fitted StepCostModel, snapshots with vLLM's own estimates, and the hints, which name the GPU and the model's size.
Out: a Roofline with the ratios that can be known from these.
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
# A step with this many prompt tokens is compute-bound: the two limits cross at some hundred tokens.
_PROMPT_TOKENS = 2048
_FULL = Batch(1, _PROMPT_TOKENS, pairs=_PROMPT_TOKENS**2 / 2)
# Above this relative standard error, a step's duration counts as unknown. It holds scatter only: on simulated servers,
# where windows give means and not spreads, the cost model was off by up to four times as much.
_MAX_ERROR = 0.04
_MIN_SEGMENT_S = 10.0  # over a shorter time, GPU use is chance


def decode_floor_s(model: ModelSize, on: GpuSpec) -> float:
    """Return the least time of a step in seconds: a GPU's share of the weights over its memory bandwidth."""
    return model.weight_bytes / model.gpus / (on.bandwidth_gb_s * _GB)


def prefill_peak_tokens_s(model: ModelSize, on: GpuSpec) -> float:
    """Return the most prompt tokens per second: FLOP/s of all GPUs over two operations per parameter."""
    return model.gpus * on.flop_s(fp8=model.is_fp8) / (FLOP_PER_PARAMETER * model.parameters)


def prefill_rate(cost_model: StepCostModel) -> float | None:
    """Return the prompt tokens per second of an engine in steps full of prompts; None where the data do not show it."""
    full_s = _seconds(cost_model, _FULL)
    return None if full_s is None else _PROMPT_TOKENS / full_s


def compute_roofline(
    cost_model: StepCostModel | None, snapshots: Sequence[ServerSnapshot], hints: Hints
) -> Roofline | None:
    """Compare a server with the limits of its GPU; None if the GPU is unknown, or there is nothing to compare.

    Whole steps are compared, not single terms of the cost model: windows hardly show which term a second belongs to.
    """
    on = gpu(hints.gpu) if hints.gpu is not None else None
    if on is None:
        return None
    model = hints.model
    uses = list(_uses(snapshots, on, fp8=model is not None and model.is_fp8))
    found = Roofline(
        gpu=on.name,
        sure=on.sure,
        bandwidth_ratio=max((use.bandwidth_ratio for use in uses), default=None),
        flops_ratio=max((use.flops_ratio for use in uses), default=None),
    )
    step_s = prefill_tokens_s = None
    if cost_model is not None and model is not None:
        step_s, prefill_tokens_s = _seconds(cost_model, _ALONE), prefill_rate(cost_model)
        if step_s is not None:
            floor_s = decode_floor_s(model, on)
            found = replace(found, step_s=step_s, floor_s=floor_s, decode_ratio=floor_s / step_s)
        if prefill_tokens_s is not None:
            found = replace(found, prefill_ratio=prefill_tokens_s / prefill_peak_tokens_s(model, on))
    return found if uses or step_s is not None or prefill_tokens_s is not None else None


def _seconds(cost_model: StepCostModel, batch: Batch) -> float | None:
    """Return how long such a step takes; None where the data do not show it (long prompts when all were short).

    The error is the change of the duration along each axis of the terms' scatter (unscented transform: Julier, Uhlmann,
    1997). Derivatives would give none for a term that is almost zero.
    """
    seconds = cost_model.cost.step_seconds(batch)
    terms = np.array(astuple(cost_model.cost)[: len(cost_model.covariance)])
    sizes, axes = np.linalg.eigh(np.array(cost_model.covariance))
    error = 0.0
    for size, axis in zip(sizes, axes.T, strict=True):
        away = math.sqrt(max(size, 0.0)) * axis
        more, less = (StepCost(*np.maximum(moved, 0.0)).step_seconds(batch) for moved in (terms + away, terms - away))
        error = math.hypot(error, max(abs(more - seconds), abs(less - seconds)))
    return seconds if error < _MAX_ERROR * seconds else None


@dataclass(frozen=True, slots=True)
class PeakShare:
    """Shares of a GPU's peak FLOP/s (MFU) and memory bandwidth between two snapshots; vLLM's estimate may exceed 1."""

    flops_ratio: float
    bandwidth_ratio: float


def live_use(before: ServerSnapshot, after: ServerSnapshot, on: GpuSpec, *, fp8: bool = False) -> PeakShare | None:
    """Return the mean GPU use of a server's engines by vLLM's own estimates (--enable-mfu-metrics), with idle time.

    None without these estimates, after a restart, or if no time has passed.
    """
    seconds = (after.at_ns - before.at_ns) * 1e-9
    flops = _growth(before.estimated_flops, after.estimated_flops)
    read = _growth(before.estimated_read_bytes, after.estimated_read_bytes)
    if flops is None or read is None or seconds <= 0 or before.engines != after.engines:
        return None
    written = _growth(before.estimated_write_bytes, after.estimated_write_bytes) or 0.0
    each = seconds * after.engines  # the counters are for a GPU of an engine, and summed over engines
    return PeakShare(flops / each / on.flop_s(fp8=fp8), (read + written) / each / (on.bandwidth_gb_s * _GB))


def _uses(snapshots: Sequence[ServerSnapshot], on: GpuSpec, *, fp8: bool) -> Iterator[PeakShare]:
    """Yield the GPU use of each span of snapshots that is long enough."""
    begin = snapshots[0] if snapshots else None
    for snapshot in snapshots:
        if begin is None or (snapshot.at_ns - begin.at_ns) * 1e-9 < _MIN_SEGMENT_S:
            continue
        if (use := live_use(begin, snapshot, on, fp8=fp8)) is not None:
            yield use
        begin = snapshot


def _growth(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None

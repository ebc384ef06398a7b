"""The bounds of a model on its GPUs, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from probe.capacity.model.hardware_bounds import ASSUMPTIONS, HardwareBounds, LoadBound
from probe.core.step import StepSummary
from probe.report.figures import MISSING, milliseconds, number, percent

_GB, _GIB = 1e9, 2**30


def bounds_words(bounds: HardwareBounds, steps: Sequence[StepSummary] = ()) -> str:
    """Return labelled lines and a table: the bounds by requests in flight, or next to the steps of a result."""
    lines = [f"{f'{label}:':<10}{words}" for label, words in _lines(bounds)]
    rows = _beside(bounds, steps) if steps else _bounds(bounds)
    return "\n".join([*lines, *(["", *_table(rows)] if len(rows) > 1 else [])])


def bounds_json(bounds: HardwareBounds, steps: Sequence[StepSummary] = ()) -> dict[str, Any]:
    """Return the bounds for JSON, in base units."""
    return {
        "gpu": bounds.gpu.name,
        "gpus": bounds.model.gpus,
        "sure": bounds.gpu.sure,
        "weight_bytes": bounds.model.weight_bytes,
        "prompt_tokens": bounds.prompt_tokens,
        "shared_tokens": bounds.shared_tokens,
        "output_tokens": bounds.output_tokens,
        "prefill_tokens_per_second": bounds.prefill_tokens_s,
        "ttft_s": bounds.ttft_s,
        "kv_bytes_per_token": bounds.kv_bytes_per_token,
        "kv_bytes": bounds.kv_bytes,
        "kv_tokens": bounds.kv_tokens,
        "sequences": bounds.sequences,
        "loads": [_load(each) for each in bounds.loads()],
        "measured": [
            {"load": found.in_flight, "tpot_s": step.tpot_s.p50, "bound_s": found.step_s}
            for step, found in _measured(bounds, steps)
        ],
    }


def _load(bound: LoadBound) -> dict[str, Any]:
    return {
        "in_flight": bound.in_flight,
        "tpot_s": bound.step_s,
        "output_tokens_per_second": bound.output_tokens_s,
        "requests_per_second": bound.requests_s,
        "kv_ratio": bound.kv_share,
    }


def _lines(bounds: HardwareBounds) -> list[tuple[str, str]]:
    on, model = bounds.gpu, bounds.model
    count = f"{model.gpus} x " if model.gpus > 1 else ""
    memory = f", {on.memory_gib:g} GiB" if on.memory_gib is not None else ", memory not known"
    unsure = "; not confirmed by its manufacturer" if not on.sure else ""
    of = f" of {number(bounds.prompt_tokens)} (the rest is shared)" if bounds.shared_tokens else ""
    prompt = f"{number(bounds.computed_tokens)} tokens{of} take"
    peak = number(on.flop_s(fp8=model.size.is_fp8) / 1e12)
    return [
        ("GPU", f"{count}{on.name}: {number(on.bandwidth_gb_s)} GB/s, {peak} TFLOP/s{memory}{unsure}"),
        ("Weights", f"{number(model.weight_bytes / _GB)} GB at {model.weight_bits} bits"),
        (
            "Prefill",
            f"at most {number(bounds.prefill_tokens_s)} tokens/s: {prompt} at least {milliseconds(bounds.ttft_s)}",
        ),
        ("Decode", f"a step takes at least {milliseconds(bounds.at(1).step_s)} with one request: that is its TPOT"),
        ("KV cache", _kv_words(bounds)),
        ("Assumes", ASSUMPTIONS),
    ]


def _kv_words(bounds: HardwareBounds) -> str:
    if bounds.kv_bytes is not None and bounds.kv_bytes <= 0:
        lacking = number(-bounds.kv_bytes / _GIB)
        return f"none: the weights take {lacking} GiB more than the GPUs have; use more GPUs or fewer bits"
    if bounds.kv_bytes_per_token is None:
        return "unknown: give --model-config, or --layers, --kv-heads and --head-dim"
    each = f"{number(bounds.kv_bytes_per_token)} bytes a token"
    if bounds.kv_bytes is None or bounds.kv_tokens is None or bounds.sequences is None:
        return f"{each}; this GPU's memory is not confirmed, so how many fit is unknown"
    length = number(bounds.prompt_tokens + bounds.output_tokens)
    return (
        f"{each}; at most {number(bounds.kv_bytes / _GIB)} GiB, or {number(bounds.kv_tokens)} tokens:"
        f" {number(bounds.sequences)} requests of {length}"
    )


def _bounds(bounds: HardwareBounds) -> list[list[str]]:
    head = ["in flight", "TPOT at least", "output tok/s at most", "requests/s at most", "KV cache"]
    return [
        head,
        *(
            [
                str(each.in_flight),
                milliseconds(each.step_s),
                number(each.output_tokens_s),
                number(each.requests_s),
                percent(each.kv_share),
            ]
            for each in bounds.loads()
        ),
    ]


def _beside(bounds: HardwareBounds, steps: Sequence[StepSummary]) -> list[list[str]]:
    head = ["in flight", "TPOT p50", "at least", "reached", "output tok/s", "at most", "reached"]
    return [
        head,
        *(
            [
                str(found.in_flight),
                milliseconds(step.tpot_s.p50),
                milliseconds(found.step_s),
                percent(found.step_s / step.tpot_s.p50) if step.tpot_s.p50 else MISSING,
                number(step.output_tokens_per_second),
                number(found.output_tokens_s),
                percent(step.output_tokens_per_second / found.output_tokens_s),
            ]
            for step, found in _measured(bounds, steps)
        ),
    ]


def _measured(bounds: HardwareBounds, steps: Sequence[StepSummary]) -> list[tuple[StepSummary, LoadBound]]:
    """Return the steps of a closed loop with their bounds. In an open loop the requests in flight vary."""
    closed = [step for step in steps if step.valid and step.plan.arrivals is None and not step.plan.is_pulse]
    return [(step, bounds.at(step.plan.concurrency)) for step in closed]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]

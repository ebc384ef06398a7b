"""The bounds of a model on its GPUs, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from probe.capacity.model.hardware_bounds import ASSUMPTIONS, HardwareBounds, LoadBound, ModelShape
from probe.capacity.trend.levels import Level
from probe.report.figures import milliseconds, number, percent

_GB, _GIB = 1e9, 2**30
_TTFT, _TPOT = "TTFT p50", "TPOT p50"
_PASSED = 1.05


def bounds_words(bounds: HardwareBounds, levels: Sequence[Level] = ()) -> str:
    """Return labelled lines and a table: the bounds by requests in flight, or next to the steps of a result."""
    lines = [f"{f'{label}:':<10}{words}" for label, words in _lines(bounds)]
    rows = _beside(bounds, levels) if levels else _bounds(bounds)
    warning = _impossible(bounds, levels)
    return "\n".join([*lines, *(["", *_table(rows)] if len(rows) > 1 else []), *(["", warning] if warning else [])])


def bounds_json(bounds: HardwareBounds, levels: Sequence[Level] = ()) -> dict[str, Any]:
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
        "kv_blocks": bounds.kv_blocks,
        "kv_tokens": bounds.kv_tokens,
        "sequences": bounds.sequences,
        "loads": [_load(each) for each in bounds.loads()],
        "measured": [
            {"load": found.in_flight, "tpot_s": level.latencies.get(_TPOT), "bound_s": found.step_s}
            | {"ttft_s": level.latencies.get(_TTFT), "ttft_bound_s": bounds.ttft_s}
            for level, found in _measured(bounds, levels)
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
    memory = f", {number(on.memory_gib)} GiB" if on.memory_gib is not None else ", memory not known"
    unsure = "; not confirmed by its manufacturer" if not on.sure else ""
    of = f" of {number(bounds.prompt_tokens)} (the rest is shared)" if bounds.shared_tokens else ""
    prompt = f"{number(bounds.computed_tokens)} tokens{of} take"
    peak = number(on.flop_s(fp8=model.size.is_fp8) / 1e12)
    return [
        ("GPU", f"{count}{on.name}: {number(on.bandwidth_gb_s)} GB/s, {peak} TFLOP/s{memory}{unsure}"),
        ("Weights", _weight_words(model)),
        (
            "Prefill",
            f"at most {number(bounds.prefill_tokens_s)} tokens/s: {prompt} at least {milliseconds(bounds.ttft_s)}",
        ),
        ("Decode", f"a step takes at least {milliseconds(bounds.at(1).step_s)} with one request: that is its TPOT"),
        ("KV cache", _kv_words(bounds)),
        ("Assumes", ASSUMPTIONS),
    ]


def _weight_words(model: ModelShape) -> str:
    whole = f"{number(model.weight_bytes / _GB)} GB"
    given = f"{whole}, as given" if model.gpu_weight_bytes is not None else f"{whole} at {model.weight_bits} bits"
    kept = model.gpus * model.gpu_activation_bytes
    return f"{given}; activations {number(kept / _GB)} GB" if kept else given


def _kv_words(bounds: HardwareBounds) -> str:
    if bounds.kv_bytes is not None and bounds.kv_bytes <= 0:
        lacking = number(-bounds.kv_bytes / _GIB)
        return f"none: weights and activations take {lacking} GiB more than the GPUs have; use more GPUs or fewer bits"
    if bounds.kv_bytes_per_token is None:
        return "unknown: give --model-config, or --layers, --kv-heads and --head-dim"
    each = f"{number(bounds.kv_bytes_per_token)} bytes a token"
    if bounds.kv_bytes is None or bounds.kv_blocks is None or bounds.sequences is None:
        return f"{each}; this GPU's memory is not confirmed, so how many fit is unknown"
    length = number(bounds.prompt_tokens + bounds.output_tokens)
    blocks = f"{number(bounds.kv_blocks)} blocks of {bounds.model.block_tokens} ({number(bounds.kv_tokens)} tokens)"
    size = f"at most {number(bounds.kv_bytes / _GIB)} GiB, or {blocks}"
    return f"{each}; {size}: {number(bounds.sequences)} requests of {length}"


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


def _beside(bounds: HardwareBounds, levels: Sequence[Level]) -> list[list[str]]:
    head = [
        "in flight",
        "TTFT p50",
        "at least",
        "TPOT p50",
        "at least",
        "reached",
        "output tok/s",
        "at most",
        "reached",
    ]
    return [
        head,
        *(
            [
                str(found.in_flight),
                milliseconds(level.latencies.get(_TTFT)),
                milliseconds(bounds.ttft_s),
                milliseconds(level.latencies.get(_TPOT)),
                milliseconds(found.step_s),
                percent(_reached(level, found)),
                number(level.output_tokens_per_second),
                number(found.output_tokens_s),
                percent((level.output_tokens_per_second or 0.0) / found.output_tokens_s),
            ]
            for level, found in _measured(bounds, levels)
        ),
    ]


def _reached(level: Level, bound: LoadBound) -> float | None:
    tpot_s = level.latencies.get(_TPOT)
    return bound.step_s / tpot_s if tpot_s else None


def _impossible(bounds: HardwareBounds, levels: Sequence[Level]) -> str | None:
    """Return a warning where a measurement passes a bound by more than a measurement errs."""
    ratios = [_reached(level, found) or 0.0 for level, found in _measured(bounds, levels)]
    if max(ratios, default=0.0) <= _PASSED:
        return None
    words = "another GPU, more of them, fewer bits or parameters, or an assumption that does not hold"
    return f"Warning: the measurement passes the bound ({percent(max(ratios))}): {words}"


def _measured(bounds: HardwareBounds, levels: Sequence[Level]) -> list[tuple[Level, LoadBound]]:
    return [(level, bounds.at(round(level.load))) for level in levels]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]

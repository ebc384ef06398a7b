"""Results of llmperf's token_benchmark_ray.py, its ..._summary.json. Pure.

Field names: ray-project/llmperf (token_benchmark_ray.py). Its `inter_token_latency_s` is the time of the whole answer,
the first token's included, over its tokens: neither Kneewatch's TPOT nor its ITL, so it is left out. It counts tokens
with a tokenizer of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.capacity.trend.measurement import (
    HIGHER,
    LOWER,
    RATE,
    SECONDS,
    SHARE,
    TOKENS,
    ComparisonSection,
    Measurement,
    Value,
)

_LATENCIES = {"TTFT": "ttft_s", "E2E": "end_to_end_latency_s"}
_PERCENTILES = ("p50", "p95", "p99")
_LENGTHS = {"prompt tokens": "number_input_tokens", "output tokens": "number_output_tokens"}


def is_llmperf(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the document is a summary of llmperf's."""
    return "num_concurrent_requests" in documents[0] and "results_num_completed_requests" in documents[0]


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the run as a measurement of one section.

    Raises KeyError, TypeError, ValueError or ArithmeticError for a document that llmperf cannot have written.
    """
    data = documents[0]
    lengths = {of: data.get(f"results_{key}_mean") for of, key in _LENGTHS.items()}
    return Measurement(
        name=name,
        kind="llmperf",
        parts={"model": str(model)} if (model := data.get("model")) else {},
        sections={f"concurrency {int(data['num_concurrent_requests'])}": ComparisonSection(dict(_values(data)))},
        lengths={of: float(mean) for of, mean in lengths.items() if mean is not None and math.isfinite(mean)},
    )


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    answered, failed = int(data["results_num_completed_requests"]), int(data["results_number_errors"])
    yield "failed", Value(failed / max(1, answered + failed), SHARE, LOWER)
    if not answered:
        return  # no request, so no latencies
    yield "throughput", Value(float(data["results_num_completed_requests_per_min"]) / 60, RATE, HIGHER)
    yield "output", Value(float(data["results_mean_output_throughput_token_per_s"]), TOKENS, HIGHER)
    for name, key in _LATENCIES.items():
        for percentile in _PERCENTILES:
            if math.isfinite(value := float(data[f"results_{key}_quantiles_{percentile}"])):
                yield f"{name} {percentile}", Value(value, SECONDS, LOWER)

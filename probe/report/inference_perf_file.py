"""Results of inference-perf, its stage_N_lifecycle_metrics.json or summary_lifecycle_metrics.json. Pure.

Field names: inference_perf/reportgen/base.py. A stage's file names the rate, not how requests arrive, and no file names
the model. Of its latencies `time_per_output_token` is Kneewatch's TPOT, by its own tokenizer's count of tokens unless
it was told to take the server's. Its `inter_token_latency` has a gap of 0 s for each further token of a chunk (before
that, a gap for each chunk), so it is left out.
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

_LATENCIES = {"TTFT": "time_to_first_token", "TPOT": "time_per_output_token", "E2E": "request_latency"}
_PERCENTILES = {"p50": "median", "p95": "p95", "p99": "p99"}
# By Kneewatch's name: the server's count, else inference-perf's.
_LENGTHS = {"prompt tokens": ("prompt_tokens", "prompt_len"), "output tokens": ("output_tokens", "output_len")}


def is_inference_perf(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the document is inference-perf's of its requests; one of Prometheus' metrics has no load."""
    load, answered = documents[0].get("load_summary"), documents[0].get("successes")
    return (
        isinstance(load, Mapping) and isinstance(answered, Mapping) and "count" in load and "failures" in documents[0]
    )


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the stage as a measurement of one section.

    Raises AttributeError, KeyError, TypeError, ValueError or ArithmeticError for a document that inference-perf cannot
    have written.
    """
    data = documents[0]
    return Measurement(
        name=name,
        kind="inference-perf",
        parts={},
        sections={_load(data["load_summary"]): ComparisonSection(dict(_values(data)))},
        lengths=dict(_lengths(data["successes"])),
    )


def _load(load: Mapping[str, Any]) -> str:
    """Return the load in Kneewatch's words; the summary of a run has none."""
    if (concurrency := load.get("concurrency")) is not None:
        return f"concurrency {int(concurrency)}"
    return "all stages" if (rate := load.get("requested_rate")) is None else f"rate {float(rate):g}"


def _lengths(answered: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, keys in _LENGTHS.items():
        if means := [found["mean"] for key in keys if "mean" in (found := answered.get(key) or {})]:
            yield name, float(means[0])


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    successes = data["successes"]
    answered, failed = int(successes["count"]), int(data["failures"]["count"])
    yield "failed", Value(failed / max(1, answered + failed), SHARE, LOWER)
    if not answered:
        return  # no request, so no latencies
    rates, goodput = successes["throughput"], successes.get("goodput_metrics") or {}
    for name, value, unit in (
        ("throughput", rates.get("requests_per_sec"), RATE),
        ("goodput", goodput.get("request_goodput"), RATE),
        ("output", rates.get("output_tokens_per_sec"), TOKENS),
    ):
        if value is not None and math.isfinite(value):
            yield name, Value(float(value), unit, HIGHER)
    for name, key in _LATENCIES.items():
        found = successes["latency"].get(key) or {}
        for percentile, word in _PERCENTILES.items():
            if (latency := found.get(word)) is not None and math.isfinite(latency):
                yield f"{name} {percentile}", Value(float(latency), SECONDS, LOWER)

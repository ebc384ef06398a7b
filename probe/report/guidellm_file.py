"""Results of guidellm, its benchmarks.json. Pure.

Field names: guidellm/benchmark/schemas (0.8.1, report version 2). A file has several benchmarks, each at one load. Of
guidellm's latencies `inter_token_latency_ms` is Kneewatch's TPOT, the mean gap of each answer, weighted by its tokens.
Its `time_per_output_token_ms` counts the first token too and is left out. Its 95 % intervals of percentiles are taken.
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
from probe.core.request import Api

# By Kneewatch's name: guidellm's, and seconds in its unit.
_LATENCIES = {
    "TTFT": ("time_to_first_token_ms", 0.001),
    "TPOT": ("inter_token_latency_ms", 0.001),
    "E2E": ("request_latency", 1.0),
}
_APIS = {"/v1/completions": Api.COMPLETIONS, "/v1/chat/completions": Api.CHAT}
_PERCENTILES = ("p50", "p95", "p99")


def is_guidellm(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the document is guidellm's."""
    metadata = documents[0].get("metadata")
    return isinstance(metadata, Mapping) and "guidellm_version" in metadata and "benchmarks" in documents[0]


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the benchmarks as one measurement, a section for each.

    Raises AttributeError, IndexError, KeyError, TypeError, ValueError or ArithmeticError for a document that guidellm
    cannot have written.
    """
    benchmarks = documents[0]["benchmarks"]
    return Measurement(
        name=name,
        kind="guidellm",
        parts=dict(_parts(documents[0])),
        sections={_load(each["config"]["strategy"]): ComparisonSection(dict(_values(each))) for each in benchmarks},
        lengths=dict(_lengths([each["metrics"] for each in benchmarks])),
    )


def _parts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the model, unless guidellm took the server's first, and the API."""
    backend = ((data.get("config") or {}).get("spec") or {}).get("backend") or {}
    if model := backend.get("model"):
        yield "model", str(model)
    if (api := _APIS.get(str(backend.get("request_format")))) is not None:
        yield "workload.api", api.value


def _load(strategy: Mapping[str, Any]) -> str:
    """Return the load in Kneewatch's words."""
    kind = strategy["type_"]
    if kind == "synchronous":
        return "concurrency 1"
    if kind == "concurrent":
        return f"concurrency {int(strategy['streams'])}"
    if kind in ("constant", "poisson"):
        return f"rate {float(strategy['rate']):g} ({kind})"
    if kind == "throughput":
        return f"as many as possible, at most {int(strategy.get('max_concurrency') or 0)} in flight"
    return "trace"


def _values(benchmark: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    metrics = benchmark["metrics"]
    answered, failed = (int(metrics["request_totals"][status]) for status in ("successful", "errored"))
    yield "failed", Value(failed / max(1, answered + failed), SHARE, LOWER)
    if not answered:
        return  # no request, so no latencies
    yield "throughput", Value(float(metrics["requests_per_second"]["successful"]["mean"]), RATE, HIGHER)
    yield "output", Value(float(metrics["output_tokens_per_second"]["successful"]["mean"]), TOKENS, HIGHER)
    for name, (key, unit_s) in _LATENCIES.items():
        found = metrics[key]["successful"]
        for percentile in _PERCENTILES:
            value = float(found["percentiles"][percentile])
            if found["count"] and math.isfinite(value):
                bounds = (found.get("percentile_cis") or {}).get(percentile) or {}
                ends = [None if bounds.get(end) is None else float(bounds[end]) * unit_s for end in ("lower", "upper")]
                yield f"{name} {percentile}", Value(value * unit_s, SECONDS, LOWER, *ends)


def _lengths(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the mean tokens of a request."""
    for name, key in (("prompt tokens", "prompt_token_count"), ("output tokens", "output_token_count")):
        counts = [each[key]["successful"] for each in found]
        if requests := sum(int(each["count"]) for each in counts):
            yield name, sum(float(each["total_sum"]) for each in counts) / requests

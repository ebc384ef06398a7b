"""Results of aiperf, its profile_export_aiperf.json. Pure.

Field names: aiperf's JSON export schema (0.13.0, schema 1.4). Of its latencies `inter_token_latency` is Kneewatch's
TPOT, the mean gap of each answer, and `inter_chunk_latency` its ITL, all gaps. Each value has its unit.
aiperf counts tokens with its own tokenizer; lengths are taken as the server counted them (`usage_...`), if it did.
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

_APIS = {"chat": Api.CHAT, "completions": Api.COMPLETIONS}
_ARRIVALS = ("poisson", "gamma", "constant")
_LATENCIES = {
    "TTFT": "time_to_first_token",
    "TPOT": "inter_token_latency",
    "ITL": "inter_chunk_latency",
    "E2E": "request_latency",
}
# By Kneewatch's name: the server's count, else aiperf's.
_LENGTHS = {
    "prompt tokens": ("usage_prompt_tokens", "input_sequence_length"),
    "output tokens": ("usage_completion_tokens", "output_sequence_length"),
}
_RATES = (
    ("throughput", "request_throughput", RATE),
    ("goodput", "goodput", RATE),
    ("output", "output_token_throughput", TOKENS),
)
_PERCENTILES = ("p50", "p95", "p99")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}


def is_aiperf(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the document is aiperf's."""
    return "aiperf_version" in documents[0] and "input_config" in documents[0]


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the run as a measurement of one section.

    Raises AttributeError, IndexError, KeyError, TypeError, ValueError or ArithmeticError for a document that aiperf
    cannot have written.
    """
    data = documents[0]
    return Measurement(
        name=name,
        kind="aiperf",
        parts=dict(_parts(data["input_config"])),
        sections={_load(data): ComparisonSection(dict(_values(data)))},
        lengths=dict(lengths(data, _LENGTHS)),
    )


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    models = config.get("models") or {}
    items = models.get("items") if isinstance(models, Mapping) else models
    if items and (name := items[0]["name"] if isinstance(items[0], Mapping) else items[0]):
        yield "model", str(name)
    if (api := _APIS.get(str((config.get("endpoint") or {}).get("type")))) is not None:
        yield "workload.api", api.value


def lengths(data: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, float]]:
    """Yield the mean tokens by Kneewatch's name, each of the first of its names that the file has."""
    for name, keys in names.items():
        if found := [data[key]["avg"] for key in keys if key in data]:
            yield name, float(found[0])


def _load(data: Mapping[str, Any]) -> str:
    """Return the load of the phase that was measured, in Kneewatch's words."""
    phases = [each for each in data["input_config"]["phases"] if each.get("kind", "profiling") == "profiling"]
    if len(phases) != 1:
        return f"{len(phases)} phases"
    (phase,) = phases
    kind, rate = phase["type"], phase.get("rate")
    if kind == "concurrency":
        return f"concurrency {int(phase['concurrency'])}"
    return f"rate {float(rate):g} ({kind})" if kind in _ARRIVALS and rate is not None else str(kind).replace("_", " ")


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    answered = float(data["request_count"]["avg"]) if "request_count" in data else 0.0
    failed = float(data["error_request_count"]["avg"]) if "error_request_count" in data else 0.0
    yield "failed", Value(failed / max(1.0, failed + answered), SHARE, LOWER)
    yield from rates(data, _RATES)
    yield from latencies(data, _LATENCIES)


def rates(data: Mapping[str, Any], names: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, Value]]:
    """Yield the rates that the file has. `names`: Kneewatch's name, the file's, and the unit."""
    for name, key, unit in names:
        if key in data and math.isfinite(value := float(data[key]["avg"])):
            yield name, Value(value, unit, HIGHER)


def latencies(data: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    """Yield the percentiles of the latencies that the file has. `names`: the file's, by Kneewatch's."""
    for name, key in names.items():
        found = data.get(key) or {}
        for percentile in _PERCENTILES:
            if percentile in found and math.isfinite(value := float(found[percentile])):
                yield f"{name} {percentile}", Value(value * _SECONDS[found["unit"]], SECONDS, LOWER)

"""Results of NVIDIA's genai-perf, its profile_export_genai_perf.json. Pure.

aiperf is its successor: the statistics have the same names and units, the configuration has not. The oldest files
(`num_output_token`, 2024) have all gaps as `inter_token_latency`, later ones (`output_sequence_length`) the mean gap of
each answer, Kneewatch's TPOT; the former are left out, since a chunk of theirs can hold several tokens. Without
streaming the file's time to first token is that of the whole answer. Failures are not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.capacity.trend.measurement import RATE, TOKENS, ComparisonSection, Measurement, Value
from probe.core.request import Api
from probe.report import aiperf_file

_APIS = {"chat": Api.CHAT, "completions": Api.COMPLETIONS}
_RATES = (
    ("throughput", "request_throughput", RATE),
    ("goodput", "request_goodput", RATE),
    ("output", "output_token_throughput", TOKENS),
)
# By Kneewatch's name: the name of today, and the first one.
_LENGTHS = {
    "prompt tokens": ("input_sequence_length", "num_input_token"),
    "output tokens": ("output_sequence_length", "num_output_token"),
}


def is_genai_perf(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the document is genai-perf's: it configures perf_analyzer, or a kind of service."""
    config = documents[0].get("input_config")
    is_its = isinstance(config, Mapping) and ("perf_analyzer" in config or "service_kind" in config)
    return is_its and "aiperf_version" not in documents[0]


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the run as a measurement of one section.

    Raises AttributeError, IndexError, KeyError, TypeError, ValueError or ArithmeticError for a document that genai-perf
    cannot have written.
    """
    data = documents[0]
    config = data["input_config"]
    return Measurement(
        name=name,
        kind="genai-perf",
        parts=dict(_parts(config)),
        sections={_load(config): ComparisonSection(dict(_values(data)))},
        lengths=dict(aiperf_file.lengths(data, _LENGTHS)),
    )


def _endpoint(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the endpoint's settings: a group of their own since 2025, before among all others."""
    found = config.get("endpoint")
    if isinstance(found, Mapping):
        return found
    return {"type": config.get("endpoint_type"), "streaming": config.get("streaming")}


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    models: Sequence[Any] = config.get("model_names") or config.get("model") or []
    if len(models) == 1:
        yield "model", str(models[0])
    if (api := _APIS.get(str(_endpoint(config).get("type")))) is not None:
        yield "workload.api", api.value


def _load(config: Mapping[str, Any]) -> str:
    """Return the load in Kneewatch's words; how requests of a rate arrive is not in the file."""
    load = (config.get("perf_analyzer") or {}).get("stimulus") or config
    if (concurrency := load.get("concurrency")) is not None:
        return f"concurrency {int(concurrency)}"
    return "unknown load" if (rate := load.get("request_rate")) is None else f"rate {float(rate):g}"


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    names = {"E2E": "request_latency"}
    if _endpoint(data["input_config"]).get("streaming") is True:
        names |= {"TTFT": "time_to_first_token"}
        names |= {"TPOT": "inter_token_latency"} if "output_sequence_length" in data else {}
    yield from aiperf_file.rates(data, _RATES)
    yield from aiperf_file.latencies(data, names)

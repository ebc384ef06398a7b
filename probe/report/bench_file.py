"""Results of `vllm bench serve` and of `python -m sglang.bench_serving`, which began as its copy. Pure.

Field names: vllm/benchmarks/serve.py (0.32, --save-result, --append-result) and sglang's bench_serving (0.5,
--output-file, a line for each run). SGLang's file names the model only where the server is SGLang, and counts failures
only with --output-details.
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
from probe.core.errors import ConfigError
from probe.core.request import Api
from probe.core.step import Pattern

VLLM, SGLANG = "vllm bench serve", "sglang.bench_serving"
# The names that each of the two has for a latency.
_LATENCIES = {"TTFT": ("ttft",), "TPOT": ("tpot",), "ITL": ("itl",), "E2E": ("e2el", "e2e_latency")}
_PERCENTILES = {"p50": "median", "p95": "p95", "p99": "p99"}
# The API of each backend of vllm bench and sglang.bench_serving; others use other requests.
_APIS = {
    **dict.fromkeys(("vllm", "openai", "sglang-oai", "lmdeploy"), Api.COMPLETIONS),
    **dict.fromkeys(("openai-chat", "sglang-oai-chat", "vllm-chat", "lmdeploy-chat"), Api.CHAT),
}


def is_bench(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether each document is a result of one of the two."""
    return all("request_throughput" in each and ("model_id" in each or _is_sglang(each)) for each in documents)


def measurement(name: str, documents: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the runs of a file as one measurement, a section for each load.

    Raises ConfigError for models that generate no text, and KeyError, TypeError, ValueError or ArithmeticError for a
    document that neither can have written.
    """
    if not all("total_output_tokens" in each for each in documents):
        raise ConfigError(f"{name}: the model generates no text; use a benchmark of text generation")
    first = documents[0]
    completed = sum(int(each["completed"]) for each in documents)
    lengths = {"prompt tokens": "total_input_tokens", "output tokens": "total_output_tokens"}
    return Measurement(
        name=name,
        kind=SGLANG if _is_sglang(first) else VLLM,
        parts=dict(_parts(first)),
        sections={_load(each): ComparisonSection(dict(_values(each))) for each in documents},
        lengths={of: sum(each[key] for each in documents) / completed for of, key in lengths.items()}
        if completed
        else {},
    )


def _is_sglang(data: Mapping[str, Any]) -> bool:
    return "median_e2e_latency_ms" in data and "total_output_tokens_retokenized" in data


def _parts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    server = data.get("server_info")
    model = data.get("model_id") or (server.get("served_model_name") if isinstance(server, Mapping) else None)
    if model is not None:
        yield "model", str(model)
    if (api := _APIS.get(str(data.get("backend")))) is not None:
        yield "workload.api", api.value


def _load(data: Mapping[str, Any]) -> str:
    """Return the load in Kneewatch's words: `max_concurrency` for a closed loop, a rate for an open one.

    `arrivals` is Kneewatch's own (bench_json.py).
    """
    rate = data.get("request_rate", "inf")
    if data.get("ramp_up_strategy") is not None:
        return f"rate {data['ramp_up_start_rps']:g} to {data['ramp_up_end_rps']:g} (ramp)"
    if rate == "trace":
        return "trace"
    if math.isfinite(float(rate)):
        usual = Pattern.POISSON if data.get("burstiness", 1.0) == 1 else Pattern.GAMMA
        return f"rate {float(rate):g} ({Pattern(data.get('arrivals') or usual).value})"
    if (concurrency := data.get("max_concurrency")) is not None:
        return f"concurrency {int(concurrency)}"
    return f"{int(data.get('num_prompts', data['completed']))} requests at once"


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    completed, failed = int(data["completed"]), _failed(data)
    if failed is not None:
        yield "failed", Value(failed / max(1, failed + completed), SHARE, LOWER)
    if not completed:
        return  # no request, so no latencies
    for name, key, unit in (
        ("throughput", "request_throughput", RATE),
        ("goodput", "request_goodput", RATE),
        ("output", "output_throughput", TOKENS),
    ):
        if (value := data.get(key)) is not None and math.isfinite(value):
            yield name, Value(value, unit, HIGHER)
    for name, keys in _LATENCIES.items():
        for percentile, word in _PERCENTILES.items():
            found = [value for key in keys if (value := data.get(f"{word}_{key}_ms")) is not None]
            if found and math.isfinite(found[0]):
                yield f"{name} {percentile}", Value(found[0] / 1000, SECONDS, LOWER)


def _failed(data: Mapping[str, Any]) -> int | None:
    """Return the number of failed requests; None where the file does not tell."""
    if not _is_sglang(data):
        return None if (failed := data.get("failed", 0)) is None else int(failed)
    return sum(map(bool, data["errors"])) if "errors" in data else None

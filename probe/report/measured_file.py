"""Result files for `kneewatch compare`.

Reads the JSON of `kneewatch ramp --json` (schema kneewatch.result/1) and of `vllm bench serve --save-result` (field
names: vllm/benchmarks/serve.py, 0.32). Every ConfigError is one line with the file and the fix.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from probe.capacity.trend.compare import (
    HIGHER,
    LOWER,
    RATE,
    SECONDS,
    SHARE,
    TOKENS,
    ComparisonSection,
    Measurement,
    Value,
    of_result,
)
from probe.core.errors import ConfigError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.request import Api
from probe.core.result import CapacityResult
from probe.core.text import one_line
from probe.report.result_json import loads

_SCHEMA = "kneewatch.result/1"
_EXPECTED = "expected the file of `kneewatch ramp --json` or of `vllm bench serve --save-result`"
_LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2el"}
_PERCENTILES = {"p50": "median", "p95": "p95", "p99": "p99"}
# vllm bench --save-detailed writes each latency: ten thousand requests of a thousand tokens.
_LIMITS = JsonLimits(max_bytes=256 * 2**20, max_values=20_000_000)
_LARGEST = 1e300
# The API of each `vllm bench` backend; other backends use other requests.
_APIS = {"vllm": Api.COMPLETIONS, "openai": Api.COMPLETIONS, "openai-chat": Api.CHAT}


def read_measured(file: Path) -> Measurement:
    """Return the measurement in a file. Raises ConfigError."""
    data, text = _read(file)
    if "schema" in data:
        return of_result(str(file), _own_result(file, data, text))
    if "request_throughput" in data and "model_id" in data:
        return _bench(file, data)
    raise ConfigError(f"{file}: not a result; {_EXPECTED}")


def read_result(file: Path) -> CapacityResult:
    """Return the result of `kneewatch ramp --json` in a file. Raises ConfigError."""
    data, text = _read(file)
    if "schema" not in data:
        raise ConfigError(f"{file}: not a result; expected the file of `kneewatch ramp --json`")
    return _own_result(file, data, text)


def _read(file: Path) -> tuple[Mapping[str, Any], bytes]:
    """Return a JSON object and its text. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_LIMITS.max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {_EXPECTED}") from None
    try:
        data = read_json(text, _LIMITS)
    except ForeignJsonError as error:
        several = "Extra data" in str(error)
        why = "holds several results, as --append-result writes; split it" if several else f"{error}; {_EXPECTED}"
        raise ConfigError(f"{file}: {why}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: not a result; {_EXPECTED}")
    return data, text


def _own_result(file: Path, data: Mapping[str, Any], text: bytes) -> CapacityResult:
    if (schema := data["schema"]) != _SCHEMA:
        raise ConfigError(
            f"{file}: schema {one_line(str(schema))} is not supported, expected {_SCHEMA}; use another version"
        )
    if not _fits_floats(data):
        raise ConfigError(f"{file}: invalid, a number in it has more than 300 digits; write the file again")
    try:
        return loads(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"{file}: invalid {where}: {one_line(first['msg'])}; write the file again") from None


def _fits_floats(value: object) -> bool:
    """Report whether a float can hold each whole number of a document."""
    if isinstance(value, dict | list):
        return all(map(_fits_floats, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) <= _LARGEST


def _bench(file: Path, data: Mapping[str, Any]) -> Measurement:
    try:
        if "total_output_tokens" not in data:
            raise ConfigError(f"{file}: the model generates no text; use a benchmark of text generation")
        completed = int(data["completed"])
        parts = {"model": str(data["model_id"])}
        if (api := _APIS.get(str(data.get("backend")))) is not None:
            parts["workload.api"] = api.value
        lengths = {"prompt tokens": "total_input_tokens", "output tokens": "total_output_tokens"}
        return Measurement(
            name=str(file),
            kind="vllm bench serve",
            parts=parts,
            sections={_load(data): ComparisonSection(dict(_values(data, completed)))},
            lengths={name: data[key] / completed for name, key in lengths.items()} if completed else {},
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{file}: invalid, {one_line(repr(error))}; run the benchmark again") from None


def _load(data: Mapping[str, Any]) -> str:
    """Return the load in Kneewatch's words: `max_concurrency` for a closed loop, a rate for an open one."""
    rate = data.get("request_rate", "inf")
    if data.get("ramp_up_strategy") is not None:
        return f"rate {data['ramp_up_start_rps']:g} to {data['ramp_up_end_rps']:g} (ramp)"
    if rate != "inf":
        return f"rate {float(rate):g} ({'poisson' if data.get('burstiness', 1.0) == 1 else 'gamma'})"
    if (concurrency := data.get("max_concurrency")) is not None:
        return f"concurrency {int(concurrency)}"
    return f"{int(data['num_prompts'])} requests at once"


def _values(data: Mapping[str, Any], completed: int) -> Iterator[tuple[str, Value]]:
    failed = int(data.get("failed", 0))
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
    for name, key in _LATENCIES.items():
        for percentile, word in _PERCENTILES.items():
            if (value := data.get(f"{word}_{key}_ms")) is not None and math.isfinite(value):
                yield f"{name} {percentile}", Value(value / 1000, SECONDS, LOWER)

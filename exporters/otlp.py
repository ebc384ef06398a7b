"""Canaries as OpenTelemetry has them: spans and histograms under its conventions for generative AI. Pure.

The names come from https://github.com/open-telemetry/semantic-conventions-genai, the encoding is the JSON of OTLP 1
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): times in ns and other 64-bit integers are text.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from probe.core.latency import e2e_s, itl_s, tpot_s, ttft_s
from probe.core.request import NO_FAILURES, Outcome, RequestRecord, TraceContext

SCOPE = "kneewatch"
_CLIENT, _ERROR, _CUMULATIVE = 3, 2, 2  # SpanKind, StatusCode and AggregationTemporality
_PORTS = {"http": 80, "https": 443}
# What the client knows: which API the server speaks. No price list has such a provider.
_PROVIDER = "openai_compatible"
# The bounds that the conventions ask for.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
# As in OpenTelemetry's SDKs: servers name the models, so there could be ever new ones.
_MOST_SERIES = 2000

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Instrument:
    """A histogram of the conventions."""

    name: str
    unit: str
    help: str
    bounds: tuple[float, ...]


DURATION = Instrument("gen_ai.client.operation.duration", "s", "GenAI operation duration.", _SECONDS)
FIRST_CHUNK = Instrument(
    "gen_ai.client.operation.time_to_first_chunk", "s", "Time to receive the first chunk.", _SECONDS
)
NEXT_CHUNK = Instrument(
    "gen_ai.client.operation.time_per_output_chunk", "s", "Time between the ends of two output chunks.", _SECONDS
)
TOKENS = Instrument("gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", _TOKENS)


def server_of(base_url: str) -> Attributes:
    """Return the attributes of a server's address."""
    parts = urlsplit(base_url)
    return {"server.address": parts.hostname or "", "server.port": parts.port or _PORTS.get(parts.scheme, 0)}


def span(record: RequestRecord, server: Attributes) -> dict[str, Any]:
    """Return a canary as a span. One that was never sent has a trace of its own, that no server knows of."""
    trace = record.trace or TraceContext.new()
    ended_ns = int(record.done_wall_s * 1e9)
    began_ns = ended_ns - (record.done_ns - record.scheduled_ns)
    first, pace = ttft_s(record), tpot_s(record)
    has_failed, generates = record.outcome not in NO_FAILURES, record.spec.api.generates
    attributes: dict[str, Value | None] = {
        **_common(record, server),
        "gen_ai.request.stream": generates,
        "gen_ai.request.max_tokens": record.spec.output_tokens if generates else None,
        "gen_ai.response.finish_reasons": [record.finish_reason] if record.finish_reason else None,
        "gen_ai.response.model": (record.answered_as or record.model) if len(record.events) else None,
        "gen_ai.response.time_to_first_chunk": first,
        "gen_ai.usage.input_tokens": record.prompt_tokens or None,
        "gen_ai.usage.output_tokens": record.output_tokens or None,
        "http.response.status_code": record.http_status,
        "kneewatch.outcome": record.outcome.value,
        "kneewatch.tpot": pace,
        "kneewatch.workload": record.spec.workload,
    }
    return {
        "traceId": trace.trace_id,
        "spanId": trace.span_id,
        "name": f"{record.spec.api.operation} {record.model}",
        "kind": _CLIENT,
        "startTimeUnixNano": str(began_ns),
        "endTimeUnixNano": str(ended_ns),
        "attributes": _encoded(attributes),
        "status": {"code": _ERROR, "message": record.detail or record.outcome.value} if has_failed else {},
    }


@dataclass(slots=True)
class _Series:
    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Histograms:
    """The histograms of all canaries since `began_s` (wall time), by target and attributes."""

    began_s: float
    _series: dict[Instrument, dict[tuple[tuple[str, Value], ...], _Series]] = field(default_factory=dict)

    def observe(self, record: RequestRecord, server: Attributes) -> None:
        """Count a canary that was sent."""
        if record.outcome is Outcome.ABORTED:
            return
        common = _common(record, server)
        whole = e2e_s(record)
        seconds = whole if whole is not None else (record.done_ns - record.scheduled_ns) * 1e-9
        self._add(DURATION, common, seconds)
        if record.outcome is not Outcome.OK:
            return
        if (first := ttft_s(record)) is not None:
            self._add(FIRST_CHUNK, common, first)
        for gap in itl_s(record):
            self._add(NEXT_CHUNK, common, gap)
        for kind, count in (("input", record.prompt_tokens), ("output", record.output_tokens)):
            if count:
                self._add(TOKENS, {**common, "gen_ai.token.type": kind}, count)

    def forget(self, target: str) -> None:
        """Remove the series of a target."""
        for series in self._series.values():
            for key in [key for key in series if ("kneewatch.target", target) in key]:
                del series[key]

    def metrics(self, wall_s: float) -> list[dict[str, Any]]:
        """Return all histograms as they are at this wall time."""
        times = {"startTimeUnixNano": str(int(self.began_s * 1e9)), "timeUnixNano": str(int(wall_s * 1e9))}
        return [
            {
                "name": instrument.name,
                "unit": instrument.unit,
                "description": instrument.help,
                "histogram": {
                    "aggregationTemporality": _CUMULATIVE,
                    "dataPoints": [
                        {
                            **times,
                            "attributes": _encoded(dict(key)),
                            "count": str(sum(one.counts)),
                            "sum": one.total,
                            "bucketCounts": [str(count) for count in one.counts],
                            "explicitBounds": list(instrument.bounds),
                        }
                        for key, one in series.items()
                    ],
                },
            }
            for instrument, series in self._series.items()
        ]

    def _add(self, instrument: Instrument, attributes: Attributes, value: float) -> None:
        series = self._series.setdefault(instrument, {})
        key = tuple(sorted(attributes.items()))
        if key not in series and len(series) >= _MOST_SERIES:
            key = (("otel.metric.overflow", True),)
        one = series.setdefault(key, _Series([0] * (len(instrument.bounds) + 1)))
        one.counts[bisect_left(instrument.bounds, value)] += 1
        one.total += value


def traces_request(spans: Sequence[Mapping[str, Any]], resource: Attributes) -> dict[str, Any]:
    """Return the body of a request to /v1/traces."""
    return {"resourceSpans": [{**_resource(resource), "scopeSpans": [{"scope": {"name": SCOPE}, "spans": spans}]}]}


def metrics_request(metrics: Sequence[Mapping[str, Any]], resource: Attributes) -> dict[str, Any]:
    """Return the body of a request to /v1/metrics."""
    return {
        "resourceMetrics": [{**_resource(resource), "scopeMetrics": [{"scope": {"name": SCOPE}, "metrics": metrics}]}]
    }


def _resource(resource: Attributes) -> dict[str, Any]:
    return {"resource": {"attributes": _encoded(resource)}}


def _common(record: RequestRecord, server: Attributes) -> dict[str, Value]:
    failed = {"error.type": record.outcome.value} if record.outcome not in NO_FAILURES else {}
    return {
        "gen_ai.operation.name": record.spec.api.operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": record.model,
        "kneewatch.target": record.target,
        **server,
        **failed,
    }


def _encoded(attributes: Mapping[str, Value | None]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items() if value is not None]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(each) for each in value]}}

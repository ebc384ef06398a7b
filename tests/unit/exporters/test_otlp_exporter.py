"""Canaries as spans and histograms: what OpenTelemetry's own types read, under the names of its conventions."""

import json
from dataclasses import replace

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from plain_records import failure, record, spec

from exporters import otlp
from probe.core.request import Api, Outcome, RequestRecord, TraceContext, Traffic

SERVER = otlp.server_of("https://llama-8b.serving/api")
RESOURCE = {"service.name": "kneewatch"}
TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def canary(**values: object) -> RequestRecord:
    return record(**{"traffic": Traffic.CANARY, "trace": TRACE, **values})  # type: ignore[arg-type]


def sent(one: RequestRecord) -> tuple[object, dict[str, object]]:
    """Return the span as a receiver reads it, and its attributes."""
    body = json.dumps(otlp.traces_request([otlp.span(one, SERVER)], RESOURCE))
    (resource,) = json_format.Parse(body, ExportTraceServiceRequest()).resource_spans
    assert {each.key: each.value.string_value for each in resource.resource.attributes} == RESOURCE
    (found,) = resource.scope_spans[0].spans
    return found, {each.key: _plain(each.value) for each in found.attributes}


def _plain(value: object) -> object:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]
    found = getattr(value, kind)
    return [_plain(each) for each in found.values] if kind == "array_value" else found


def test_a_good_canary() -> None:
    span, attributes = sent(canary(ttft_ms=100, gap_ms=10, tokens=3, finish_reason="length", http_status=200))
    assert span.name == "text_completion tiny"  # type: ignore[attr-defined]
    assert span.kind == 3  # type: ignore[attr-defined]
    assert span.status.code == 0  # type: ignore[attr-defined]
    assert span.end_time_unix_nano == 1_700_000_000 * 10**9  # type: ignore[attr-defined]
    assert span.end_time_unix_nano - span.start_time_unix_nano == 121_000_000  # type: ignore[attr-defined]
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "openai_compatible",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.1),
        "gen_ai.usage.input_tokens": 8,
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
        "kneewatch.outcome": "ok",
        "kneewatch.target": "llama",
        "kneewatch.tpot": pytest.approx(0.01),
        "kneewatch.workload": "short",
        "server.address": "llama-8b.serving",
        "server.port": 443,
    }


@pytest.mark.parametrize("api", [api for api in Api if not api.generates])
def test_an_api_without_tokens_has_no_stream_and_no_length_to_ask_for(api: Api) -> None:
    _, attributes = sent(canary(spec=spec(api=api)))
    assert attributes["gen_ai.operation.name"] == api.value
    assert attributes["gen_ai.request.stream"] is False
    assert "gen_ai.request.max_tokens" not in attributes


def test_its_ids_are_those_that_the_server_was_told() -> None:
    found = otlp.span(canary(), SERVER)
    assert (found["traceId"], found["spanId"]) == (TRACE.trace_id, TRACE.span_id)
    assert TRACE.traceparent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_failure_is_an_error_with_its_reason() -> None:
    unsent = failure(Outcome.UNREACHABLE, traffic=Traffic.CANARY, detail="cannot be reached", spec=spec(api=Api.CHAT))
    span, attributes = sent(unsent)
    assert span.name == "chat tiny"  # type: ignore[attr-defined]
    assert (span.status.code, span.status.message) == (2, "cannot be reached")  # type: ignore[attr-defined]
    assert attributes["error.type"] == "unreachable"
    assert not {"gen_ai.response.model", "gen_ai.usage.output_tokens", "kneewatch.tpot"} & attributes.keys()
    found = otlp.span(unsent, SERVER)
    assert len(found["traceId"]) == 32
    assert len(found["spanId"]) == 16


def test_what_kneewatch_itself_has_spoilt_is_no_error_of_the_server() -> None:
    span, attributes = sent(canary(outcome=Outcome.CLIENT_BOUND, detail="Kneewatch was late"))
    assert span.status.code == 0  # type: ignore[attr-defined]
    assert "error.type" not in attributes
    assert attributes["kneewatch.outcome"] == "client_bound"


def exported(histograms: otlp.Histograms) -> dict[str, list[object]]:
    """Return the points as a receiver reads them, by the histogram's name."""
    body = json.dumps(otlp.metrics_request(histograms.metrics(2000.0), RESOURCE))
    (resource,) = json_format.Parse(body, ExportMetricsServiceRequest()).resource_metrics
    metrics = resource.scope_metrics[0].metrics
    assert all(metric.histogram.aggregation_temporality == 2 for metric in metrics)
    return {metric.name: list(metric.histogram.data_points) for metric in metrics}


def test_histograms_count_since_the_start() -> None:
    histograms = otlp.Histograms(1000.0)
    for ttft_ms in (50, 100, 700):
        histograms.observe(canary(ttft_ms=ttft_ms, gap_ms=10, tokens=3), SERVER)
    histograms.observe(failure(Outcome.TIMEOUT, traffic=Traffic.CANARY), SERVER)
    histograms.observe(failure(Outcome.ABORTED, traffic=Traffic.CANARY), SERVER)
    points = exported(histograms)
    assert {name: [point.count for point in each] for name, each in points.items()} == {  # type: ignore[attr-defined]
        "gen_ai.client.operation.duration": [3, 1],
        "gen_ai.client.operation.time_to_first_chunk": [3],
        "gen_ai.client.operation.time_per_output_chunk": [6],
        "gen_ai.client.token.usage": [3, 3],
    }
    (first,) = points["gen_ai.client.operation.time_to_first_chunk"]
    assert first.sum == pytest.approx(0.85)  # type: ignore[attr-defined]
    by_bound = dict(zip(first.explicit_bounds, first.bucket_counts, strict=False))  # type: ignore[attr-defined]
    assert {bound: count for bound, count in by_bound.items() if count} == {0.08: 1, 0.16: 1, 1.28: 1}
    assert len(first.bucket_counts) == len(first.explicit_bounds) + 1  # type: ignore[attr-defined]
    assert (first.start_time_unix_nano, first.time_unix_nano) == (1000 * 10**9, 2000 * 10**9)  # type: ignore[attr-defined]


def test_a_value_on_a_bound_is_below_it() -> None:
    histograms = otlp.Histograms(0.0)
    histograms.observe(canary(ttft_ms=80, tokens=1), SERVER)
    (point,) = exported(histograms)["gen_ai.client.operation.time_to_first_chunk"]
    assert dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))[0.08] == 1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_ever_new_models_end_in_one_series() -> None:
    histograms = otlp.Histograms(0.0)
    for number in range(otlp._MOST_SERIES + 50):
        histograms.observe(canary(tokens=1, model=f"m{number}"), SERVER)
    points = exported(histograms)["gen_ai.client.operation.duration"]
    assert len(points) == otlp._MOST_SERIES + 1
    (other,) = [point for point in points if point.attributes[0].key == "otel.metric.overflow"]  # type: ignore[attr-defined]
    assert other.count == 50  # type: ignore[attr-defined]


def test_a_target_that_has_gone_has_no_series() -> None:
    histograms = otlp.Histograms(0.0)
    for target in ("llama", "gone"):
        histograms.observe(replace(canary(), target=target), SERVER)
    histograms.forget("gone")
    for points in exported(histograms).values():
        assert all(
            {each.key: each.value.string_value for each in point.attributes}["kneewatch.target"] == "llama"  # type: ignore[attr-defined]
            for point in points
        )

"""A monitor with a collector: each canary is a span of the trace that the server was told of."""

import gzip
import json
from pathlib import Path
from typing import Any

from foreign_server import MODELS, stream
from monitor import Monitor
from process import eventually
from threaded_server import Request, threaded_server


def _watching(server: str) -> dict[str, object]:
    return {"targets": [{"name": "a", "base_url": server, "canary": {"every": "1s", "timeout": "5s"}}]}


def test_spans_have_the_ids_that_the_server_got(tmp_path: Path) -> None:
    told: list[str] = []
    collected: list[tuple[str, dict[str, Any]]] = []

    def serve(request: Request, body: bytes) -> None:
        if request.path == "/v1/models":
            return request.answer(200, MODELS, "application/json")
        if request.path != "/v1/completions":
            return request.answer(404, b"none", "text/plain")
        told.append(request.headers["traceparent"])
        status, kind, pieces = stream(body)
        return request.answer(status, b"".join(pieces), kind)

    def collect(request: Request, body: bytes) -> None:
        collected.append((request.path, json.loads(gzip.decompress(body))))
        request.answer(200, b"{}", "application/json")

    with threaded_server(serve) as server, threaded_server(collect) as collector:
        config = {"otlp": {"endpoint": collector}, **_watching(server)}
        monitor = Monitor(config, tmp_path)
        with monitor:  # what is left is sent when it ends
            eventually(lambda: len(told) >= 3, within_s=30, what="three canaries")
    spans = [
        span
        for path, body in collected
        if path == "/v1/traces"
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    sent = [f"00-{span['traceId']}-{span['spanId']}-01" for span in spans]
    assert len(sent) >= 3
    assert sent == told[: len(sent)]
    assert {path for path, _ in collected} == {"/v1/traces", "/v1/metrics"}


def test_without_a_collector_the_server_is_told_of_no_trace(tmp_path: Path) -> None:
    told: list[str | None] = []

    def serve(request: Request, body: bytes) -> None:
        if request.path == "/v1/completions":
            told.append(request.headers["traceparent"])
            status, kind, pieces = stream(body)
            return request.answer(status, b"".join(pieces), kind)
        return request.answer(200, MODELS, "application/json")

    with threaded_server(serve) as server, Monitor(_watching(server), tmp_path):
        eventually(lambda: told, within_s=30, what="a canary")
    assert set(told) == {None}

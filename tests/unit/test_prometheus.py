"""Which pages fire for a target, asked of a server that answers like Prometheus, or unlike it."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from standin import free_port

from probe.errors import TargetError
from probe.prometheus import Prometheus
from probe.records import Outcome


@contextmanager
def _prometheus(body: object, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the queries it was asked."""
    queries: list[str] = []
    payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            queries.append(f"{asked.path} {parse_qs(asked.query)['query'][0]}")
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", queries
        finally:
            server.shutdown()
            thread.join()


def _vector(*names: str) -> dict[str, object]:
    result = [{"metric": {"alertname": name, "severity": "page"}, "value": [1.0, "1"]} for name in names]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _firing(url: str, target: str = "a") -> list[str]:
    return asyncio.run(Prometheus(url).firing_pages(target))


def test_the_names_of_the_alerts_once_each_in_order() -> None:
    with _prometheus(_vector("Slow", "Down", "Slow")) as (url, _):
        assert _firing(url) == ["Down", "Slow"]


def test_no_alert_is_an_empty_list() -> None:
    with _prometheus(_vector()) as (url, _):
        assert _firing(url) == []


def test_only_pages_that_fire_for_that_target_are_asked_for() -> None:
    with _prometheus(_vector()) as (url, queries):
        _firing(url, "llama-8b")
    assert queries == ['/api/v1/query ALERTS{alertstate="firing", severity="page", target="llama-8b"}']


def test_a_name_cannot_leave_its_quotes() -> None:
    with _prometheus(_vector()) as (url, queries):
        _firing(url, 'a"} or vector(1) or ALERTS{x="\\')
    assert queries[0].endswith(r'target="a\"} or vector(1) or ALERTS{x=\"\\"}')


def test_an_address_below_a_path_works() -> None:
    with _prometheus(_vector("Down")) as (url, queries):
        assert _firing(f"{url}/prometheus") == ["Down"]
    assert queries[0].startswith("/prometheus/api/v1/query ")


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_an_error_that_names_the_address(status: int) -> None:
    with _prometheus({"status": "error", "error": "bad\nthing"}, status) as (url, _):
        with pytest.raises(TargetError) as raised:
            _firing(url)
        assert str(raised.value).startswith(f"{url}: ")
        assert str(status) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.outcome is Outcome.UNREACHABLE


@pytest.mark.parametrize(
    "body",
    [
        "<html>It works!</html>",
        "",
        {},
        [],
        {"status": "success", "data": None},
        {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1"]}},
        {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1.0, "1"]}]}},
    ],
    ids=["html", "empty", "object", "list", "no data", "scalar", "no metric"],
)
def test_an_answer_that_is_not_prometheus_is_an_error_like_no_answer(body: object) -> None:
    """Anything else would end in the schedule as a crash, and not as a refused run with its reason."""
    with _prometheus(body) as (url, _), pytest.raises(TargetError):
        _firing(url)


def test_a_prometheus_that_is_down_is_an_error_and_soon() -> None:
    """The question blocks a thread, which a shutdown has to wait for."""
    before = time.monotonic()
    with pytest.raises(TargetError, match="does not answer"):
        _firing(f"http://127.0.0.1:{free_port()}")
    assert time.monotonic() - before < 4.0

"""Canaries on their way to a collector: sent in the background, kept while it is away, without any harm of it."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog.testing
from plain_records import record
from threaded_server import Request, threaded_server

from probe.config.config_file import config_from, show
from probe.core.clock import SystemClock
from probe.core.errors import ConfigError
from probe.core.request import Traffic
from probe.monitor import otlp_export
from probe.monitor.otlp_export import OtlpExport

pytestmark = pytest.mark.slow


@dataclass
class Collector:
    """What a receiver got. `status`: its answer. `holds_s`: how long it takes for one, unless it is released."""

    status: int = 200
    holds_s: float = 0.0
    released: threading.Event = field(default_factory=threading.Event)
    location: str = ""
    retry_after: str = ""
    answer: bytes = b"{}"
    got: list[tuple[str, dict[str, str], dict[str, object]]] = field(default_factory=list)

    def reply(self, request: Request, body: bytes) -> None:
        plain = json.loads(gzip.decompress(body))
        self.got.append((request.path, {k.lower(): v for k, v in request.headers.items()}, plain))
        self.released.wait(self.holds_s)
        request.send_response(self.status)
        if self.location:
            request.send_header("location", self.location)
        if self.retry_after:
            request.send_header("retry-after", self.retry_after)
        request.send_header("content-length", str(len(self.answer)))
        request.end_headers()
        request.wfile.write(self.answer)

    def spans(self) -> int:
        return sum(
            len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])  # type: ignore[index]
            for path, _, body in self.got
            if path == "/v1/traces"
        )


@contextmanager
def collecting(collector: Collector, **section: object) -> Iterator[tuple[OtlpExport, list[None]]]:
    """Return an export to this collector, and a list that gets an entry for each failure."""
    failures: list[None] = []
    with threaded_server(collector.reply) as url:
        raw = {"targets": [{"name": "llama", "base_url": "http://llama:8000"}], "otlp": {"endpoint": url, **section}}
        config = config_from(raw, "test")
        assert config.otlp is not None
        export = OtlpExport(config.otlp, SystemClock(), lambda: failures.append(None))
        export.add("llama", "http://llama:8000")
        yield export, failures


def send(export: OtlpExport, limit_s: float = 5.0) -> None:
    async def main() -> None:
        await export._send_all(limit_s)
        await export._close()

    asyncio.run(main())


def test_canaries_and_nothing_else_are_sent_once() -> None:
    collector = Collector()
    with collecting(collector) as (export, failures):
        for traffic in Traffic:
            export.record(record(traffic=traffic))
        send(export)
        send(export)
    assert [path for path, _, _ in collector.got] == ["/v1/traces", "/v1/metrics", "/v1/metrics"]
    assert collector.spans() == 1
    assert failures == []


@pytest.mark.fault("OT1")
def test_what_a_collector_refuses_is_kept_and_told_once() -> None:
    collector = Collector(status=503)
    with collecting(collector) as (export, failures), structlog.testing.capture_logs() as logs:
        export.record(record(traffic=Traffic.CANARY))
        send(export)
        send(export)
        collector.status, before = 200, collector.spans()
        send(export)
    assert collector.spans() == before + 1
    assert len(failures) == 2
    assert [(log["log_level"], log.get("detail")) for log in logs] == [
        ("warning", "HTTP 503 from /v1/traces"),
        ("info", None),
    ]


@pytest.mark.fault(
    "OT10",
    "A collector that refuses canaries for good, in part or all, such as a batch that is too large",
    area="Prometheus",
    users_see="`kneewatch_otlp_failures_total`; one line with its words",
    stays="what it refused is not sent again, and later canaries are",
)
@pytest.mark.parametrize(
    ("collector", "detail"),
    [
        (Collector(status=400), "HTTP 400 from /v1/traces; these canaries are not sent again"),
        (Collector(status=413), "HTTP 413 from /v1/traces; these canaries are not sent again"),
        (
            Collector(answer=b'{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}'),
            "/v1/traces: 1 refused: too old",
        ),
    ],
)
def test_what_a_collector_refuses_for_good_is_not_sent_again(collector: Collector, detail: str) -> None:
    with collecting(collector) as (export, failures), structlog.testing.capture_logs() as logs:
        export.record(record(traffic=Traffic.CANARY))
        send(export)
        collector.status, collector.answer = 200, b'{"partialSuccess": {"rejectedSpans": "0"}}'
        export.record(record(traffic=Traffic.CANARY))
        send(export)
    assert collector.spans() == 2
    assert len(failures) == 1
    assert logs[0]["detail"] == detail


def test_a_collector_is_left_alone_for_as_long_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(status=429, retry_after="30")
    now_s = time.monotonic()
    with collecting(collector) as (export, failures):
        export.record(record(traffic=Traffic.CANARY))
        send(export)
        send(export)
        assert (collector.spans(), len(failures)) == (1, 1)
        collector.status = 200
        monkeypatch.setattr(otlp_export.time, "monotonic", lambda: now_s + 40.0)
        send(export)
    assert collector.spans() == 2
    assert export._waiting == []


def test_of_very_many_the_newest_are_kept() -> None:
    with collecting(Collector()) as (export, _):
        for _ in range(otlp_export._MOST_WAITING + 10):
            export.record(record(traffic=Traffic.CANARY))
        assert len(export._waiting) == otlp_export._MOST_WAITING


@pytest.mark.fault("OT2")
def test_a_collector_that_never_answers_takes_no_longer_than_the_limit() -> None:
    collector = Collector(holds_s=30.0)
    with collecting(collector) as (export, failures), structlog.testing.capture_logs() as logs:
        export.record(record(traffic=Traffic.CANARY))
        began_s = time.monotonic()
        send(export, 0.2)
        assert time.monotonic() - began_s < collector.holds_s / 2
        collector.released.set()
    assert len(failures) == 1
    assert logs[0]["detail"] == "it has not answered within 0.2 s"
    assert len(export._waiting) == 1


@pytest.mark.fault(
    "ST22",
    "The event loop stands for longer than a collector has to answer",
    area="Starvation",
    users_see="nothing; of a collector that is late beside that, a line says by how much Kneewatch itself was",
    stays="canaries arrive, and no connection is left open",
)
def test_own_lateness_is_not_the_collectors() -> None:
    collector = Collector()
    with collecting(collector) as (export, failures), structlog.testing.capture_logs() as logs:

        async def main() -> None:
            asyncio.get_running_loop().call_later(0.05, time.sleep, 0.6)
            export.record(record(traffic=Traffic.CANARY))
            await export._send_all(0.2)
            assert (collector.spans(), failures) == (1, [])
            collector.holds_s = 30.0
            for at_s in (0.05, 0.15):
                asyncio.get_running_loop().call_later(at_s, time.sleep, 0.3)
            await export._send_all(0.2)
            assert export._client is not None
            assert "Connections: 0 active, 0 idle" in repr(export._client._transport._pool)  # type: ignore[attr-defined]
            collector.released.set()
            await export._close()

        asyncio.run(main())
    assert len(failures) == 1
    assert logs[0]["detail"].startswith("it has not answered within 0.2 s; Kneewatch itself was late by ")


@pytest.mark.fault(
    "OT3",
    "The collector redirects to another host",
    area="Prometheus",
    users_see="the same",
    stays="the other host gets nothing",
)
def test_a_redirect_is_not_followed() -> None:
    elsewhere = Collector()
    with threaded_server(elsewhere.reply) as url, collecting(Collector(status=307, location=url)) as (export, failures):
        export.record(record(traffic=Traffic.CANARY))
        send(export)
    assert elsewhere.got == []
    assert len(failures) == 1


def test_nobody_is_there() -> None:
    with collecting(Collector()) as (export, failures):
        export.record(record(traffic=Traffic.CANARY))
    send(export)
    assert len(failures) == 1


def test_headers_are_sent_and_secrets_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hidden\n")
    headers = {"x-tenant": "a", "Authorization": {"file": str(tmp_path / "key")}}
    collector = Collector()
    with collecting(collector, headers=headers) as (export, _):
        export.record(record(traffic=Traffic.CANARY))
        send(export)
    _, sent, _ = collector.got[0]
    assert (sent["x-tenant"], sent["authorization"]) == ("a", "sk-hidden")
    raw = {
        "targets": [{"name": "a", "base_url": "http://a"}],
        "otlp": {"endpoint": "http://c:4318", "headers": headers},
    }
    assert "sk-hidden" not in show(config_from(raw, "test"))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "otlp.endpoint"),
        ({"endpoint": "collector:4318"}, "expected an address such as"),
        ({"endpoint": "http://c:4318", "ca_file": "/nowhere"}, "otlp.ca_file: '/nowhere' cannot be read"),
        ({"endpoint": "http://c:4318", "headers": {"x-api-key": "sk-1"}}, "seems to hold a secret by its name"),
    ],
)
def test_a_wrong_section_is_one_line(section: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from({"targets": [{"name": "a", "base_url": "http://a"}], "otlp": section}, "test.yml")
    (line,) = str(caught.value).splitlines()
    assert words in line
    assert "sk-1" not in line


def test_the_last_ones_are_sent_at_the_end() -> None:
    collector = Collector()

    async def main(export: OtlpExport) -> None:
        following = asyncio.create_task(export.follow())
        await asyncio.sleep(0)
        export.record(record(traffic=Traffic.CANARY))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    with collecting(collector) as (export, _):
        asyncio.run(main(export))
    assert collector.spans() == 1

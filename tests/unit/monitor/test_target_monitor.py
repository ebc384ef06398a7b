"""The work on one target, against the mock server: a server may do what it likes, and the monitor goes on."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_records import WALL_S
from example_records import result as example
from mock_servers import MockServer, mock_server
from prometheus_client import CollectorRegistry
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from exporters.probe import ProbeExporter
from exporters.registry import MetricsPage
from exporters.server import ServerExporter
from probe.capacity.run.locks import LOST_LEASE, FileLock, Lock
from probe.config.config_file import config_from
from probe.core.clock import Clock, SystemClock
from probe.core.errors import LockError, TargetError
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.server_address import server_key
from probe.core.snapshot import CrossChecks, Gpu, GpuSnapshot, ServerSnapshot, UserLoad, UserTotals
from probe.mock_server.driver import Faults
from probe.monitor.target_context import TargetContext
from probe.monitor.target_monitor import TargetMonitor
from probe.observe.server_observer import GpuReader
from probe.runtime.kept_program import free_port
from probe.scrape.page_scraper import REASONS


@dataclass
class FakeSink:
    """Keeps what it is given, and exports it as the monitor would."""

    records: list[RequestRecord] = field(default_factory=list)
    snapshots: list[ServerSnapshot | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    totals: UserTotals | None = None
    checks: CrossChecks | None = None
    live: UserLoad | None = None
    read_gpus: list[GpuSnapshot | None] = field(default_factory=list)
    results: list[CapacityResult] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    forecasts: list[CapacityResult] = field(default_factory=list)
    for_users: list[CapacityResult] = field(default_factory=list)
    low: bool = False  # what was measured is far below the baseline
    unrepeated: str | None = None
    client: ProbeExporter | None = None
    server: ServerExporter = field(default_factory=lambda: ServerExporter(("a",), REASONS))

    def record(self, record: RequestRecord) -> None:
        self.records.append(record)
        if self.client:
            self.client.observe(record, WALL_S)

    def snapshot(self, target: str, snapshot: ServerSnapshot, seconds: float, page_bytes: int) -> None:
        self.snapshots.append(snapshot)
        self.server.observe(target, snapshot, seconds, page_bytes)

    def scrape_failed(self, target: str, reason: str) -> None:
        self.snapshots.append(None)
        self.reasons.append(reason)
        self.server.count_failure(target, reason)

    def users(self, target: str, totals: UserTotals) -> None:
        assert target == "a"
        self.totals = totals

    def cross_checks(self, target: str, found: CrossChecks, users: UserLoad | None) -> None:
        assert target == "a"
        self.checks, self.live = found, users

    def gpus(self, target: str, snapshot: GpuSnapshot | None) -> None:
        assert target == "a"
        self.read_gpus.append(snapshot)

    def page(self) -> bytes:
        """Return what the monitor would export to Prometheus."""
        assert self.client is not None
        return MetricsPage(CollectorRegistry(), (self.client.relay, self.server.relay)).render()[0]

    def result(self, result: CapacityResult) -> None:
        self.results.append(result)

    def needs_confirmation(self, result: CapacityResult) -> bool:
        assert result is self.results[-1], "it is asked about what it has just been given"
        return self.low and result.confirms is None

    def unrepeated_drop(self, target: str) -> str | None:
        assert target == "a"
        return self.unrepeated

    def corrected(self, forecast: CapacityResult) -> CapacityResult:
        return replace(forecast, capacity=replace(forecast.capacity, advice="corrected"))

    def forecast(self, result: CapacityResult) -> None:
        assert result.target == "a"
        self.forecasts.append(result)

    def forecast_for_users(self, result: CapacityResult) -> None:
        assert result.target == "a"
        self.for_users.append(result)

    def refused(self, target: str, reason: str) -> None:
        assert target == "a"
        self.refusals.append(reason)


def _watch(
    url: str,
    sink: FakeSink,
    firing: Callable[[], Awaitable[list[str]]] | None = None,
    *,
    spent: Callable[[float], int] = lambda _: 0,
    clock: Clock | None = None,
    read_gpus: GpuReader | None = None,
    **target: Any,
) -> TargetMonitor:
    config = config_from(
        {
            # So wide that a busy machine's late event loop voids no step.
            "objectives": {"default": {"ttft": {"ratio": 0.5, "within": "5s"}}},
            "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
            "targets": [
                {
                    "name": "a",
                    "base_url": url,
                    "tls": {"verify": False},  # half the time of a test is spent on reading certificates
                    "canary": {"workload": "short", "timeout": "2s"},
                    "capacity": {"mode": "verify", "concurrency": [1, 2], "step": "400ms", "confirm": "400ms"},
                    **target,
                }
            ],
        },
        "test",
    )
    context = TargetContext(firing_pages=firing, tokens_since=spent, read_gpus=read_gpus)
    watch = TargetMonitor(config, config.targets[0], clock or SystemClock(), sink, context)
    sink.client = ProbeExporter({"a": watch.objectives})
    return watch


@dataclass(frozen=True)
class Host:
    """One event loop with a mock server on it, which runs while a test does."""

    runner: asyncio.Runner
    server: MockServer


@pytest.fixture(scope="module")
def shared_host() -> Iterator[Host]:
    with asyncio.Runner() as runner:
        serving = mock_server()
        yield Host(runner, runner.run(serving.__aenter__()))
        runner.run(serving.__aexit__(None, None, None))


@pytest.fixture
def host(shared_host: Host) -> Iterator[Host]:
    server = shared_host.server
    yield shared_host
    server.asked.clear()
    server.instead.clear()
    server.driver.wake_up()
    server.driver.faults = Faults()


def _against(
    host: Host, work: Callable[[TargetMonitor, FakeSink, MockServer], Awaitable[None]], **options: Any
) -> None:
    """Run `work` on a watch of the mock server, and close the watch afterwards."""

    async def run() -> None:
        sink = FakeSink()
        watch = _watch(host.server.url, sink, **options)
        try:
            await work(watch, sink, host.server)
        finally:
            await watch.close()

    host.runner.run(run())


# Canary.


def test_a_canary_learns_the_model_and_reports_what_it_measured(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        assert watch.status().up is None
        await watch.send_canary()
        (record,) = sink.records
        assert (record.outcome, record.model, record.traffic) == (Outcome.OK, "tiny", Traffic.CANARY)
        assert (record.prompt_tokens, record.output_tokens) == (8, 3)
        assert server.generated == 1
        assert watch.status().up is True
        await watch.send_canary()
        assert server.asked.count("/v1/models") == 1

    _against(host, work)


@pytest.mark.fault("TI13")
def test_a_canary_shows_that_the_server_is_up_until_later_ones_should_have_ended(host: Host) -> None:
    async def work(watch: TargetMonitor, _: FakeSink, __: MockServer) -> None:
        await watch.send_canary()
        assert watch.status().up is True
        (valid_s,) = watch.valid_s
        assert valid_s == 3 * 15.0 + 2 * 2.0
        watch._kinds[0]._clock = _LaterClock(int(valid_s * 1e9))
        assert watch.status().up is None
        await watch.send_canary()
        assert watch.status().up is None, "of a canary before the clock leapt"

    _against(host, work)


@pytest.mark.slow
def test_a_server_that_is_down_is_a_failing_canary_and_recovers_by_itself_with_another_model() -> None:
    async def run() -> None:
        port = free_port()
        sink = FakeSink()
        watch = _watch(f"http://127.0.0.1:{port}", sink)
        await watch.send_canary()
        async with mock_server(model="old", port=port):
            await watch.send_canary()
        await watch.send_canary()
        await watch.send_canary()
        assert watch.status().up is False
        async with mock_server(model="new", port=port):
            await watch.send_canary()
            await watch.send_canary()
        assert [r.outcome.value for r in sink.records] == [
            "unreachable",
            "ok",
            "unreachable",
            "unreachable",
            "ok",
            "ok",
        ]
        assert [r.model for r in sink.records[-2:]] == ["new", "new"]
        assert watch.status().up is True
        assert len(watch.status().failures) == 3
        await watch.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_hangs_is_a_time_out(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.driver.faults = Faults(is_stalled=True)
        await watch.send_canary()
        server.driver.faults = Faults()
        await watch.send_canary()
        assert [r.outcome for r in sink.records] == [Outcome.OK, Outcome.TIMEOUT, Outcome.OK]

    _against(host, work, canary={"workload": "short", "timeout": "300ms"})


def _stream(*events: object) -> ASGIApp:
    text = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    return Response(text, media_type="text/event-stream")


def _chunk(**usage: object) -> dict[str, object]:
    return {"choices": [{"text": "word", "finish_reason": "length"}], "usage": usage or None}


HOSTILE_ANSWERS: dict[str, ASGIApp] = {
    "empty": Response(b""),
    "html": PlainTextResponse("<html>It works!</html>"),
    "redirect": Response(status_code=302, headers={"location": "http://elsewhere.invalid/"}),
    "500": JSONResponse({"error": {"message": "boom"}}, 500),
    "418": PlainTextResponse("teapot", 418),
    "no such status": PlainTextResponse("what", 799),
    "unpaired surrogate in an error": Response(
        b'{"error": {"message": "\\ud800"}}', 400, media_type="application/json"
    ),
    "unpaired surrogate in the stream": _stream('{"error": {"message": "\\ud800"}}'),
    "negative usage": _stream(_chunk(prompt_tokens=-8, completion_tokens=-3), "[DONE]"),
    "huge usage": _stream(_chunk(prompt_tokens=10**400, completion_tokens=10**400), "[DONE]"),
    "usage that is no number": _stream(_chunk(prompt_tokens=None, completion_tokens="3"), "[DONE]"),
    "usage of true": _stream(_chunk(prompt_tokens=True, completion_tokens=True), "[DONE]"),
    "deeply nested": _stream("[" * 100_000),
    "choices of another kind": _stream({"choices": {"0": 1}}, {"choices": [[]]}, {"choices": [None]}, "[DONE]"),
    "finish reason of another kind": _stream(
        {"choices": [{"text": "w", "finish_reason": {"a": [1]}}], "usage": None}, "[DONE]"
    ),
    "not utf-8": Response(b"data: \xff\xfe\n\n", media_type="text/event-stream"),
    "null bytes": Response(b"\x00" * 1000, media_type="text/event-stream"),
}


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS.keys())
def test_whatever_a_server_answers_is_an_outcome_that_can_be_exported(host: Host, answer: ASGIApp) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.instead["/v1/completions"] = answer
        await watch.send_canary()
        failed = sink.records[-1]
        assert failed.outcome is not Outcome.OK
        assert "\n" not in (failed.detail or "")
        sink.page()
        del server.instead["/v1/completions"]
        await watch.send_canary()
        assert [record.outcome is Outcome.OK for record in sink.records] == [True, False, True]

    _against(host, work)


HOSTILE_MODELS: dict[str, bytes] = {
    "unpaired surrogate": b'{"data": [{"id": "\\ud800"}]}',
    "megabyte": b'{"data": [{"id": "' + b"x" * 1_000_000 + b'"}]}',
    "escape": b'{"data": [{"id": "\\u001b[2J"}]}',
    "none": b'{"data": []}',
    "null": b'{"data": [{"id": null}]}',
    "list": b"[]",
    "nested": b'{"data": [{"id": {"a": 1}}]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("body", HOSTILE_MODELS.values(), ids=HOSTILE_MODELS.keys())
@pytest.mark.fault(
    "FA93",
    "A model named with quotes, line breaks and half characters",
    area="Foreign answers",
    users_see="its name as text inside the label",
    stays="`/metrics` parses",
)
def test_whatever_a_server_calls_its_model_the_metrics_page_stays(host: Host, body: bytes) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        server.instead["/v1/models"] = Response(body, media_type="application/json")
        await watch.send_canary()
        page = sink.page()
        assert len(page) < 100_000
        assert sink.records[-1].outcome is not Outcome.OK
        json.dumps(watch.status().model, ensure_ascii=False).encode()

    _against(host, work)


# Sleep.


async def _post(server: MockServer, path: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"{server.url}{path}")).raise_for_status()


async def _asked(server: MockServer, times: int) -> None:
    """Wait until the server has been asked for tokens so many times."""
    while server.generated < times:  # noqa: ASYNC110 - the server counts on its own
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_server_that_sleeps_gets_no_canary_and_has_no_failure(host: Host, level: int) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        await watch.scrape()
        await _post(server, f"/sleep?level={level}")
        for _ in range(5):  # the first ones before a scrape shows it
            await watch.send_canary()
        await watch.scrape()
        await watch.send_canary()
        assert server.generated == 1
        status = watch.status()
        assert status.asleep_since_s is not None
        assert abs(status.asleep_since_s - time.time()) < 5
        assert (len(sink.records), status.failures) == (1, ())
        assert b'kneewatch_server_asleep{target="a"} 1.0' in sink.page()
        with pytest.raises(TargetError, match="sleeps"):
            await watch.on_demand(None)
        assert server.generated == 1
        await _post(server, "/wake_up")
        await watch.send_canary()
        await watch.scrape()
        assert [record.outcome for record in sink.records] == [Outcome.OK, Outcome.OK]
        assert watch.status().asleep_since_s is None
        assert b'kneewatch_server_asleep{target="a"} 0.0' in sink.page()

    _against(host, work)


def test_a_canary_that_is_in_flight_when_the_server_falls_asleep_is_not_judged(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.driver.faults = Faults(is_stalled=True)
        flying = asyncio.create_task(watch.send_canary())
        await _asked(server, 2)
        await _post(server, "/sleep")
        await flying
        await watch.scrape()
        assert [record.outcome for record in sink.records] == [Outcome.OK, Outcome.ABORTED]
        assert sink.records[1].detail == "the server fell asleep"
        assert watch.status().failures == ()
        assert b'kneewatch_target_up{target="a"} 1.0' in sink.page()
        await _post(server, "/wake_up")

    _against(host, work)


def test_a_server_that_dies_in_its_sleep_gets_canaries_again_after_a_minute() -> None:
    async def run() -> None:
        sink, clock = FakeSink(), _LaterClock()
        async with mock_server() as server:
            watch = _watch(server.url, sink, clock=clock)
            await watch.scrape()
            await _post(server, "/sleep")
            await watch.scrape()
        for later_s in (0, 59):
            clock.later_ns = later_s * 10**9
            await watch.scrape()
            await watch.send_canary()
            assert sink.records == []
            assert watch.status().asleep_since_s is not None
        clock.later_ns = 61 * 10**9
        await watch.send_canary()
        assert [record.outcome for record in sink.records] == [Outcome.UNREACHABLE]
        assert watch.status().asleep_since_s is None
        await watch.close()

    asyncio.run(run())


@dataclass
class _LaterClock(Clock):
    """The system's clock, put forward."""

    later_ns: int = 0

    def monotonic_ns(self) -> int:
        return SystemClock().monotonic_ns() + self.later_ns

    def wall_s(self) -> float:
        return SystemClock().wall_s()

    def waited_ns(self) -> int:
        return 0


@pytest.mark.slow
def test_no_run_begins_while_the_server_sleeps_and_one_that_runs_is_stopped(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        await watch.scrape()
        running = asyncio.create_task(watch.capacity())
        await _asked(server, 4)
        await _post(server, "/sleep")
        await running
        (result,) = sink.results
        assert result.stopped == Stopped("guard", "asleep")
        assert result.capacity.requests_per_second is None
        assert "fell asleep" in (result.capacity.reason or "")
        sent = server.generated
        await watch.capacity()
        assert sink.refusals == ["asleep"]
        assert server.generated == sent
        await _post(server, "/wake_up")

    _against(host, work, capacity={"mode": "verify", "concurrency": [1, 2], "step": "5s", "confirm": "5s"})


# Scrape.


def test_a_reading_is_shown_and_a_failing_one_takes_it_away(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.scrape()
        status = watch.status()
        assert status.server is not None
        assert status.server.version == "0.32.0-sim"
        assert status.server_error is None
        server.instead["/metrics"] = PlainTextResponse("nope", 404)
        await watch.scrape()
        last, status = status.server, watch.status()
        assert status.server is None
        assert status.last_server is last, "its values stay, for people"
        assert status.last_checks is not None
        assert status.last_checks.engine_minutes is not None
        assert "HTTP 404" in (status.server_error or "")
        del server.instead["/metrics"]
        await watch.scrape()
        assert watch.status().server_error is None
        assert [snapshot is not None for snapshot in sink.snapshots] == [True, False, True]

    _against(host, work)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "# just a comment\n",
        "<html></html>",
        "vllm:num_requests_running{ 1\n",
        "vllm:num_requests_running abc\n",
        'vllm:time_to_first_token_seconds_bucket{le="abc"} 1\n',
        "vllm:time_to_first_token_seconds_bucket 1\n",
        "\x00\xff" * 1000,
    ],
)
def test_a_page_that_is_not_vllms_is_a_failed_reading(host: Host, page: str) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        server.says_on_metrics(page)
        await watch.scrape()
        assert sink.snapshots == [None]
        sink.page()

    _against(host, work)


@pytest.mark.parametrize(
    "page",
    [
        'vllm:num_requests_waiting_by_reason{reason="\\"x\\n"} 1\nvllm:num_requests_waiting 1\n',
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
        'vllm:time_to_first_token_seconds_bucket{le="NaN"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 1\nvllm:time_to_first_token_seconds_sum NaN\n',
        "vllm:num_preemptions_total -5\n",
    ],
)
def test_an_odd_page_does_not_take_our_own_away(host: Host, page: str) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        server.says_on_metrics(page)
        await watch.scrape()
        sink.page()

    _against(host, work)


@pytest.mark.parametrize("version", ["\\ud800", "a\\nb", "x" * 1000])
@pytest.mark.fault(
    "FA94",
    "A version string that is odd or never comes",
    area="Foreign answers",
    users_see="no version",
    stays="metrics are read",
)
def test_an_odd_version_does_not_take_our_own_page_away(host: Host, version: str) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        server.instead["/version"] = Response(f'{{"version": "{version}"}}', media_type="application/json")
        await watch.scrape()
        assert len(sink.page()) < 100_000
        assert sink.snapshots[-1] is not None

    _against(host, work)


@pytest.mark.fault(
    "FA92",
    "A server that reports new series at each scrape",
    area="Foreign answers",
    users_see="as many series as before",
    stays="`/metrics` stays",
)
def test_a_server_cannot_make_series_without_end(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        reasons = "".join(f'vllm:num_requests_waiting_by_reason{{reason="r{i}"}} 1\n' for i in range(5000))
        server.says_on_metrics("vllm:num_requests_waiting 5000\n" + reasons)
        await watch.scrape()
        assert sink.page().count(b"\n") < 500

    _against(host, work)


# Client, server and GPU next to each other.


@pytest.mark.slow
def test_a_canary_is_taken_off_what_the_server_counted_and_compared_with_it(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.scrape()
        for _ in range(4):  # three accounts, after the one that begins them
            await watch.send_canary()
            await watch.scrape()
            assert sink.totals is not None
            assert sink.totals.requests == 0, "accounts wait until the server has surely counted it"
            await asyncio.sleep(1.05)
            await watch.scrape()
            assert (sink.totals.requests, sink.totals.output_tokens) == (0, 0)
        assert sink.checks is not None
        assert sink.checks.counted == {"prompt": 1.0, "output": 1.0}
        assert 0 <= sink.checks.ttft_gap_s["matched"] < 1
        assert sink.checks.stalled_s == 0

    _against(host, work)


@pytest.mark.slow
def test_other_requests_are_user_traffic_also_during_a_capacity_run(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()  # a run wants one
        await watch.scrape()
        before = server.generated
        running = asyncio.create_task(watch.capacity())
        while server.generated == before:  # noqa: ASYNC110 - the mock server has no event for it
            await asyncio.sleep(0.01)
        await watch.scrape()
        assert watch.status().users is None, "there is our load among them"
        await running
        async with httpx.AsyncClient() as somebody:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
            await somebody.post(f"{server.url}/v1/completions", json=body)
        await asyncio.sleep(1.05)
        await watch.scrape()
        assert sink.totals is not None
        assert (sink.totals.requests, sink.totals.output_tokens) == (1, 2)

    _against(host, work)


def test_a_passive_target_is_asked_for_nothing_but_metrics_and_its_model_is_read_there(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        assert watch.model == "unknown"
        await watch.scrape()
        await watch.forecast()
        assert watch.model == "tiny"
        assert watch.status().passive
        assert set(server.asked) == {"/version", "/metrics"}

    _against(host, work, passive=True, capacity={"mode": "forecast"})


def _gpus(at_ns: int, percent: float) -> GpuSnapshot:
    return GpuSnapshot(at_ns, WALL_S, "nvml", (Gpu({"UUID": "GPU-1"}, {"DCGM_FI_DEV_GPU_UTIL": percent}),))


def test_gpus_are_read_shown_and_gone_when_they_cannot_be_read() -> None:
    readings: list[float | None] = [50.0, None, 60.0]

    async def read() -> GpuSnapshot:
        percent = readings.pop(0)
        if percent is None:
            raise TargetError("http://node:9400: dcgm-exporter does not answer", Outcome.UNREACHABLE)
        return _gpus(0, percent)

    async def run() -> None:
        sink = FakeSink()
        watch = _watch("http://127.0.0.1:9", sink, read_gpus=read)
        for _ in range(3):
            await watch.scrape_gpus()
            status = watch.status()
            assert (status.gpus is None) == (status.gpu_error is not None)
        assert [snapshot is not None for snapshot in sink.read_gpus] == [True, False, True]
        await watch.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_step_of_load_says_how_busy_the_gpus_were(host: Host) -> None:
    percents = itertools.cycle((70.0, 90.0))

    async def read() -> GpuSnapshot:
        return _gpus(SystemClock().monotonic_ns(), next(percents))

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.send_canary()
        await watch.capacity()
        (step,) = sink.results[-1].steps
        assert step.gpu.utilization == pytest.approx(0.8, abs=0.1001)

    capacity = {"mode": "verify", "concurrency": [1], "step": "2500ms", "confirm": "2s"}
    _against(host, work, capacity=capacity, read_gpus=read)


# Capacity.


async def _fires(*names: str) -> list[str]:
    return list(names)


async def _prometheus_is_down() -> list[str]:
    raise TargetError("http://prometheus: Prometheus does not answer (refused)", Outcome.UNREACHABLE)


BUSY = "vllm:num_requests_running 8\nvllm:num_requests_waiting 3\n"
FULL = "vllm:num_requests_running 8\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.99\n"
BLIND = "vllm:num_requests_running 8\n"


@pytest.mark.parametrize(
    ("page", "firing", "words"),
    [
        (BUSY, None, "busy"),
        (FULL, None, "busy"),
        (BLIND, None, "no_server_metrics"),
        ("", None, "no_server_metrics"),
        (None, lambda: _fires("Slow"), "alert_firing"),
        (None, _prometheus_is_down, "no_prometheus"),
    ],
)
def test_a_refused_run_adds_no_load_and_says_why(
    host: Host, page: str | None, firing: Callable[[], Awaitable[list[str]]] | None, words: str
) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        if page is not None:
            server.says_on_metrics(page)
        await watch.capacity()
        assert server.generated == 1, "the canary alone"
        (refusal,) = sink.refusals
        assert refusal == words
        assert str(watch.status().capacity_state).startswith(f"{words}: ")
        assert sink.results == []

    _against(host, work, firing=firing)


def test_no_run_before_a_canary_or_after_one_that_failed(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.capacity()
        assert server.generated == 0
        await watch.send_canary()
        server.driver.faults = Faults(error_ratio=1.0)
        await watch.send_canary()
        server.driver.faults = Faults()
        before = server.generated
        await watch.capacity()
        assert server.generated == before
        assert sink.refusals == ["canary_failed"] * 2
        assert "server_error" in str(watch.status().capacity_state)

    _against(host, work)


@pytest.mark.slow
def test_a_run_reports_its_result_and_marks_its_traffic(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        await watch.capacity()
        (result,) = sink.results
        assert (result.target, result.model) == ("a", "tiny")
        assert result.context.version == "0.32.0-sim"
        assert result.context.workload["name"] == "short"
        assert result.stopped.by == "done"
        assert result.capacity.requests_per_second is not None
        capacity = [r for r in sink.records if r.traffic is Traffic.CAPACITY]
        assert len(capacity) == result.cost.requests == server.generated - 1
        assert watch.status().capacity is result
        assert watch.status().capacity_state is None
        assert server.driver.engine.running == 0

    _against(host, work)


@pytest.mark.slow
def test_without_steps_in_the_configuration_a_run_searches(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        await watch.capacity()
        (result,) = sink.results
        assert result.stopped == Stopped("budget", "seconds")
        assert result.steps[0].plan.loop == "closed", "it begins with a pulse: requests sent together"
        assert result.cost.requests == server.generated - 1
        assert server.driver.engine.running == 0

    capacity = {"mode": "verify", "observe": "100ms", "budget": {"seconds": 6.0}}
    _against(host, work, capacity=capacity)


@pytest.mark.slow
def test_rates_in_the_configuration_are_an_open_loop(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.send_canary()
        await watch.capacity()
        (result,) = sink.results
        assert [step.plan.arrivals and step.plan.arrivals.rate_rps for step in result.steps] == [30.0, 60.0]
        assert result.capacity.knee_concurrency is None

    _against(host, work, capacity={"mode": "verify", "rates": [30, 60], "step": "1s", "confirm": "1s"})


@pytest.mark.slow
def test_a_capacity_s_context_names_the_configured_gpu(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.send_canary()
        await watch.capacity()
        await watch.forecast()
        last = watch.status().forecast
        assert last is not None
        assert [result.context.gpu for result in (*sink.results, last)] == ["NVIDIA L4", "NVIDIA L4"]

    steps = {"mode": "verify", "concurrency": [1, 2], "step": "400ms", "confirm": "400ms"}
    _against(host, work, capacity={**steps, "server": {"gpu": "NVIDIA L4"}})


def test_a_forecast_is_published_and_shown_as_its_record_corrects_it(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, _: MockServer) -> None:
        await watch.forecast()
        assert [each.capacity.advice for each in sink.forecasts] == ["corrected"]
        assert watch.status().forecast is sink.forecasts[0]

    _against(host, work, capacity={"mode": "forecast"})


def test_live_load_is_judged_by_what_was_measured_and_not_by_a_forecast(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        measured = example(capacity=Capacity(mode="verified", requests_per_second=10.0, upper=11.0))
        forecast = example(capacity=Capacity(mode="forecast", requests_per_second=2.0, lower=2.0))
        watch.restore(measured)
        watch.restore(forecast)
        assert watch.last_result is forecast
        assert watch._runs.known is measured
        withheld = example(capacity=Capacity(mode="empirical", reason="no step was valid"))
        watch.restore(withheld)
        assert watch.status().capacity is withheld
        assert watch.status().measured is measured, "a run that found nothing forgets nothing"

    _against(host, work)


@pytest.mark.slow
def test_a_capacity_far_below_the_baseline_is_measured_again_at_once_and_not_a_third_time(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        sink.low = True
        await watch.send_canary()
        await watch.capacity()
        first, second = sink.results
        assert (first.confirms, second.confirms) == (None, first.id)
        assert watch.status().capacity is second
        assert server.driver.engine.running == 0

    _against(host, work)


@pytest.mark.fault(
    "TR41",
    "A restart between a low run and the one that repeats it",
    area="Truth",
    users_see="-",
    stays="the next run, a minute later, names the one that it repeats",
)
@pytest.mark.slow
def test_after_a_restart_the_next_run_repeats_the_low_one(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        sink.low, sink.unrepeated = True, "before the restart"
        await watch.send_canary()
        await watch.capacity()
        assert [result.confirms for result in sink.results] == ["before the restart"]

    _against(host, work)


@pytest.mark.slow
def test_a_second_run_has_to_pass_the_checks_before_it_too(host: Host) -> None:
    answers = [[], ["Fire"]]

    async def firing() -> list[str]:
        return answers.pop(0)

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        sink.low = True
        await watch.send_canary()
        await watch.capacity()
        assert len(sink.results) == 1
        assert sink.refusals == ["alert_firing"]

    _against(host, work, firing=firing)


@pytest.mark.slow
def test_a_run_that_something_ended_is_not_repeated(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        sink.low = True
        await watch.send_canary()
        await watch.capacity()
        (result,) = sink.results
        assert result.stopped.by == "budget"

    capacity = {"mode": "verify", "concurrency": [1], "step": "300ms", "budget": {"seconds": 0.3}}
    _against(host, work, capacity=capacity)


@pytest.mark.slow
def test_the_end_of_the_monitor_ends_a_run_at_once_and_reports_it(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(5):
            while server.driver.engine.running == 0:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        assert watch.status().capacity_state == "running"
        under_way = watch.status().run
        assert under_way is not None
        assert under_way.phase != "starting"
        async with asyncio.timeout(1):
            await watch.stop_run("shutting down")
            await run
        assert watch.status().run is None
        (result,) = sink.results
        assert (result.stopped.by, result.stopped.reason) == ("interrupt", "shutting down")
        assert result.capacity.requests_per_second is None
        await asyncio.sleep(0.1)
        assert server.driver.engine.running == 0
        assert server.driver.engine.waiting == 0

    capacity = {"mode": "verify", "concurrency": [4], "step": "30s"}
    _against(host, work, capacity=capacity)


def test_without_a_run_there_is_nothing_to_end(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        async with asyncio.timeout(0.5):
            await watch.stop_run("shutting down")

    _against(host, work)


@pytest.mark.slow
def test_a_run_that_breaks_is_reported_and_the_next_one_can_start(host: Host) -> None:
    """`error` is one of the ways a run ends; a run that vanishes was load that nobody accounts for."""

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.driver.faults = Faults(extra_step_s=0.01)
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(5):
            while watch._runs._run is None or not watch._runs._run._watch.polls:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.005)
        watch._runs._run._watch._read_server = _breaks
        await asyncio.gather(run, return_exceptions=True)
        assert watch.status().capacity_state != "running"
        async with asyncio.timeout(0.5):
            await watch.stop_run("shutting down")
        await asyncio.sleep(0.05)
        assert server.driver.engine.running == 0
        assert [result.stopped.by for result in sink.results] == ["error"]

    _against(host, work)


async def _breaks() -> ServerSnapshot:
    raise ZeroDivisionError


def _takes(watch: TargetMonitor, lock: Callable[[], Lock]) -> None:
    """Give the target another lock."""
    watch._runs._hooks = replace(watch._runs._hooks, lock=lock)


# What a run may not do.


@pytest.mark.slow
def test_no_run_starts_while_another_prober_loads_the_server(host: Host) -> None:
    """Another Kneewatch, which knows the server by another name."""

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        elsewhere = server.url.replace("127.0.0.1", "localhost") + "/"
        async with FileLock(server_key(elsewhere), None, SystemClock()):
            await watch.capacity()
        assert sink.refusals == ["locked"]
        assert "another prober loads localhost:" in str(watch.status().capacity_state)
        assert server.generated == 1, "the canary alone"
        await watch.capacity()
        assert len(sink.results) == 1

    _against(host, work)


@pytest.mark.slow
def test_during_a_run_the_server_is_locked_and_afterwards_it_is_free(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(5):
            while server.driver.engine.running == 0:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        with pytest.raises(LockError, match="another prober"):
            await FileLock(server_key(server.url), None, SystemClock()).__aenter__()
        await watch.stop_run("shutting down")
        await run
        async with FileLock(server_key(server.url), None, SystemClock()):
            assert len(sink.results) == 1

    _against(host, work, capacity={"mode": "verify", "concurrency": [4], "step": "30s"})


@pytest.mark.slow
def test_a_lock_that_is_lost_ends_the_load_at_once_and_the_run_is_reported(host: Host) -> None:
    """As a Lease may be (probe/load/lease.py)."""

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        lost_at: list[float] = []
        losing: list[asyncio.Task[None]] = []

        @asynccontextmanager
        async def lost() -> AsyncIterator[None]:
            try:
                async with asyncio.timeout(None) as until:
                    losing.append(asyncio.create_task(lose(until)))
                    yield
            except TimeoutError:
                raise LockError("the lease is lost: somebody has deleted it", "lost_lock") from None

        async def lose(until: asyncio.Timeout) -> None:
            while server.driver.engine.running < 3:  # noqa: ASYNC110 - it is lost under load
                await asyncio.sleep(0.01)
            lost_at.append(time.monotonic())
            until.reschedule(0.0)

        _takes(watch, lost)
        await watch.send_canary()
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(10):
            while not lost_at or server.driver.engine.running:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        assert time.monotonic() - lost_at[0] < 3.0
        await asyncio.wait_for(run, 10)
        (result,) = sink.results
        assert (result.stopped.by, result.stopped.reason) == ("interrupt", "cancelled")
        assert result.cost.requests > 0
        assert watch.status().capacity_state == "the lease is lost: somebody has deleted it"

    _against(host, work, capacity={"mode": "verify", "concurrency": [4], "step": "30s"})


@pytest.mark.slow
def test_a_lost_lease_is_reported_as_the_reason(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(10):
            while server.driver.engine.running < 3:  # noqa: ASYNC110 - it is lost under load
                await asyncio.sleep(0.01)
        run.cancel(LOST_LEASE)  # as probe/load/lease.py does
        await asyncio.gather(run, return_exceptions=True)
        (result,) = sink.results
        assert (result.stopped.by, result.stopped.reason) == ("interrupt", LOST_LEASE)

    _against(host, work, capacity={"mode": "verify", "concurrency": [4], "step": "30s"})


@pytest.mark.slow
def test_counters_under_another_probers_load_are_not_user_traffic(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}

        async def asked(times: int) -> None:
            async with httpx.AsyncClient(trust_env=False) as client:
                for _ in range(times):
                    (await client.post(f"{server.url}/v1/completions", json=body, timeout=10)).raise_for_status()

        async def users() -> float | None:
            await asyncio.sleep(1.1)  # of what was under way nothing is any more
            await watch.scrape()
            return sink.totals.requests if sink.totals is not None else None

        assert await users() == 0
        await asked(2)
        assert await users() == 2
        for loading in (True, True):  # told again and again
            watch.set_other_prober(loading=loading)
        await asked(5)
        assert await users() is None
        assert watch.users is None
        watch.set_other_prober(loading=False)
        assert await users() == 2
        await asked(3)
        assert await users() == 5

    _against(host, work)


@pytest.mark.slow
def test_the_lock_holder_knows_that_no_other_prober_loads_the_server(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, _: MockServer) -> None:
        await watch.send_canary()
        watch.set_other_prober(loading=True)  # an old answer
        await watch.capacity()
        assert len(sink.results) == 1
        await asyncio.sleep(1.1)
        await watch.scrape()
        assert not watch._observer.state._traffic.is_loaded

    _against(host, work)


def test_a_folder_that_takes_no_lock_is_a_refusal(host: Host, tmp_path: Path) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        _takes(watch, lambda: FileLock(server_key(server.url), tmp_path / "missing", SystemClock()))
        await watch.capacity()
        assert sink.refusals == ["no_lock"]
        assert server.generated == 1

    _against(host, work)


class Night(SystemClock):
    """Half a second before 05:00 in Berlin, for ever."""

    def wall_s(self) -> float:
        return datetime(2026, 11, 23, 3, 59, 59, 500_000, tzinfo=UTC).timestamp()


@pytest.mark.slow
def test_a_run_ends_with_its_window(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.driver.faults = Faults(extra_step_s=0.1)
        await watch.capacity()
        (result,) = sink.results
        assert result.stopped == Stopped("budget", "window")
        assert result.capacity.requests_per_second is None
        assert "the window of the schedule closed" in str(result.capacity.reason)
        assert server.driver.engine.running == 0

    schedule = {"windows": ["01:00-05:00"], "timezone": "Europe/Berlin"}
    capacity = {"mode": "verify", "concurrency": [4, 8, 16], "step": "400ms", "confirm": "400ms", "schedule": schedule}
    _against(host, work, capacity=capacity, clock=Night())


@pytest.mark.slow
def test_a_run_gets_no_more_than_the_day_has_left(host: Host) -> None:
    """Eleven tokens a request: thirty of them are all that is left."""

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.send_canary()
        await watch.capacity()
        (result,) = sink.results
        assert result.stopped == Stopped("budget", "tokens_per_day")
        assert result.cost.tokens >= 330

    budget = {"tokens_per_run": 1000, "tokens_per_day": 1000}
    capacity = {"mode": "verify", "concurrency": [2], "step": "30s", "budget": budget}
    _against(host, work, capacity=capacity, spent=lambda _: 670)


def test_a_day_that_is_spent_has_no_run(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        await watch.capacity()
        assert sink.refusals == ["budget_spent"]
        assert server.generated == 1

    _against(host, work, spent=lambda _: 10**9)


def test_a_server_that_restarted_just_now_has_no_run(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        server.says_on_metrics("vllm:num_requests_waiting 0\nvllm:prompt_tokens_total 1000000\n")
        await watch.scrape()
        del server.instead["/metrics"]
        await watch.capacity()
        assert sink.refusals == ["rollout"]
        assert server.generated == 1

    _against(host, work)


def _lengths_page(requests: int) -> str:
    """Return a page of a server on which users have sent this many requests of 300 + 90 tokens."""
    lines = ["vllm:num_requests_running 0", "vllm:num_requests_waiting 0"]
    for name, tokens in (("prompt", 300), ("generation", 90)):
        series = f"vllm:request_{name}_tokens"
        counts = {100: requests * (tokens <= 100), 200: requests * (tokens <= 200), 500: requests, 1000: requests}
        lines += [f"# TYPE {series} histogram", f"{series}_sum {tokens * requests}", f"{series}_count {requests}"]
        lines += [f'{series}_bucket{{le="{bound}"}} {count}' for bound, count in (*counts.items(), ("+Inf", requests))]
    return "\n".join(lines) + "\n"


@pytest.mark.fault("LO47")
def test_capacity_for_users_waits_until_their_lengths_are_known(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.scrape()
        await watch.send_canary()
        await watch.capacity()
        assert sink.refusals == ["no_user_lengths"]
        assert server.generated == 1
        await watch.forecast()
        assert "0 requests, 200 needed" in (sink.forecasts[-1].capacity.reason or "")
        for requests in (0, 10, 400):  # the buckets are others than the mock server's, so the second page is the first
            server.says_on_metrics(_lengths_page(requests))
            await watch.scrape()
        await watch.forecast()
        found = sink.forecasts[-1].context.workload
        assert found["name"] == "users"
        assert isinstance(found["prompt_tokens"], dict)
        assert (found["prompt_tokens"]["tokens"][0], found["prompt_tokens"]["tokens"][-1]) == (200.0, 500.0)

    _against(host, work, capacity={"mode": "verify", "workload": "users"})


async def _users_send(watch: TargetMonitor, server: MockServer, *pages: str) -> None:
    for page in pages:  # the buckets are others than the mock server's, so the second page is the first
        server.says_on_metrics(page)
        await watch.scrape()


def test_what_users_send_has_a_forecast_of_its_own_as_soon_as_it_is_known(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.scrape()
        await watch.forecast()
        assert (len(sink.forecasts), sink.for_users, watch.status().for_users) == (1, [], None)
        await _users_send(watch, server, *(_lengths_page(requests) for requests in (0, 10, 400)))
        await watch.forecast()
        assert [each.context.workload["name"] for each in sink.forecasts] == ["short", "short"]
        (found,) = sink.for_users
        assert found.context.workload["name"] == "users"
        assert found.capacity.mode == "forecast"
        assert found.capacity.advice == "corrected", "by its record, as the other is"
        assert watch.status().for_users is found
        assert watch.status().forecast is sink.forecasts[-1]

    _against(host, work, capacity={"mode": "forecast"})


def test_where_users_are_the_workload_there_is_no_second_forecast(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.scrape()
        await _users_send(watch, server, *(_lengths_page(requests) for requests in (0, 10, 400)))
        await watch.forecast()
        assert [each.context.workload["name"] for each in sink.forecasts] == ["users"]
        assert sink.for_users == []

    _against(host, work, capacity={"mode": "forecast", "workload": "users"})


# On demand.


@pytest.mark.slow
def test_a_request_on_demand_is_a_canary_of_any_workload_and_is_counted_apart(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        own = await watch.on_demand(None)
        other = await watch.on_demand("default")
        again = await watch.on_demand("short")
        assert sink.records == [own, other, again]
        assert [r.outcome for r in sink.records] == [Outcome.OK] * 3
        assert {r.traffic for r in sink.records} == {Traffic.ONDEMAND}
        assert [(r.prompt_tokens, r.output_tokens) for r in sink.records] == [(8, 3), (256, 128), (8, 3)]
        assert watch.status().recent == (), "the strip of canaries shows what was to be expected"
        with pytest.raises(KeyError):
            await watch.on_demand("long")
        assert server.generated == 3

    _against(host, work)


# Probe traffic is no user traffic.


class Ahead:
    """A clock that a test may set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + round(self.ahead_s * 1e9)

    def wall_s(self) -> float:
        return time.time()

    def waited_ns(self) -> int:
        return 0


@pytest.mark.slow
def test_requests_on_demand_are_no_user_traffic_for_the_check_before_a_run(host: Host) -> None:
    clock = Ahead()

    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        watch.restore(example(capacity=Capacity(mode="verified", requests_per_second=0.33, upper=0.35)))
        await watch.send_canary()
        clock.ahead_s += 2
        await watch.scrape()
        for _ in range(10):
            await watch.on_demand(None)
            clock.ahead_s += 4.4
        await watch.scrape()
        assert watch.users == UserLoad(0.0, 0.0)
        await watch.capacity()
        assert sink.refusals == [], "ten requests in 44 s are two thirds of the capacity"
        assert len(sink.results) == 1

    _against(host, work, clock=clock)


@pytest.mark.slow
def test_canaries_and_requests_on_demand_beside_a_run_are_no_users_of_its_steps(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:  # noqa: ARG001
        await watch.send_canary()
        running = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(10):
            while sink.records[-1].traffic is not Traffic.CAPACITY:  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        for _ in range(5):
            await watch.send_canary()
            await watch.on_demand(None)
        await running
        (result,) = sink.results
        assert [step.users for step in result.steps] == [UserLoad(0.0, 0.0)]
        assert result.users == UserLoad(0.0, 0.0)

    _against(host, work, capacity={"mode": "verify", "concurrency": [1], "step": "3s", "confirm": "3s"})


# Held back.


def test_while_load_is_held_back_none_begins_and_what_runs_ends(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        await watch.send_canary()
        watch.inhibit_load("a rollout is under way: pods of 2 revisions")
        await watch.capacity()
        assert (sink.refusals, sink.results, server.generated) == (["rollout"], [], 1)
        state = watch.status().capacity_state
        assert state == "rollout: a rollout is under way: pods of 2 revisions"
        watch.inhibit_load(None)
        run = asyncio.create_task(watch.capacity())
        async with asyncio.timeout(10):
            while watch.status().capacity_state != "running":  # noqa: ASYNC110 - another task changes it
                await asyncio.sleep(0.01)
        watch.inhibit_load("the pod is not ready")
        await asyncio.wait_for(run, 10)
        (result,) = sink.results
        assert (result.stopped.by, result.stopped.reason) == ("interrupt", "the pod is not ready")
        assert watch.users is None, "what the server counted is not the users' alone"

    _against(host, work, capacity={"mode": "verify", "concurrency": [1], "step": "30s"})


def test_a_hold_that_comes_while_a_run_waits_for_its_lock_is_heard(host: Host) -> None:
    async def work(watch: TargetMonitor, sink: FakeSink, server: MockServer) -> None:
        @asynccontextmanager
        async def slow() -> AsyncIterator[None]:
            watch.inhibit_load("a rollout is under way")
            yield

        _takes(watch, slow)
        await watch.send_canary()
        await watch.capacity()
        assert (sink.refusals, sink.results, server.generated) == (["rollout"], [], 1)

    _against(host, work)

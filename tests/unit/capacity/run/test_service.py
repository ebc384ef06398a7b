"""However a capacity run ends, exactly one result is reported, by the daemon and by the command alike."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pytest
from example_records import CHAT, result, snapshot
from mock_servers import MockServer, mock_server
from starlette.responses import PlainTextResponse

from probe.capacity.run import service
from probe.capacity.run.admission import Admission
from probe.capacity.run.locks import LOST_LEASE
from probe.capacity.run.request import Budget, RunJob, RunRequest, context_of, steps_of
from probe.capacity.run.service import RunObservers, job_of
from probe.capacity.trend.fingerprint import fingerprint
from probe.cli import ramp
from probe.client.api_request import PLAIN_REQUESTS, RequestShape
from probe.client.endpoint import Endpoint
from probe.config.capacity import ServerLimitsConfig
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.errors import KneewatchError, LockError
from probe.core.request import Api, Omittable
from probe.core.result import CapacityResult, Stopped
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import LognormalLength, Workload
from probe.load.request_source import RequestSource
from probe.mock_server.driver import Faults
from probe.monitor import capacity_runs, target_monitor
from probe.monitor.target_monitor import TargetMonitor
from probe.observe.guard import GO
from probe.report.result_json import dumps, loads
from probe.runtime.ending import heeded_by_loop
from probe.runtime.helper_process import HelperError
from probe.scrape.scraper import Scraper

pytestmark = pytest.mark.slow

CLOCK = SystemClock()


class Silent:
    """A sink that keeps nothing."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


class LosableLock:
    """A lock that can be lost, as a Lease can (lease_lock.py)."""

    def __init__(self) -> None:
        self.is_lost = False
        self._body: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        self._body = asyncio.current_task()

    def lose(self) -> None:
        assert self._body is not None
        self.is_lost = True
        self._body.cancel(LOST_LEASE)

    async def __aexit__(self, *_: object) -> None:
        if self.is_lost and self._body is not None:
            self._body.uncancel()
            raise LockError("the lease is lost: somebody has deleted it", "lost_lock")


@dataclass
class Scene:
    """One run of one caller against the mock server."""

    server: MockServer
    patch: pytest.MonkeyPatch
    lock: LosableLock = field(default_factory=LosableLock)
    reported: list[tuple[CapacityResult, BaseException | None]] = field(default_factory=list)
    interrupt: Callable[[], None] = lambda: None
    state: str | None = None  # the daemon's status afterwards
    is_broken: bool = False  # reading the metrics raises what no caller expects

    def watch_reports(self) -> None:
        def observers(on_result: Callable[..., None], **rest: Any) -> RunObservers:
            def both(ended: CapacityResult, error: BaseException | None) -> None:
                self.reported.append((ended, error))
                on_result(ended, error)

            return RunObservers(on_result=both, **rest)

        for module in (ramp, capacity_runs):
            self.patch.setattr(module, "RunObservers", observers)
        for module in (ramp, target_monitor):
            self.patch.setattr(module, "lock", lambda *_: self.lock)

        scrape = Scraper.read

        async def read(scraper: Scraper) -> ServerSnapshot:
            if self.is_broken:
                raise ZeroDivisionError
            return await scrape(scraper)

        self.patch.setattr(Scraper, "read", read)

    async def under_load(self) -> None:
        async with asyncio.timeout(20):
            while self.server.driver.engine.running < 2:  # noqa: ASYNC110 - workers change it
                await asyncio.sleep(0.01)


def _config(url: str, capacity: dict[str, Any]) -> Config:
    return config_from(
        {
            "objectives": {"default": {"ttft": {"ratio": 0.5, "within": "5s"}}},
            "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 3}},
            "targets": [
                {
                    "name": "a",
                    "base_url": url,
                    "canary": {"workload": "short", "timeout": "2s"},
                    "capacity": {"mode": "verify", "concurrency": [2], "step": "30s", **capacity},
                }
            ],
        },
        "test",
    )


async def _daemon(scene: Scene, config: Config) -> None:
    watch = TargetMonitor(config, config.targets[0], CLOCK, Silent())  # type: ignore[arg-type]
    scene.interrupt = lambda: watch.inhibit_load("signal")
    try:
        await watch.send_canary()
        await watch.capacity()
    finally:
        scene.state = watch.status().capacity_state
        await watch.close()


async def _command(scene: Scene, config: Config) -> None:
    capacity = config.targets[0].capacity
    budget = Budget(10**9, capacity.budget.seconds, 10**6)
    asked = RunRequest("a", config.objectives_of(config.targets[0]), budget, steps_of(capacity), "short", workers=1)
    scene.interrupt = lambda: os.kill(os.getpid(), signal.SIGTERM)
    lost: list[KneewatchError] = []
    with heeded_by_loop():
        ended = await ramp.ramp_target(config, config.targets[0], asked, CLOCK, lambda _: None, on_broken=lost.append)
    assert ended is scene.reported[0][0]
    assert bool(lost) == scene.lock.is_lost


async def _waits(_: Scene) -> None:
    """It ends by itself."""


async def _loses_its_lock(scene: Scene) -> None:
    await scene.under_load()
    scene.lock.lose()


async def _is_interrupted(scene: Scene) -> None:
    await scene.under_load()
    scene.interrupt()


async def _is_interrupted_before_it_began(scene: Scene) -> None:
    entered = asyncio.Event()

    class NeverStarted:
        async def __aenter__(self) -> NoReturn:
            entered.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("it was never entered")

        def in_flight(self) -> list[Any]:
            return []

    scene.patch.setattr(service, "workers_of", lambda *_: NeverStarted())
    await entered.wait()
    scene.interrupt()


async def _metrics_go(scene: Scene) -> None:
    await scene.under_load()
    scene.server.instead["/metrics"] = PlainTextResponse("gone", 404)


async def _has_no_helper(scene: Scene) -> None:
    @asynccontextmanager
    async def unstarted(*_: object, **__: object) -> AsyncIterator[NoReturn]:
        raise HelperError("the search does not start: no memory")
        yield

    scene.patch.setattr(service, "load_plan", unstarted)


async def _loses_its_lock_before_it_began(scene: Scene) -> None:
    entered = asyncio.Event()

    @asynccontextmanager
    async def starting(*_: object, **__: object) -> AsyncIterator[NoReturn]:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError
        yield

    scene.patch.setattr(service, "load_plan", starting)
    await entered.wait()
    scene.lock.lose()


async def _breaks(scene: Scene) -> None:
    await scene.under_load()
    scene.is_broken = True


@dataclass(frozen=True)
class Row:
    """What ends a run, what its result says of that, and what is raised after it has been reported."""

    act: Callable[[Scene], Awaitable[None]]
    stopped: Stopped
    capacity: dict[str, Any] = field(default_factory=dict)
    raises: type[BaseException] | None = None
    has_sent: bool = True


ENDS = {
    "its last step": Row(_waits, Stopped("done"), {"step": "1500ms", "confirm": "1s"}),
    "its budget": Row(_waits, Stopped("budget", "seconds"), {"step": "500ms", "budget": {"seconds": 0.5}}),
    "the guard": Row(_metrics_go, Stopped("guard", "server_unreadable")),
    "an interrupt": Row(_is_interrupted, Stopped("interrupt", "signal")),
    "an interrupt before it began": Row(
        _is_interrupted_before_it_began, Stopped("interrupt", "signal"), has_sent=False
    ),
    "the loss of its lock": Row(_loses_its_lock, Stopped("interrupt", LOST_LEASE)),
    "a helper process that does not start": Row(
        _has_no_helper, Stopped("error", "HelperError"), raises=HelperError, has_sent=False
    ),
    "the loss of its lock before it began": Row(
        _loses_its_lock_before_it_began, Stopped("interrupt", LOST_LEASE), has_sent=False
    ),
    "an error of ours": Row(_breaks, Stopped("error", "ZeroDivisionError"), raises=ZeroDivisionError),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[asyncio.Runner, MockServer]]:
    with asyncio.Runner() as runner:
        serving = mock_server(faults=Faults(extra_step_s=0.01))
        yield runner, runner.run(serving.__aenter__())
        runner.run(serving.__aexit__(None, None, None))


@pytest.mark.parametrize("caller", [_daemon, _command])
@pytest.mark.parametrize("row", ENDS.values(), ids=ENDS.keys())
def test_a_run_is_reported_once_and_says_what_ended_it(
    shared: tuple[asyncio.Runner, MockServer],
    monkeypatch: pytest.MonkeyPatch,
    row: Row,
    caller: Callable[[Scene, Config], Awaitable[None]],
) -> None:
    runner, server = shared
    server.instead.clear()
    scene = Scene(server, monkeypatch)
    scene.watch_reports()

    async def main() -> BaseException | None:
        acting = asyncio.ensure_future(row.act(scene))
        async with asyncio.timeout(30):
            (raised,) = await asyncio.gather(caller(scene, _config(server.url, row.capacity)), return_exceptions=True)
            await acting
        return raised if isinstance(raised, BaseException) else None

    raised = runner.run(main())
    assert type(raised) is (row.raises or type(None)), raised
    ((ended, error),) = scene.reported
    assert ended.stopped == row.stopped
    assert type(error) is (row.raises or (asyncio.CancelledError if scene.lock.is_lost else type(None)))
    assert (ended.cost.requests > 0) == row.has_sent
    assert (ended.capacity.requests_per_second is not None) == (row.stopped.by == "done")
    assert server.driver.engine.running == 0
    if row.raises is not None and caller is _daemon:
        assert row.raises.__name__ in str(scene.state)


# What a run is asked for, and what its result holds for.


def _job(server: ServerSnapshot | None, *, tokens: int | None = None, **workload: Any) -> RunJob:
    load = Workload(**{"name": "w", "api": Api.CHAT, "prompt_tokens": 8, "output_tokens": 4, **workload})
    source = RequestSource(Endpoint("a", "http://a"), "m", load, 1.0)
    return job_of(RunRequest("a", CHAT, Budget(1000, 60.0, 5.0)), source, Admission(GO, server, tokens))


def test_other_requests_are_another_capacity() -> None:
    def digest(shape: RequestShape) -> str:
        load = Workload("w", Api.COMPLETIONS, 8, 4)
        found = replace(result(), context=context_of(snapshot(), load, CHAT, ServerLimitsConfig(), shape))
        again = loads(dumps(found))
        assert fingerprint(again.model, again.context) == fingerprint(found.model, found.context)
        return fingerprint(found.model, found.context)

    shapes = (
        PLAIN_REQUESTS,
        RequestShape(is_text=True),
        RequestShape(omitted=frozenset({Omittable.IGNORE_EOS})),
        RequestShape(omitted=frozenset({Omittable.IGNORE_EOS, Omittable.STREAM_OPTIONS})),
        RequestShape(extra={"chat_template_kwargs": {"enable_thinking": False, "stops": ["a", 1]}}),
    )
    assert len({digest(shape) for shape in shapes}) == len(shapes)
    plain = context_of(snapshot(), Workload("w", Api.COMPLETIONS, 8, 4), CHAT, ServerLimitsConfig())
    assert "request" not in plain.workload


def test_a_result_has_the_context_that_it_holds_for() -> None:
    context = _job(snapshot()).context
    assert (context.engine, context.version) == ("vllm", "0.32.0")
    assert _job(snapshot(flags={"block_size": "32"})).context.flags == {"block_size": "32"}
    assert context.gpu is None
    workload = Workload(name="w", api=Api.CHAT, prompt_tokens=8, output_tokens=4)
    assert context_of(snapshot(), workload, CHAT, ServerLimitsConfig(gpu="NVIDIA L4")).gpu == "NVIDIA L4"
    assert context.workload["name"] == "w"
    assert context.workload["api"] == "chat"
    assert context.objectives["ttft"] == {"ratio": 0.95, "within_s": 0.5}
    assert _job(None).context.version == "unknown"


def test_lengths_that_vary_are_described_whole() -> None:
    context = _job(snapshot(), prompt_tokens=LognormalLength(3000, 0.4, 8000)).context
    assert context.workload["prompt_tokens"] == {"median": 3000, "sigma": 0.4, "maximum": 8000}


@pytest.mark.parametrize(
    ("admitted", "budget"),
    [(None, (1000, "tokens_per_run")), (1000, (1000, "tokens_per_run")), (999, (999, "tokens_per_day"))],
)
def test_an_admission_lowers_the_budget_to_what_is_left_of_the_day(
    admitted: int | None, budget: tuple[int, str]
) -> None:
    job = _job(snapshot(), tokens=admitted)
    assert (job.request.budget.tokens, job.request.budget.tokens_name) == budget

"""Capacity runs on servers that misbehave in the middle, and whose own processes are killed: load gone, no figure."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from hostile_server import DONE, event
from kneewatch_command import start_kneewatch
from mock_servers import MockServer, mock_server
from monitor import Sim
from process import Process, eventually
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Send as AsgiSend

from probe.capacity.run.request import Budget, RunRequest, StepSettings
from probe.cli.ramp import ramp_target
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.result import CapacityResult
from probe.mock_server.driver import Faults

CLOCK = SystemClock()
GONE_S = 3.0
TOKENS = 20
EVENT = b'data: {"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": 8, "completion_tokens": %d}}\n\n'
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
Answer = Callable[[AsgiSend], Coroutine[None, None, None]]


async def _said(send: AsgiSend, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def hangs_after_a_token(send: AsgiSend) -> None:
    await _said(send, EVENT % 1)
    await asyncio.Event().wait()


async def pings(send: AsgiSend) -> None:
    while True:
        await _said(send, b": ping\n\n")
        await asyncio.sleep(0.05)


async def never_ends(send: AsgiSend) -> None:
    for number in range(1, 10**6):
        await _said(send, EVENT % number)
        await asyncio.sleep(0.001)


async def is_no_json(send: AsgiSend) -> None:
    await send({"type": "http.response.body", "body": b"data: {oops\n\ndata: [DONE]\n\n"})


async def answers_as_another_model(send: AsgiSend) -> None:
    """Answer at once, with as many tokens as were asked for."""
    for number in range(1, TOKENS + 1):
        choice = {"index": 0, "text": "x", "finish_reason": "length" if number == TOKENS else None}
        usage = {"prompt_tokens": 8, "completion_tokens": number}
        await _said(send, event({"model": "cheaper", "choices": [choice], "usage": usage}))
    await send({"type": "http.response.body", "body": DONE})


async def breaks_off(_: Scope, __: Receive, send: AsgiSend) -> None:
    await send(HEAD)
    await _said(send, EVENT % 1)
    raise ConnectionError("the test breaks the connection")


def streams(answer: Answer) -> ASGIApp:
    async def app(_: Scope, receive: Receive, send: AsgiSend) -> None:
        await send(HEAD)
        answering = asyncio.create_task(answer(send))
        while not answering.done() and (await receive())["type"] != "http.disconnect":
            pass
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)

    return app


@contextmanager
def counted(server: MockServer, app: ASGIApp) -> Iterator[list[int]]:
    """Serve completions by `app` from now on. Yields a list of one number: how many answers are under way."""
    open_now = [0]

    async def counting(scope: Scope, receive: Receive, send: AsgiSend) -> None:
        open_now[0] += 1
        try:
            await app(scope, receive, send)
        finally:
            open_now[0] -= 1

    server.instead["/v1/completions"] = counting
    yield open_now


def ramp_of(url: str) -> Awaitable[CapacityResult]:
    objectives = {"default": {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "1s"}}}
    canary = {"every": "3s", "timeout": "3s"}
    workload = {"prompt_tokens": 8, "output_tokens": TOKENS}
    target = {"name": "a", "base_url": url, "canary": canary}
    config = config_from({"objectives": objectives, "workloads": {"default": workload}, "targets": [target]}, "test")
    asked = RunRequest(
        "a",
        config.objectives_of(config.targets[0]),
        Budget(10**9, 600.0, 600.0),
        StepSettings(concurrency=(4, 8), seconds=30.0),
        workers=1,
    )
    return ramp_target(config, config.targets[0], asked, CLOCK, lambda _: None)


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        pytest.param(PlainTextResponse("busy", 429), "rate_limited", id="rejects"),
        pytest.param(JSONResponse({"error": "no such key"}, 401), "failed_requests", id="unauthorized"),
        pytest.param(RedirectResponse("http://127.0.0.1:1/login", 302), "failed_requests", id="redirects"),
        pytest.param(HTMLResponse("<html>maintenance</html>"), "failed_requests", id="maintenance"),
        pytest.param(streams(is_no_json), "failed_requests", id="no-json"),
        pytest.param(breaks_off, "failed_requests", id="breaks-off"),
        pytest.param(streams(answers_as_another_model), "failed_requests", id="another-model"),
        pytest.param(streams(hangs_after_a_token), "server_errors", id="hangs"),
        pytest.param(streams(pings), "server_errors|no_first_token", id="pings"),
        pytest.param(streams(never_ends), "failed_requests|server_errors", id="never-ends"),
    ],
)
@pytest.mark.fault(
    "LO32",
    "The server answers 429 under load",
    area="Load",
    users_see="`rate_limited`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="rejects",
)
@pytest.mark.fault(
    "LO33",
    "The API key is refused under load",
    area="Load",
    users_see="`failed_requests`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="unauthorized",
)
@pytest.mark.fault(
    "LO34",
    "The server redirects to a log-in under load",
    area="Load",
    users_see="`failed_requests`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="redirects",
)
@pytest.mark.fault(
    "LO35",
    "A maintenance page replaces the server under load",
    area="Load",
    users_see="`failed_requests`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="maintenance",
)
@pytest.mark.fault(
    "LO36",
    "Events are no JSON under load",
    area="Load",
    users_see="`failed_requests`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="no-json",
)
@pytest.mark.fault(
    "LO37",
    "Streams break off under load",
    area="Load",
    users_see="`failed_requests`, no figure",
    stays="load gone within 3 s, no request afterwards",
    case="breaks-off",
)
@pytest.mark.fault(
    "LO38",
    "Streams hang after their first token under load",
    area="Load",
    users_see="`server_errors` at the request's limit",
    stays="load gone within 3 s, no request afterwards",
    case="hangs",
)
@pytest.mark.fault(
    "LO39",
    "Streams send pings without end under load",
    area="Load",
    users_see="`no_first_token` or `server_errors`",
    stays="load gone within 3 s, no request afterwards",
    case="pings",
)
@pytest.mark.fault(
    "LO40",
    "Streams never end under load",
    area="Load",
    users_see="`failed_requests` or `server_errors`",
    stays="load gone within 3 s, no request afterwards",
    case="never-ends",
)
@pytest.mark.fault(
    "LO44",
    "Another model answers under load: a gateway routes elsewhere",
    area="Load",
    users_see="`failed_requests`, no figure; each answer is `wrong_answer`",
    stays="load gone within 3 s, no request afterwards",
    case="another-model",
)
def test_a_server_that_misbehaves_under_load_gets_no_more(app: ASGIApp, reason: str) -> None:
    async def main() -> None:
        async with mock_server(faults=Faults(extra_step_s=0.02)) as server:
            running = asyncio.ensure_future(ramp_of(server.url))
            async with asyncio.timeout(30):
                while server.driver.engine.running < 4:  # noqa: ASYNC110 - workers change it
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.6)  # a snapshot of the loaded server
            with counted(server, app) as open_now:
                async with asyncio.timeout(20):
                    result = await running
                asked = server.generated
                async with asyncio.timeout(GONE_S):
                    while open_now[0] or server.driver.engine.running:  # noqa: ASYNC110 - connections change it
                        await asyncio.sleep(0.01)
                assert server.generated == asked, "nothing is sent after the end"
            assert result.stopped.by == "guard"
            assert result.stopped.reason in reason.split("|")
            assert result.capacity.requests_per_second is None
            assert result.capacity.reason

    asyncio.run(main())


# The processes of a run.


def children(pid: int, words: str) -> list[int]:
    """Return the processes that this one has started whose command line has these words."""
    pids = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in pids if words in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")]


def kill(pid: int, _: Path) -> None:
    os.kill(pid, signal.SIGKILL)


def run_out_of_memory(pid: int, folder: Path) -> None:
    """Have the kernel kill the process, because its memory control group allows it nothing more."""
    root = Path("/sys/fs/cgroup/memory")
    if not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("an out-of-memory kill needs root and the memory controller at /sys/fs/cgroup/memory")
    group = root / f"kneewatch-{folder.name}-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("4096")
    (group / "cgroup.procs").write_text(str(pid))
    try:
        eventually(lambda: not is_alive(pid), within_s=20, what="the kernel kills the process")
    finally:
        (root / "cgroup.procs").write_text(str(pid)) if is_alive(pid) else None
        eventually(lambda: not (group / "cgroup.procs").read_text(), within_s=10, what="the group is empty")
        group.rmdir()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def ramp(tiny: Sim, folder: Path, *options: str) -> Iterator[Process]:
    where = (
        "--base-url",
        tiny.base_url,
        "--prompt-tokens",
        "8",
        "--output-tokens",
        "20",
        "--tpot",
        "5s",
        "--ttft",
        "5s",
    )
    running = start_kneewatch("ramp", *where, *options, "--json", folder / "result.json", log=folder / "ramp.log")
    try:
        yield running
    finally:
        running.kill()


@pytest.mark.parametrize("end", [kill, run_out_of_memory])
@pytest.mark.fault(
    "LO41",
    "A load worker is killed in the middle of a ramp",
    area="Load",
    users_see="`error (worker_lost)`, no figure, the result is written",
    stays="load gone",
    case="kill",
)
@pytest.mark.fault(
    "LO42",
    "The kernel kills a load worker for lack of memory",
    area="Load",
    users_see="`error (worker_lost)`, no figure, the result is written",
    stays="load gone",
    case="run_out_of_memory",
)
def test_a_worker_that_is_killed_ends_the_run_as_a_fault_of_the_client(
    tiny: Sim, tmp_path: Path, end: Callable[[int, Path], None]
) -> None:
    with ramp(tiny, tmp_path, "--concurrency", "4", "--step-seconds", "60", "--workers", "2") as running:
        eventually(lambda: in_flight(tiny) > 0, within_s=60, what="the load is there")
        first, _ = children(running.pid, "probe.load.worker")
        end(first, tmp_path)
        eventually(lambda: in_flight(tiny) == 0, within_s=GONE_S + 3, what="the load is gone", every_s=0.05)
        eventually(lambda: not running.alive, within_s=20, what="the end of the run")
        said = running.tail()
    assert "Traceback" not in said
    assert "Ended by:    error (worker_lost)" in said, said
    assert json.loads((tmp_path / "result.json").read_text())["capacity"]["requests_per_second"] is None


@pytest.mark.fault(
    "LO43",
    "The helper process of a search is killed",
    area="Load",
    users_see="one line that names the signal and where to look; the result so far is written",
    stays="load gone within 3 s",
)
def test_a_search_whose_helper_is_killed_ends_in_one_line_without_load(tiny: Sim, tmp_path: Path) -> None:
    with ramp(tiny, tmp_path, "--observe", "1", "--max-seconds", "60") as running:
        eventually(lambda: in_flight(tiny) > 0, within_s=60, what="the load is there")
        (helper,) = children(running.pid, "probe.runtime.helper_process")
        os.kill(helper, signal.SIGKILL)
        eventually(lambda: not running.alive, within_s=60, what="the end of the run")
        eventually(lambda: in_flight(tiny) == 0, within_s=GONE_S, what="the load is gone", every_s=0.05)
        said = running.tail()
    assert "Traceback" not in said, said
    assert "kneewatch: the helper process was killed by signal 9; look for an out-of-memory kill" in said
    assert "Ended by:    error (HelperError)" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["capacity"]["requests_per_second"] is None
    assert result["cost"]["requests"] > 0, "what was sent is accounted for"


def in_flight(server: Sim) -> float:
    """Return how many requests the server has."""
    page = httpx.get(f"{server.base_url}/metrics", timeout=20, trust_env=False).text
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(gauges))

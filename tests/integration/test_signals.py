"""The monitor as a process, because a signal is for a process: it ends its load, and with status 0."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mock_servers import mock_server

from probe.monitor.store import Store

pytestmark = pytest.mark.alone

_MONITOR = """
import asyncio, sys
from probe.monitor.app import App
from probe.core.clock import SystemClock
from probe.config.config_file import load_config
from probe.runtime.logs import configure_logs
from pathlib import Path

configure_logs()
app = App(load_config(Path(sys.argv[1])), SystemClock())

async def main():
    stop = asyncio.Event()
    monitor = asyncio.create_task(app.run(stop))
    while not app.statuses()[0].up:
        await asyncio.sleep(0.02)
    app.measure_capacity_in("a", 0.0)
    while not app.statuses()[0].capacity_state == "running":
        await asyncio.sleep(0.02)
    print("loaded", flush=True)
    await monitor

asyncio.run(main())
"""


# The same, with a machine on which nothing comes of making room for load, or whose workers never answer.
_NO_ROOM = """
import asyncio
from probe.load import local_backend

async def never(self, count):
    await asyncio.sleep(60)

local_backend.LocalBackend.open = never
"""
_NO_ANSWER = """
import asyncio
from probe.load import local_backend

async def deaf(module, *sockets, env=None):
    held = [one.fileno() for one in sockets]
    return await asyncio.create_subprocess_exec("sleep", "60", pass_fds=held, start_new_session=True)

local_backend.start_module = deaf
"""


def _written(tmp_path: Path, url: str) -> Path:
    file = tmp_path / "kneewatch.yml"
    file.write_text(
        f"""
listen: 127.0.0.1:0
store: {{path: {tmp_path}/kneewatch.db}}
workloads: {{short: {{prompt_tokens: 8, output_tokens: 3}}, long: {{prompt_tokens: 8, output_tokens: 100}}}}
targets:
  - name: a
    base_url: {url}
    canary: {{every: 1s, workload: short}}
    capacity: {{mode: verify, concurrency: [4], step: 60s, workload: long, schedule: {{cron: "0 0 29 2 *"}}}}
"""
    )
    return file


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.fault(
    "SI1",
    "SIGTERM",
    area="Signals",
    users_see="exit 0 within 4 s",
    stays="-",
)
def test_a_signal_ends_the_command_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    async def run() -> None:
        async with mock_server() as server:
            command = [sys.executable, "-m", "probe", "run", "-c", str(_written(tmp_path, server.url))]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
            try:
                await _until(lambda: server.generated >= 1)
                await _ends(process, number)
            finally:
                if process.returncode is None:
                    process.kill()

    asyncio.run(run())


@pytest.mark.fault(
    "SI2",
    "SIGTERM during a capacity run",
    area="Signals",
    users_see="the run is stored as interrupted",
    stays="load gone within 1 s of the end, exit 0",
)
def test_a_signal_during_a_capacity_run_ends_load_and_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            command = [sys.executable, "-c", _MONITOR, str(_written(tmp_path, server.url))]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                assert process.stdout is not None
                async with asyncio.timeout(15):
                    assert await process.stdout.readline() == b"loaded\n"
                await _until(lambda: server.driver.engine.running == 4)
                await _ends(process, signal.SIGTERM)
                await _until(lambda: server.driver.engine.running == 0, within_s=1)
            finally:
                if process.returncode is None:
                    process.kill()

    asyncio.run(run())
    store = Store(tmp_path / "kneewatch.db")
    assert [kept.stopped.by for kept in store.latest()] == ["interrupt"]
    store.close()


@pytest.mark.parametrize("machine", [_NO_ROOM, _NO_ANSWER])
@pytest.mark.fault(
    "SI3",
    "SIGTERM while workers are still starting",
    area="Signals",
    users_see="the run is stored as interrupted",
    stays="no worker stays",
)
def test_a_signal_while_the_load_is_still_being_started_is_not_kept_waiting(tmp_path: Path, machine: str) -> None:
    async def run() -> None:
        async with mock_server() as server:
            command = [sys.executable, "-c", machine + _MONITOR, str(_written(tmp_path, server.url))]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                assert process.stdout is not None
                async with asyncio.timeout(15):
                    assert await process.stdout.readline() == b"loaded\n"
                await asyncio.sleep(1)
                deaf = _deaf(process.pid)
                assert bool(deaf) == (machine == _NO_ANSWER)
                await _ends(process, signal.SIGTERM)
                assert not any(_is_there(one) for one in deaf)
                assert server.driver.engine.running == 0
            finally:
                if process.returncode is None:
                    process.kill()

    asyncio.run(run())
    store = Store(tmp_path / "kneewatch.db")
    assert [(kept.stopped.by, kept.stopped.reason, kept.steps) for kept in store.latest()] == [
        ("interrupt", "shutting down", ())
    ]
    store.close()


def _deaf(monitor: int) -> list[str]:
    """Return the workers that a monitor has started."""
    children = Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()
    return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]


def _is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _ends(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    assert process.stderr is not None
    before = time.monotonic()
    process.send_signal(number)
    async with asyncio.timeout(8):
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 0, errors
    assert time.monotonic() - before < 4.0
    assert "Traceback" not in errors


async def _until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is the outside that is watched
            await asyncio.sleep(0.02)

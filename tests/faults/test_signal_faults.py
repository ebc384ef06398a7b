"""Signals to `kneewatch ramp` and `kneewatch run`, and standard streams that go away: load ends, results stay."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import termios
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from kneewatch_command import COMMAND
from mock_servers import MockServer, mock_server

pytestmark = pytest.mark.alone

_WORKLOAD = ("--prompt-tokens", "8", "--output-tokens", "100", "--no-guard")
_LOAD = ("--concurrency", "4", "--step-seconds", "60", *_WORKLOAD)
# Steps so short that rows are printed while load is sent.
_ROWS = ("--concurrency", "1,2,3,4,5,6,7,8", "--requests-per-step", "3", "--confirm-seconds", "0", *_WORKLOAD)
_GONE_S = 3.0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
@pytest.mark.fault(
    "C09",
    "SIGHUP, SIGTERM or SIGINT to `ramp`",
    area="Signals",
    users_see="the result so far, ended by `interrupt (signal)`",
    stays="load gone within 3 s; files written",
)
def test_a_signal_ends_a_ramp_with_its_result(tmp_path: Path, number: signal.Signals) -> None:
    async def run() -> None:
        async with mock_server() as server, _ramp(server, *_LOAD, "--json", str(tmp_path / "result.json")) as process:
            await _until(lambda: server.driver.engine.running == 4)
            process.send_signal(number)
            await _load_gone(server)
            out, err = await process.communicate()
            assert b"Ended by:    interrupt (signal)" in out
            assert err == b""

    asyncio.run(run())
    assert _ended_by(tmp_path) == {"by": "interrupt", "reason": "signal"}


@pytest.mark.fault(
    "S02",
    "SIGHUP to `nohup kneewatch ramp`",
    area="Signals",
    users_see="nothing",
    stays="the run goes on",
)
def test_a_ramp_under_nohup_ignores_sighup() -> None:
    async def run() -> None:
        async with mock_server() as server, _ramp(server, *_LOAD, under=("nohup",)) as process:
            await _until(lambda: server.driver.engine.running == 4)
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.5)
            asked = server.generated
            await _until(lambda: server.generated > asked + 4)
            assert process.returncode is None

    asyncio.run(run())


@pytest.mark.fault(
    "S03",
    "SIGQUIT to `ramp`",
    area="Signals",
    users_see="the process ends without a result",
    stays="load gone within 3 s",
)
def test_sigquit_leaves_no_load() -> None:
    async def run() -> None:
        async with mock_server() as server, _ramp(server, *_LOAD) as process:
            await _until(lambda: server.driver.engine.running == 4)
            process.send_signal(signal.SIGQUIT)
            await _load_gone(server)

    asyncio.run(run())


@pytest.mark.parametrize("streams", ["stdin stdout", "stdin stderr", "stdin stdout stderr"])
@pytest.mark.fault(
    "S01",
    "the terminal of `ramp` is closed",
    area="Signals",
    users_see="the result in the files",
    stays="load gone within 3 s",
)
def test_a_terminal_that_closes_ends_a_ramp_with_its_result(tmp_path: Path, streams: str) -> None:
    async def run() -> None:
        ours, theirs = pty.openpty()
        elsewhere = os.open(tmp_path / "elsewhere", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        def lead_session() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        more = {name: theirs if name in streams.split() else elsewhere for name in ("stdin", "stdout", "stderr")}
        more |= {"start_new_session": True, "preexec_fn": lead_session}
        async with (
            mock_server() as server,
            _ramp(server, *_LOAD, "--json", str(tmp_path / "result.json"), more=more) as process,
        ):
            os.close(theirs)
            os.close(elsewhere)
            await _until(lambda: server.driver.engine.running == 4)
            os.close(ours)
            await _load_gone(server)
            async with asyncio.timeout(10):
                await process.wait()

    asyncio.run(run())
    assert _ended_by(tmp_path) == {"by": "interrupt", "reason": "signal"}
    assert "Traceback" not in (tmp_path / "elsewhere").read_text()


@pytest.mark.fault(
    "S04",
    "the reader of `ramp` goes away (`ramp | head`)",
    area="Signals",
    users_see="the result in the files; status 1",
    stays="load gone within 3 s",
)
def test_a_reader_that_goes_away_ends_a_ramp_with_its_result(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server, _ramp(server, *_ROWS, "--json", str(tmp_path / "result.json")) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            process.stdout._transport.close()  # type: ignore[attr-defined]
            async with asyncio.timeout(10):
                assert await process.wait() == 1
            await _load_gone(server)
            assert process.stderr is not None
            assert await process.stderr.read() == b""

    asyncio.run(run())
    assert _ended_by(tmp_path) == {"by": "interrupt", "reason": "signal"}


@pytest.mark.fault(
    "S05",
    "`ramp` with closed standard streams",
    area="Signals",
    users_see="the result in the files",
    stays="nothing printed goes into a socket or a file",
)
def test_a_ramp_without_standard_streams_writes_its_result(tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "result.json"
        closed = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
        async with mock_server() as server, _ramp(server, *_ROWS, "--json", str(file), under=closed) as process:
            async with asyncio.timeout(60):
                await process.wait()

    asyncio.run(run())
    assert _ended_by(tmp_path)["by"] == "done"


@pytest.mark.parametrize("log", ["closed", "reader gone", "/dev/full"])
@pytest.mark.fault(
    "K03",
    "the log of `run` is on a full disk, its reader has gone, or standard error is closed",
    area="Disk",
    users_see="no log meanwhile",
    stays="canaries, scrapes, reload, end with status 0",
)
def test_a_monitor_goes_on_when_its_log_cannot_be_written(tmp_path: Path, log: str) -> None:
    async def run() -> None:
        async with mock_server() as server:
            command = ["run", "-c", str(_monitored(tmp_path, server.url))]
            read, write = os.pipe()
            redirect = {"closed": "2>&-", "/dev/full": "2>/dev/full"}.get(log, "")
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND, *command), stdout=DEVNULL, stderr=write
            )
            os.close(write)
            os.close(read)
            try:
                await _until(lambda: server.generated >= 2)
                process.send_signal(signal.SIGHUP)  # reload, which logs
                asked = server.generated
                await _until(lambda: server.generated >= asked + 2)
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(10):
                    assert await process.wait() == 0
            finally:
                await _kill(process)

    asyncio.run(run())


@pytest.mark.fault(
    "SG110",
    "SIGHUP to `run` before it serves, as of a script that starts and reloads it",
    area="Signals",
    users_see="the configuration is read again, once it serves",
    stays="it goes on; SIGTERM ends it with 0",
)
def test_a_sighup_at_the_start_of_the_monitor_waits_until_it_can_reload(tmp_path: Path) -> None:
    async def run() -> None:
        async with mock_server() as server:
            file = _monitored(tmp_path, server.url)
            process = await asyncio.create_subprocess_exec(
                *("env", "--default-signal", *COMMAND, "run", "-c", str(file)), stdout=DEVNULL, stderr=PIPE
            )
            assert process.stderr is not None
            try:
                await _until(lambda: _minds(process.pid, signal.SIGHUP), within_s=20.0)
                process.send_signal(signal.SIGHUP)
                lines = []
                async with asyncio.timeout(60):
                    while not any(b"the configuration" in line for line in lines[-1:]):
                        lines.append(await process.stderr.readline())
                        assert lines[-1], lines
                assert b"kneewatch started" in b"".join(lines[:-1])
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(10):
                    _, status = await asyncio.gather(process.stderr.read(), process.wait())
                assert status == 0
            finally:
                await _kill(process)

    asyncio.run(run())


@pytest.mark.fault(
    "SG111",
    "SIGKILL to `demo`",
    area="Signals",
    users_see="-",
    stays="no temporary file; its server ends",
)
def test_a_demo_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(*COMMAND, "demo", "--port", "0", stdout=PIPE, env=environment)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                lines = [await process.stdout.readline() for _ in range(2)]
        finally:
            await _kill(process)
        assert b"status page" in lines[1], lines
        port = int(lines[0].decode().rsplit(":", 1)[1])
        await _until(lambda: not _listens(port), within_s=_GONE_S)

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _minds(pid: int, number: signal.Signals) -> bool:
    """Return whether a process blocks or catches a signal."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)) >> (number - 1) & 1)


def _monitored(folder: Path, url: str) -> Path:
    file = folder / "kneewatch.yml"
    file.write_text(
        f"listen: 127.0.0.1:0\nworkloads: {{short: {{prompt_tokens: 8, output_tokens: 3}}}}\n"
        f"targets: [{{name: a, base_url: {url}, canary: {{every: 1s, workload: short}}}}]\n"
    )
    return file


@asynccontextmanager
async def _ramp(
    server: MockServer, *options: str, under: tuple[str, ...] = (), more: Mapping[str, object] = MappingProxyType({})
) -> AsyncIterator[Process]:
    """Run a ramp until the block ends. `under`: a command that starts it.

    It heeds signals that were ignored when the tests were started, as by nohup or in the background of a script.
    """
    command = ["env", "--default-signal", *under, *COMMAND, "ramp", "--base-url", server.url, *options]
    streams: dict[str, object] = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE, **more}
    process = await asyncio.create_subprocess_exec(*command, **streams)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        await _kill(process)


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _load_gone(server: MockServer) -> None:
    await _until(lambda: server.driver.engine.running == 0, within_s=_GONE_S)


async def _until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s:.0f} s"
        await asyncio.sleep(0.02)


def _ended_by(folder: Path) -> dict[str, str | None]:
    ended: dict[str, str | None] = json.loads((folder / "result.json").read_text())["stopped"]
    return ended

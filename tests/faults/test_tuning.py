"""Whatever ends `kneewatch tune`, the server that it started ends too, and the record so far stays."""

import asyncio
import json
import shlex
import signal
import socket
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest
from kneewatch_command import COMMAND

from probe.cli.tuned_server import is_taken
from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.alone

_SIM = shlex.join([*COMMAND, "sim", "--profile", "tiny"])
_KNOB = ("--knob", "max_num_seqs=4,8", "--prompt-tokens", "64", "--output-tokens", "16", "--observe", "60")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.fault(
    "TU1",
    "SIGINT, SIGTERM, SIGHUP or SIGKILL to `tune`",
    area="Signals",
    users_see="the record so far, ended by `interrupt`; after SIGKILL as of the last step",
    stays="the server that it started ends, with its descendants",
)
def test_a_signal_ends_a_tuning_and_its_server(tmp_path: Path, number: signal.Signals) -> None:
    port, out = free_port(), tmp_path / "out"

    async def run() -> None:
        command = (*COMMAND, "tune", "--start", f"{_SIM} --port {port}", "--port", str(port), *_KNOB, "-o", str(out))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            await _until(lambda: is_taken(port))
            await asyncio.sleep(2)  # it watches the server now, for a minute
            process.send_signal(number)
            async with asyncio.timeout(20):
                _, err = await process.communicate()
            await _until(lambda: not is_taken(port))
        finally:
            if process.returncode is None:
                process.kill()
        assert b"Traceback" not in err
        assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 1)

    asyncio.run(run())
    ended_by = None if number is signal.SIGKILL else "interrupt"
    assert json.loads((out / "decision.json").read_text())["ended_by"] == ended_by


@pytest.mark.fault(
    "TU2",
    "The server of `tune` ends while it comes up",
    area="Signals",
    users_see="one line with the end of its output, without the command's secrets",
    stays="nothing is sent",
)
def test_a_server_that_does_not_come_up_is_one_line_with_the_end_of_its_output(tmp_path: Path) -> None:
    script = "import sys; print('no memory for', sys.argv[1:], file=sys.stderr); sys.exit(3)"
    start = shlex.join(["python3", "-c", script, "--api-key", "s3cret-key", "{port}"])
    status, err = _ended("--start", start, *_KNOB, "-o", str(tmp_path / "out"))
    (line,) = err.splitlines()
    assert status == 2
    assert "the server ended with status 3 before it was ready; its output ends with: no memory for" in line
    assert "s3cret-key" not in line + "".join(file.read_text() for file in (tmp_path / "out").glob("decision.*"))


@pytest.mark.fault(
    "TU4",
    "`tune --start` starts a server that other machines can reach",
    area="Security",
    users_see="one line, and `--any-host`",
    stays="the server is stopped, nothing is sent",
)
def test_a_server_that_others_can_reach_is_stopped_unless_that_is_allowed(tmp_path: Path) -> None:
    start = f"{_SIM} --host 0.0.0.0 --port {{port}}"
    status, err = _ended("--start", start, *_KNOB, "-o", str(tmp_path / "out"))
    assert status == 2
    assert "can be reached from other machines" in err


@pytest.mark.fault(
    "TU5",
    "`tune --port` is in use by another program",
    area="Security",
    users_see="one line",
    stays="that program gets no request",
)
def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, err = _ended("--start", f"{_SIM} --port {port}", "--port", port, *_KNOB, "-o", str(tmp_path / "out"))
    assert status == 2
    assert f"--port {port}: another program listens there" in err


def _ended(*options: str) -> tuple[int, str]:
    """Return the exit status and the errors of a tuning that ends by itself."""

    async def run() -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(*COMMAND, "tune", *options, stdout=PIPE, stderr=PIPE)
        async with asyncio.timeout(60):
            _, err = await process.communicate()
        return process.returncode or 0, err.decode()

    return asyncio.run(run())


async def _until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is the outside that is watched
            await asyncio.sleep(0.05)

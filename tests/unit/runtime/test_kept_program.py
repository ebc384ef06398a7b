"""A kept program ends with the process that started it, however that ends, and so do all its descendants."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.runtime.kept_program import NOT_STARTED, KeptProgram, without_own_path

pytestmark = pytest.mark.slow

# A program with a child in its group and one that has left it, as servers with worker processes and daemons have.
_FAMILY = """
import os, subprocess, sys, time
both = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True)]
open(sys.argv[1], "w").write(" ".join(str(one) for one in (os.getpid(), *(each.pid for each in both))))
time.sleep(600)
"""
_STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
_STARTER = """
import asyncio, sys
from pathlib import Path
from probe.runtime.kept_program import KeptProgram
async def main():
    await KeptProgram.start(sys.argv[2:], Path(sys.argv[1]))
    await asyncio.sleep(600)
asyncio.run(main())
"""


def _family(folder: Path, script: str = _FAMILY) -> tuple[str, ...]:
    return (sys.executable, "-c", script, str(folder / "pids"))


async def _pids(folder: Path) -> list[int]:
    await _until(lambda: (folder / "pids").exists() and len((folder / "pids").read_text().split()) == 3)
    return [int(word) for word in (folder / "pids").read_text().split()]


async def _until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it is the outside that is watched
            await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.fault("TU3")
def test_stopping_ends_the_program_and_all_its_descendants(tmp_path: Path) -> None:
    async def run() -> None:
        program = await KeptProgram.start(_family(tmp_path), tmp_path / "log")
        pids = await _pids(tmp_path)
        assert program.status is None
        await program.stop()
        assert not any(map(_runs, pids))
        assert program.status == 128 + signal.SIGTERM

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.fault("TU1")
def test_it_ends_when_the_process_that_started_it_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    command = (sys.executable, "-c", _STARTER, str(tmp_path / "log"), *_family(tmp_path))
    with subprocess.Popen(command) as starter:
        pids = asyncio.run(_pids(tmp_path))
        starter.send_signal(number)
        starter.wait(10)
    asyncio.run(_until(lambda: not any(map(_runs, pids))))


def test_it_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        program = await KeptProgram.start(_family(tmp_path), tmp_path / "log")
        first, *others = await _pids(tmp_path)
        os.kill(program._keeper.pid, signal.SIGKILL)
        await _until(lambda: not _runs(first))
        for pid in others:  # nobody is left to end them
            os.kill(pid, signal.SIGKILL)
        await program.stop()

    asyncio.run(run())


@pytest.mark.fault(
    "TU3",
    "The server of `tune` ignores SIGTERM, or has children that left its session",
    area="Signals",
    users_see="a wait of at most 20 s",
    stays="nothing of it stays",
)
def test_one_that_ignores_sigterm_is_killed_after_a_grace(tmp_path: Path) -> None:
    script = "import probe.runtime.kept_program as kept, sys; kept.GRACE_S = 0.3; sys.exit(kept.main(sys.argv[1:]))"
    command = (sys.executable, "-c", script, *_family(tmp_path, _STUBBORN + _FAMILY))
    with subprocess.Popen(command, stdin=subprocess.PIPE) as keeper:
        pids = asyncio.run(_pids(tmp_path))
        assert keeper.stdin is not None
        keeper.stdin.close()
        began = time.monotonic()
        assert keeper.wait(20) == 128 + signal.SIGKILL
        assert time.monotonic() - began >= 0.3
    assert not any(map(_runs, pids))


def test_a_program_that_ends_by_itself_tells_its_status_and_leaves_its_output(tmp_path: Path) -> None:
    async def run() -> None:
        log = tmp_path / "log"
        script = "import sys; print('no memory'); sys.exit(3)"
        program = await KeptProgram.start((sys.executable, "-c", script), log)
        assert await program.wait() == 3
        assert log.read_text() == "no memory\n"
        assert log.stat().st_mode & 0o077 == 0
        await program.stop()

    asyncio.run(run())


def test_a_program_that_is_not_there_has_a_status_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        program = await KeptProgram.start(("/nowhere/vllm", "serve"), tmp_path / "log")
        assert await program.wait() == NOT_STARTED
        assert "/nowhere/vllm: No such file" in (tmp_path / "log").read_text()

    asyncio.run(run())


def test_it_does_not_find_the_packages_of_an_installed_kneewatch() -> None:
    packages = Path("/env/kneewatch/_packages")
    for before, after in (
        ({"PYTHONPATH": f"{packages}:/mine", "A": "b"}, {"PYTHONPATH": "/mine", "A": "b"}),
        ({"PYTHONPATH": str(packages)}, {}),
        ({"A": "b"}, {"A": "b"}),
    ):
        assert without_own_path(before, packages) == after
    assert without_own_path({"PYTHONPATH": "/repo"}, Path("/repo")) == {"PYTHONPATH": "/repo"}

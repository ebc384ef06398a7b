"""One prober a server: who gets the lock, who does not, and that nobody can make us touch a file of his choice."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from probe.capacity.run import locks as module
from probe.capacity.run.locks import FileLock, shared_directory
from probe.core.clock import SystemClock
from probe.core.errors import LockError

SERVER = "llama:8000"


def _lock(directory: Path, server: str = SERVER) -> FileLock:
    return FileLock(server, directory, SystemClock())


def _refusal(lock: FileLock) -> LockError | None:
    async def tried() -> None:
        async with lock:
            pass

    try:
        asyncio.run(tried())
    except LockError as error:
        return error
    return None


def _the_file(directory: Path) -> Path:
    """Return the path of the lock's file while it is held."""
    return _lock(directory)._path


def test_it_is_held_once_and_free_again_afterwards(tmp_path: Path) -> None:
    async def held() -> None:
        async with _lock(tmp_path):
            with pytest.raises(LockError) as refused:
                async with _lock(tmp_path):
                    pass
            assert refused.value.reason == "locked"
            assert f"process {os.getpid()} on " in str(refused.value)
            async with _lock(tmp_path, "qwen:8000"):
                pass

    asyncio.run(held())
    assert _refusal(_lock(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    async def failing() -> None:
        async with _lock(tmp_path):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(failing())
    assert _refusal(_lock(tmp_path)) is None


# Other processes.

_HOLDER = """
import asyncio, sys
from pathlib import Path
from probe.core.clock import SystemClock
from probe.capacity.run.locks import FileLock

async def main():
    async with FileLock(sys.argv[1], Path(sys.argv[2]), SystemClock()):
        child = await asyncio.create_subprocess_exec("sleep", "60")
        print(child.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.fault(
    "SI13",
    "SIGKILL to the holder of a file lock",
    area="Signals",
    users_see="nothing",
    stays="the lock is free at once",
)
def test_a_lock_dies_with_its_process_and_not_only_with_its_children(tmp_path: Path, how: signal.Signals) -> None:
    """A worker that outlives the controller by its two seconds holds nothing."""
    command = [sys.executable, "-c", _HOLDER, SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            refused = _refusal(_lock(tmp_path))
            assert refused is not None
            assert f"process {holder.pid} on " in str(refused)
            holder.send_signal(how)
            holder.wait(10)
            assert _refusal(_lock(tmp_path)) is None
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.fault(
    "SI14",
    "SIGSTOP to the holder of a file lock",
    area="Signals",
    users_see="`locked`",
    stays="it is still the holder",
)
def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            holder.send_signal(signal.SIGSTOP)
            refused = _refusal(_lock(tmp_path))
            assert refused is not None
            assert refused.reason == "locked"
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


# What others may have put there.


@pytest.mark.fault(
    "DI10",
    "The lock is a link to another file",
    area="Disk",
    users_see="`no_lock`",
    stays="the file is not touched",
)
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    file, precious = _the_file(tmp_path), tmp_path / "precious"
    precious.write_text("keep me")
    file.symlink_to(precious)
    refused = _refusal(_lock(tmp_path))
    assert refused is not None
    assert refused.reason == "no_lock"
    assert precious.read_text() == "keep me"


@pytest.mark.fault(
    "DI13",
    "The lock is a hard link to another file",
    area="Disk",
    users_see="the lock is taken",
    stays="the file is not written to",
)
def test_a_hard_link_is_locked_and_not_written_to(tmp_path: Path) -> None:
    file, precious = _the_file(tmp_path), tmp_path / "precious"
    precious.write_text("keep me")
    file.hardlink_to(precious)
    assert _refusal(_lock(tmp_path)) is None
    assert precious.read_text() == "keep me"


@pytest.mark.parametrize("what", ["fifo", "folder"])
@pytest.mark.fault(
    "DI11",
    "The lock is a FIFO",
    area="Disk",
    users_see="`no_lock`, without blocking",
    stays="-",
    case="fifo",
)
@pytest.mark.fault(
    "DI12",
    "The lock is a folder",
    area="Disk",
    users_see="`no_lock`",
    stays="-",
    case="folder",
)
def test_a_lock_that_is_not_a_regular_file_is_refused_without_blocking(tmp_path: Path, what: str) -> None:
    file = _the_file(tmp_path)
    if what == "fifo":
        os.mkfifo(file)
    else:
        file.mkdir()
    refused = _refusal(_lock(tmp_path))
    assert refused is not None
    assert refused.reason == "no_lock"


@pytest.mark.parametrize(
    "said",
    ["", "{", "null", "[" * 1024, '{"pid": 1e400, "host": "h", "since": "s"}', '{"pid": 1}', "\x00" * 50],
)
def test_a_holder_who_says_nothing_sensible_is_not_named(tmp_path: Path, said: str) -> None:
    with _the_file(tmp_path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(said)
        file.flush()
        refused = _refusal(_lock(tmp_path))
    assert refused is not None
    assert str(refused) == f"another prober loads {SERVER}; wait until it ends"


def test_a_holder_s_description_is_cut_to_one_short_line(tmp_path: Path) -> None:
    with _the_file(tmp_path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"pid": 7, "host": "a\n\x1b[2Jb" * 50, "since": "now"}))
        file.flush()
        refused = _refusal(_lock(tmp_path))
    assert refused is not None
    assert str(refused).isprintable()
    assert len(str(refused)) < 300


@pytest.mark.fault(
    "DI14",
    "A cleaner of `/tmp` removes the lock while it is held",
    area="Disk",
    users_see="the next ones exclude each other",
    stays="-",
)
def test_a_file_that_was_removed_while_it_was_held_is_no_lock_for_the_next(tmp_path: Path) -> None:
    """A cleaner of /tmp: whoever comes next makes a new file, and they must exclude each other from then on."""

    async def held() -> None:
        async with first:
            _the_file(tmp_path).unlink()
            async with _lock(tmp_path):
                with pytest.raises(LockError):
                    await _lock(tmp_path).__aenter__()
                await first.__aexit__(None, None, None)
                with pytest.raises(LockError):  # the first one has not removed the file of the second one
                    await _lock(tmp_path).__aenter__()

    first = _lock(tmp_path)
    asyncio.run(held())


@pytest.mark.fault(
    "DI15",
    "The lock is removed between open and lock",
    area="Disk",
    users_see="it is opened again",
    stays="one holder",
)
def test_a_file_that_is_removed_just_before_it_is_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder went, and took it away: whoever comes next would make another one, and hold that."""
    opened: list[int] = []

    def open_too_early(path: Path) -> int:
        file = really_open(path)
        if not opened:
            path.unlink()
        opened.append(file)
        return file

    async def held() -> None:
        async with _lock(tmp_path):
            assert len(opened) == 2
            with pytest.raises(LockError):
                await _lock(tmp_path).__aenter__()

    really_open = module._open
    monkeypatch.setattr(module, "_open", open_too_early)
    asyncio.run(held())


@pytest.mark.fault(
    "DI9",
    "The lock's folder is missing",
    area="Disk",
    users_see="`no_lock`: set `lock_dir`",
    stays="no load",
)
def test_a_folder_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    refused = _refusal(_lock(tmp_path / "missing"))
    assert refused is not None
    assert refused.reason == "no_lock"
    assert "\n" not in str(refused)
    assert "No such file or directory" in str(refused)
    assert "set lock_dir" in str(refused)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_two_users_exclude_each_other(umask: int) -> None:
    """In one folder like /tmp; the second one can read the first one's file, and not write to it."""
    script = _HOLDER.replace("asyncio.run(", f"import os; os.umask({umask}); os.setuid(65534); asyncio.run(")
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o1777)
    command = [sys.executable, "-c", script, SERVER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            refused = _refusal(_lock(directory))
            assert refused is not None
            assert f"process {holder.pid} on " in str(refused)
            assert _the_file(directory).stat().st_mode & 0o777 == 0o644
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)
    assert _refusal(_lock(directory)) is None, "the holder was killed, and its file is there to be locked"
    directory.rmdir()


def test_without_a_folder_of_its_own_it_is_one_that_every_user_has() -> None:
    assert shared_directory() == Path("/tmp")  # noqa: S108 - that folder is the point

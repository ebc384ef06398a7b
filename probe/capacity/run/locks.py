"""The lock of a server: a prober holds it while it loads the server, so only one does at a time.

    async with lock: ...      raises LockError where another prober holds it, or where it cannot be taken

A lock is any async context manager (Lock): here a locked file of this machine; in a cluster it may be a Lease
(lease_lock.py). A lock that can be lost while it is held cancels its body, as asyncio.timeout does.

The file is locked by flock(2): the kernel releases it when the process ends, also by SIGKILL, and a worker process does
not inherit it. The files lie directly in a folder like /tmp: its sticky bit keeps users from removing each other's
files. A user who can read a file can lock it, so one user's run excludes another's. The file's content is for people
only.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import socket
import stat
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from probe.core.clock import Clock
from probe.core.errors import LockError
from probe.core.reasons import LOCKED, NO_LOCK
from probe.core.text import one_line

Lock = AbstractAsyncContextManager[None]

LOST_LEASE = "lost the Lease"  # the reason of a run that it ended
_MAX_HOLDER = 1024
# A lock on a file that was removed between open and flock excludes no later process, so it is tried again.
_TRIES = 5
# `locked_by_others` itself holds the lock for some microseconds.
_LOOKS = 3
_LOOK_S = 0.02
_held: set[Path] = set()  # the files that this process has locked


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of a lock as written in the file; for messages."""

    pid: int
    host: str
    since: str


class FileLock:
    """The lock of a server on this machine. Use once."""

    def __init__(self, server: str, directory: Path | None, clock: Clock) -> None:
        """Take `server`: the result of server_key. `directory`: None for the one that all users share."""
        self._path = _path(server, directory)
        self._server = server
        self._clock = clock
        self._file: int | None = None

    async def __aenter__(self) -> None:
        """Lock the file. Raises LockError."""
        try:
            self._file = _lock(self._path)
            for _ in range(_LOOKS):
                if self._file is None:
                    await asyncio.sleep(_LOOK_S)
                    self._file = _lock(self._path)
        except OSError as error:
            raise LockError(
                f"cannot lock {self._server} ({self._path}: {error.strerror}); set lock_dir to a writable folder of"
                " this machine",
                NO_LOCK.word,
            ) from None
        if self._file is None:
            raise LockError(
                f"another prober loads {self._server}{_by(_holder(self._path))}; wait until it ends", LOCKED.word
            )
        _held.add(self._path)
        _write_holder(self._file, self._holder())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):  # another user's file stays
                if _is_at(self._file, self._path):
                    self._path.unlink()  # while it is locked: a process that has opened it meanwhile checks again
            os.close(self._file)
            self._file = None
            _held.discard(self._path)

    def _holder(self) -> LockHolder:
        since = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        return LockHolder(os.getpid(), socket.gethostname(), since.isoformat(timespec="seconds"))


def locked_by_others(server: str, directory: Path | None) -> bool:
    """Return whether another process of this machine holds the lock now. An unreadable file counts as not locked."""
    path = _path(server, directory)
    if path in _held:
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # none, above all
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def shared_directory() -> Path:
    """Return where every user of this machine may lock: /tmp, or TMPDIR, which may be per user, where there is none."""
    common = Path("/tmp")  # noqa: S108 - the files are opened so that no user can replace them
    return common if os.access(common, os.W_OK | os.X_OK) else Path(os.environ.get("TMPDIR") or common)


def _path(server: str, directory: Path | None) -> Path:
    name = f"kneewatch-{hashlib.sha256(server.encode()).hexdigest()[:16]}.lock"
    return (directory or shared_directory()) / name


def _lock(path: Path) -> int | None:
    """Lock the file and return it; None where another process holds it. Raises OSError."""
    for _ in range(_TRIES):
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise OSError(0, "it keeps being removed")


def _open(path: Path) -> int:
    """Open the file, creating it if it is missing. It is a regular file, never a link.

    It may belong to another user: it can be locked without write access.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for access in (os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, PermissionError):
            return _plain(os.open(path, access | flags))
    # Without O_EXCL, Linux (fs.protected_regular) refuses to open what another user made meanwhile.
    with suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
        os.fchmod(file, 0o644)  # whatever the umask: other users must be able to lock it
        return file
    return _plain(os.open(path, os.O_RDONLY | flags))


def _plain(file: int) -> int:
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(0, "it is not a regular file")


def _is_at(file: int, path: Path) -> bool:
    """Return whether the open file is the one at the path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.lstat())
    return False


def _write_holder(file: int, holder: LockHolder) -> None:
    """Write the holder into the file, unless it is another user's or has a second name."""
    owned = os.fstat(file)
    if owned.st_uid != os.geteuid() or owned.st_nlink != 1:
        return
    with suppress(OSError):  # a full disk; the lock holds regardless
        os.ftruncate(file, 0)
        os.pwrite(file, f"{json.dumps(asdict(holder))}\n".encode(), 0)


def _holder(path: Path) -> LockHolder | None:
    """Return the holder, where the file names one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            holder = json.loads(os.pread(file, _MAX_HOLDER, 0))
        finally:
            os.close(file)
        return LockHolder(int(holder["pid"]), str(holder["host"]), str(holder["since"]))
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):  # any user may write one
        return None


def _by(holder: LockHolder | None) -> str:
    if holder is None:
        return ""
    return f" ({one_line(f'process {holder.pid} on {holder.host}, since {holder.since}')})"

"""One prober a server: whoever wants to load a server holds its lock while the load lasts.

    async with lock: ...      raises LockError where another prober has it, or where it cannot be had

A lock is any async context manager (Lock): here a locked file of this machine; in a cluster it may be a Lease. One that
can be lost while it is held cancels its body, as asyncio.timeout does.

The file is locked by flock(2): the kernel lets go when the process ends, also by SIGKILL, and a worker process does not
inherit it. Files lie straight in a folder like /tmp, whose sticky bit keeps users from removing each other's; whoever
can read a file can lock it, so one user's run keeps out another's. What the file says is for people alone.
"""

import asyncio
import fcntl
import hashlib
import ipaddress
import json
import os
import socket
import stat
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from probe.core.clock import Clock
from probe.core.errors import LockError
from probe.core.text import one_line

Lock = AbstractAsyncContextManager[None]

LOCKED, NO_LOCK = "locked", "no_lock"
LOST_LEASE = "lost the Lease"  # why a run has ended, in words
_PORTS = {"http": 80, "https": 443}
_MAX_HOLDER = 1024
# A file that was removed between our opening and our locking it keeps nobody out who comes after us.
_TRIES = 5
# Who looks whether a file is locked has it for some microseconds (`locked_by_others`).
_LOOKS, _LOOK_S = 3, 0.02
_ours: set[Path] = set()  # the files that this process has locked


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who has a lock, as the file says it; for messages."""

    pid: int
    host: str
    since: str


class FileLock:
    """The lock of a server on this machine. Used once."""

    def __init__(self, server: str, directory: Path | None, clock: Clock) -> None:
        """`server`: its address, as `server_key` writes it. `directory`: None for one that all users share."""
        self._path = _path(server, directory)
        self._server = server
        self._clock = clock
        self._file: int | None = None

    async def __aenter__(self) -> None:
        """Raises LockError."""
        try:
            self._file = _lock(self._path)
            for _ in range(_LOOKS):
                if self._file is None:
                    await asyncio.sleep(_LOOK_S)
                    self._file = _lock(self._path)
        except OSError as error:
            raise LockError(
                f"no lock can be had for {self._server} ({self._path}: {error.strerror}); set lock_dir to a folder of"
                " this machine that can be written",
                NO_LOCK,
            ) from None
        if self._file is None:
            raise LockError(f"another prober loads {self._server}{_by(_holder(self._path))}; wait for its end", LOCKED)
        _ours.add(self._path)
        _say(self._file, self._holder())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):  # another user's file stays
                if _is_at(self._file, self._path):
                    self._path.unlink()  # while it is locked: whoever opened it meanwhile looks again
            os.close(self._file)
            self._file = None
            _ours.discard(self._path)

    def _holder(self) -> LockHolder:
        since = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        return LockHolder(os.getpid(), socket.gethostname(), since.isoformat(timespec="seconds"))


def locked_by_others(server: str, directory: Path | None) -> bool:
    """Whether another process of this machine has the lock now. What cannot be read is not locked."""
    path = _path(server, directory)
    if path in _ours:
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


def server_key(base_url: str, unix_socket: str | None = None) -> str:
    """The server behind an address, written in one way: the same for every way to write it.

    A name and its address are taken for two servers, but for this machine's own.
    """
    if unix_socket is not None:
        return f"unix:{os.path.realpath(unix_socket)}"
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".").lower()
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = "localhost" if address.is_loopback or address.is_unspecified else f"[{address.compressed}]"
    return f"{host}:{parts.port or _PORTS[parts.scheme]}{parts.path.rstrip('/')}"


def shared_directory() -> Path:
    """Where every user of this machine may lock: /tmp. TMPDIR, which may be a user's own, only without one."""
    common = Path("/tmp")  # noqa: S108 - the files are opened so that nobody can put another one in their place
    return common if os.access(common, os.W_OK | os.X_OK) else Path(os.environ.get("TMPDIR") or common)


def _path(server: str, directory: Path | None) -> Path:
    name = f"kneewatch-{hashlib.sha256(server.encode()).hexdigest()[:16]}.lock"
    return (directory or shared_directory()) / name


def _lock(path: Path) -> int | None:
    """The locked file; None where somebody else has it. Raises OSError."""
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
    raise OSError(0, "it is removed again and again")


def _open(path: Path) -> int:
    """The file, made where it is missing. It is never a link, nor anything that is no plain file.

    It may be another user's: that can be locked without writing to it.
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
    raise OSError(0, "it is no file")


def _is_at(file: int, path: Path) -> bool:
    """Whether what is open is what lies there."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.lstat())
    return False


def _say(file: int, holder: LockHolder) -> None:
    """Says who has the lock, in a file of our own that has no other name; elsewhere nothing is touched."""
    owned = os.fstat(file)
    if owned.st_uid != os.geteuid() or owned.st_nlink != 1:
        return
    with suppress(OSError):  # a full disk; the lock holds all the same
        os.ftruncate(file, 0)
        os.pwrite(file, f"{json.dumps(asdict(holder))}\n".encode(), 0)


def _holder(path: Path) -> LockHolder | None:
    """Who has it, where the file says so."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            said = json.loads(os.pread(file, _MAX_HOLDER, 0))
        finally:
            os.close(file)
        return LockHolder(int(said["pid"]), str(said["host"]), str(said["since"]))
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):  # anybody may write one
        return None


def _by(holder: LockHolder | None) -> str:
    if holder is None:
        return ""
    return f" ({one_line(f'process {holder.pid} on {holder.host}, since {holder.since}')})"

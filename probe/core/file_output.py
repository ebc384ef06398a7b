"""Writing files so that the old content stays until the new one is whole: written beside, and renamed.

What a path names stays what it is: a symbolic link, a mode, an owner. What cannot be renamed over is written in place:
a pipe or device, this process's own output (/dev/stdout), a file with several names, another user's, a mount point, or
one in a folder that cannot be written. Then room is made first, so that a full disk leaves the old content.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOST_LINKS = 40  # as the kernel
_DESCRIPTORS = re.compile(r"/proc/[^/]+(/task/[^/]+)?/fd")
_NEEDS_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)
_NO_ROOM_MADE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ESPIPE)


def replace_file(path: Path, data: bytes) -> None:
    """Write the file. Raises OSError; then it has its old content."""
    replace_files({path: data})


def replace_files(files: Mapping[Path, bytes]) -> None:
    """Write the files: all are written beside before any is renamed. Raises OSError, usually with all as they were."""
    written: list[_Written] = []
    try:
        for path, data in files.items():
            place = _place(path)
            written.append(_Written(place, data, None if isinstance(place, int) else _beside(place, data)))
        for one in sorted(written, key=lambda one: one.beside is not None):
            one.put()
    finally:
        for one in written:
            one.drop()


@dataclass(slots=True)
class _Written:
    """What goes to a path or a descriptor. `beside`: the file that has it; None: it is written in place."""

    place: Path | int
    data: bytes
    beside: Path | None

    def put(self) -> None:
        if self.beside is None:
            _write_in_place(self.place, self.data)
            return
        assert isinstance(self.place, Path)  # noqa: S101 - a descriptor has none beside it
        try:
            self.beside.rename(self.place)
        except OSError as error:
            if error.errno not in _NEEDS_PLACE:
                raise
            _write_in_place(self.place, self.data)
        else:
            self.beside = None

    def drop(self) -> None:
        if self.beside is not None:
            self.beside.unlink(missing_ok=True)


def append_to_file(path: Path, data: bytes) -> None:
    """Add at the end of the file. Raises OSError; then a regular file is as it was."""
    place = _place(path)
    if isinstance(place, int):
        _write_all(place, data)
        return
    file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        before = os.fstat(file)
        try:
            _write_all(file, data)
        except BaseException:
            if stat.S_ISREG(before.st_mode):
                os.ftruncate(file, before.st_size)
            raise
    finally:
        os.close(file)


def check_replaceable(path: Path) -> None:
    """Raise OSError if the file could not be written now. Nothing waits, and no file is left."""
    place = _place(path)
    if isinstance(place, int):
        return
    beside = _beside(place, b"")
    if beside is not None:
        beside.unlink()
    elif not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def _place(path: Path) -> Path | int:
    """Follow symbolic links. Return the path at their end, or the descriptor of this process that it stands for."""
    for _ in range(_MOST_LINKS):
        if _DESCRIPTORS.fullmatch(os.path.realpath(path.parent)) and path.name.isdigit():
            return int(path.name)
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    with suppress(OSError):
        found = path.stat()
        for stream in (1, 2):
            if stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.fstat(stream)):
                return stream
    return path


def _beside(path: Path, data: bytes) -> Path | None:
    """Write the data to a new file in the same folder, and return its name; None: it must be written in place."""
    old = path.stat() if path.exists() else None
    if old is not None:
        if stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(old.st_mode) or old.st_nlink > 1:
            return None
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        file, name = tempfile.mkstemp(prefix=".kneewatch-", dir=path.parent)
    except OSError as error:
        if old is None or error.errno not in _NEEDS_PLACE:
            raise
        return None
    beside = Path(name)
    try:
        with os.fdopen(file, "wb", buffering=0):
            if old is not None and not _has_owner(file, old):
                beside.unlink()
                return None
            os.fchmod(file, stat.S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())
            _write_all(file, data)
            os.fsync(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _has_owner(file: int, old: os.stat_result) -> bool:
    """Give the file the owner and group of the old one, and return whether it has them."""
    new = os.fstat(file)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.fchown(file, old.st_uid, old.st_gid)
    except OSError:
        return False
    return True


def _write_in_place(place: Path | int, data: bytes) -> None:
    if isinstance(place, int):
        _write_all(place, data)
        return
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        before = os.fstat(file)
        if stat.S_ISREG(before.st_mode):
            _make_room(file, before.st_size, len(data))
        _write_all(file, data)
        if stat.S_ISREG(before.st_mode):
            os.ftruncate(file, len(data))
            os.fsync(file)
    finally:
        os.close(file)


def _make_room(file: int, old: int, new: int) -> None:
    if new <= old:
        return
    try:
        os.posix_fallocate(file, 0, new)
    except OSError as error:
        if error.errno not in _NO_ROOM_MADE:
            os.ftruncate(file, old)
            raise


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

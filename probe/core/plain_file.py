"""Files that are read while the event loop runs: a FIFO would hold it for ever, and /dev/zero take all memory."""

import errno
import os
import stat
from pathlib import Path

from probe.core.redactor import SECRETS

SECRET_BYTES = 64 * 1024
CERTIFICATE_BYTES = 4 * 2**20  # a bundle of authorities has 200 KB


def read_plain(file: Path | str, most: int = SECRET_BYTES) -> bytes:
    """Return the content of a regular file, or of /dev/null.

    Raises OSError, also for another kind of file (EINVAL) and for one of more than `most` bytes (EFBIG).
    """
    with os.fdopen(_opened(file), "rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(file))
    return data


def read_secret(file: Path | str) -> str:
    """Return the text of a file that holds one value, without the space around it. Raises OSError or UnicodeError.

    From now on the value is hidden in whatever Kneewatch says.
    """
    text = read_plain(file).decode().strip()
    SECRETS.add(text)
    return text


def check_plain(file: Path | str, most: int = CERTIFICATE_BYTES) -> None:
    """Raise OSError for a file that `read_plain` would not read: before a library reads it."""
    descriptor = _opened(file)
    try:
        if os.fstat(descriptor).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(file))
    finally:
        os.close(descriptor)


def is_plain(found: os.stat_result) -> bool:
    """Return whether a file has an end that is there at once: a regular file, or /dev/null."""
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
    return is_null or stat.S_ISREG(found.st_mode)


def _opened(file: Path | str) -> int:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not is_plain(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return descriptor

"""Writing the files that options name."""

import errno
import sys
from collections.abc import Mapping
from pathlib import Path

from probe.core.errors import ConfigError
from probe.core.file_output import append_to_file, check_replaceable, replace_file, replace_files

STDOUT = Path("-")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_file(path: Path, text: str, option: str) -> None:
    """Write the text to the file that an option names; `-` is standard output. Raises ConfigError with one line."""
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        sys.stdout.flush()  # what the path /dev/stdout follows
        replace_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritable(f"{option} {path}", error, "use a file in an existing directory") from None


def append_file(path: Path, text: str, option: str) -> None:
    """Add the text at the end of the file that an option names. Raises ConfigError with one line."""
    try:
        append_to_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritable(f"{option} {path}", error, "use a file in an existing directory") from None


def write_files(files: Mapping[str, str], out: Path) -> list[Path]:
    """Write each text to its file name in the directory `out`, which is created if missing. Return the paths.

    `-` is standard output: YAML as one stream of documents, JSON one after another. Raises ConfigError with one line
    that names the directory.
    """
    if out == STDOUT:
        for name, text in files.items():
            is_next = len(files) > 1 and name.endswith((".yml", ".yaml"))
            sys.stdout.write(("---\n" if is_next else "") + text.removesuffix("\n") + "\n")
        sys.stdout.flush()  # at the end of the process a full disk would be a traceback
        return []
    paths = [out / name for name in files]
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_files({path: text.encode() for path, text in zip(paths, files.values(), strict=True)})
    except OSError as error:
        raise _unwritable(f"-o {out}", error, "use a directory that can be created") from None
    return paths


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written later, and leave none that was not there. Raises ConfigError."""
    if path == STDOUT:
        return
    try:
        check_replaceable(path)
    except OSError as error:
        raise _unwritable(f"{option} {path}", error, "use a file in an existing directory") from None


def _unwritable(place: str, error: OSError, fix: str) -> ConfigError:
    if error.errno in _NO_ROOM:
        fix = "nothing was changed there; free space, or write it elsewhere"
    return ConfigError(f"{place}: cannot be written ({error.strerror}); {fix}")

"""Whether a file has changed, also through the links of a mounted ConfigMap or Secret."""

from pathlib import Path

Signature = tuple[int, int, int]


def file_signature(file: Path) -> Signature | None:
    """Return a value that changes when the file is replaced or written; None if it is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

"""Changes of the configuration file, including those of a ConfigMap's link."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

INTERVAL_S = 15.0


async def changes(path: Path, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
    """Yield whenever the file has changed, or was removed, since the last check. Never ends."""
    last = _signature(path)
    while True:
        await asyncio.sleep(interval_s)
        now = _signature(path)
        if now == last:
            continue
        last = now
        yield


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with the file or with a ConfigMap's link; None if the file is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

"""When the configuration file changes: also when it is the ConfigMap's link that does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

INTERVAL_S = 15.0


async def changes(path: Path, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
    """Endless: yields when the file has changed since it was last looked at. One that has gone has changed too."""
    seen = _signature(path)
    while True:
        await asyncio.sleep(interval_s)
        now = _signature(path)
        if now == seen:
            continue
        seen = now
        yield


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file's content, or with the link that a ConfigMap is; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

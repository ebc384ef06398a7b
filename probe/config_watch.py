"""Whether the configuration file is one that Kneewatch would start with: found out now, and not at the next restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from probe.config import load_config
from probe.errors import ConfigError

_log = structlog.get_logger()
INTERVAL_S = 15.0


async def verdicts(path: Path, interval_s: float = INTERVAL_S) -> AsyncIterator[bool]:
    """Endless: whether the file is accepted, whenever it has changed. The file that it started with counts as read."""
    seen = _signature(path)
    while True:
        await asyncio.sleep(interval_s)
        now = _signature(path)
        if now == seen:
            continue
        seen = now
        try:
            await asyncio.to_thread(load_config, path)
        except ConfigError as error:
            _log.error("the configuration file has changed and is refused", file=str(path), detail=str(error))
            yield False
        else:
            _log.info("the configuration file has changed: a restart will take it", file=str(path))
            yield True


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file's content, or with the link that a ConfigMap is; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

"""Changes of the configuration file, including those of a ConfigMap's link."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from probe.core.file_signature import file_signature

INTERVAL_S = 15.0


async def changes(path: Path, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
    """Yield whenever the file has changed, or was removed, since the last check. Never ends."""
    last = file_signature(path)
    while True:
        await asyncio.sleep(interval_s)
        now = file_signature(path)
        if now == last:
            continue
        last = now
        yield

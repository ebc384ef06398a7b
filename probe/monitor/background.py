"""Work that runs as long as the monitor does."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

_log = structlog.get_logger()
_AGAIN_S = 60.0  # before background work that ended is started again: it should not have ended


async def keep_running(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work until cancelled. Log it and start it again when it ends or raises."""
    while True:
        try:
            await work()
            _log.error("background work has ended, restarting it", work=_name(work), in_s=_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - whatever it is: it would be lost with the task
            _log.error("background work broke, restarting it", work=_name(work), in_s=_AGAIN_S, exc_info=error)
        await asyncio.sleep(_AGAIN_S)


def _name(work: Callable[[], Awaitable[None]]) -> str:
    named = work.func if isinstance(work, partial) else work
    return getattr(named, "__name__", "").strip("_")

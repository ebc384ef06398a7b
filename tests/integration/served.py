"""Pages of a made-up monitor on a real socket, in a thread of its own, beside a browser."""

import asyncio
import threading
from typing import Self

from fake_monitor import FakeMonitor

from probe.web.pages import build_pages
from probe.web.serve import serve


class Served:
    """The pages of `monitor`, whose knowledge a test may change meanwhile. A context manager."""

    def __init__(self, monitor: FakeMonitor) -> None:
        self.monitor = monitor
        self.base_url = ""
        self._there, self._leave = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._there.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with serve(build_pages(self.monitor), "127.0.0.1", 0) as self.base_url:
            self._there.set()
            await self._leave.wait()

"""The API server of the tests beside programs under test, and a kubeconfig that leads them to it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, api_server


class Cluster:
    """The API server on an event loop of its own, since the programs under test are waited for."""

    def __init__(self, api: ApiServer, loop: asyncio.AbstractEventLoop) -> None:
        self.api = api
        self._loop = loop

    def do(self, change: Callable[[ApiServer], Any]) -> None:
        """Run `change` on its loop, to its end."""

        async def there() -> None:
            if asyncio.iscoroutine(done := change(self.api)):
                await done

        asyncio.run_coroutine_threadsafe(there(), self._loop).result(10.0)


@contextmanager
def _running() -> Iterator[Cluster]:
    started, ended = threading.Event(), asyncio.Event()
    its: list[Cluster] = []

    async def main() -> None:
        async with api_server() as api:
            its.append(Cluster(api, asyncio.get_running_loop()))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(10.0)
    try:
        yield its[0]
    finally:
        its[0]._loop.call_soon_threadsafe(ended.set)
        thread.join(10.0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with _running() as its:
        monkeypatch.setenv("KUBECONFIG", str(its.api.kubeconfig(tmp_path / "kubeconfig")))
        yield its

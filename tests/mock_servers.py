"""Servers for tests of the monitor, on the test's own event loop: the mock server, whole or made to misbehave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Send as AsgiSend

from probe.mock_server.driver import HEALTHY, Driver, Faults
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app, serve_app


@dataclass(slots=True)
class MockServer:
    """A mock server that counts requests; a test can set its own answer for a path."""

    app: ASGIApp
    driver: Driver
    url: str = ""
    asked: list[str] = field(default_factory=list)
    instead: dict[str, ASGIApp] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        if scope["type"] == "http":
            self.asked.append(scope["path"])
        await self.instead.get(scope.get("path", ""), self.app)(scope, receive, send)

    @property
    def generated(self) -> int:
        """How many requests for tokens have come in."""
        return sum(path in {"/v1/completions", "/v1/chat/completions"} for path in self.asked)

    def says_on_metrics(self, page: str) -> None:
        self.instead["/metrics"] = PlainTextResponse(page)


@asynccontextmanager
async def mock_server(*, model: str = "tiny", port: int = 0, faults: Faults = HEALTHY) -> AsyncIterator[MockServer]:
    """Run the mock server on 127.0.0.1 until the block ends."""
    app = build_app(PROFILES["tiny"], model=model, faults=faults)
    server = MockServer(app, app.state.driver)
    served = _Served(server, app.state)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_app(served, host="127.0.0.1", port=port, ready=listening.set_result, handle_signals=False)  # type: ignore[arg-type]
    )
    server.url = f"http://127.0.0.1:{await listening}"
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Served:
    """What serve_app needs of an app: that it can be called, and its state."""

    app: ASGIApp
    state: object

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        await self.app(scope, receive, send)

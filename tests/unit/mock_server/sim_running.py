"""A mock server on a free loopback port, in a thread of its own, for the length of a `with`."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from probe.mock_server.driver import Driver, Faults
from probe.mock_server.server import build_app, serve_app
from probe.simulator.cost import Profile


@dataclass(frozen=True, slots=True)
class MockServer:
    port: int
    driver: Driver
    loop: asyncio.AbstractEventLoop

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Return status and body of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> str:
        status, text = self.call("GET", path)
        assert status == 200
        return text

    def post(self, path: str, body: dict[str, Any], *, status: int = 200) -> Any:
        got, text = self.call("POST", path, json.dumps(body).encode())
        assert got == status, text
        return json.loads(text)

    def breaks(self, faults: Faults) -> None:
        """Set the faults on the server's own thread, and wait until they hold."""

        async def change() -> None:
            self.driver.faults = faults

        asyncio.run_coroutine_threadsafe(change(), self.loop).result(10)

    def samples(self) -> dict[str, float]:
        """Return every sample of /metrics by name; of a labelled family the sum."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values


@contextmanager
def running(
    profile: Profile, *, model: str = "tiny", api_key: str | None = None, is_pooling: bool = False
) -> Iterator[MockServer]:
    app = build_app(profile, model=model, api_key=api_key, is_pooling=is_pooling)
    loop = asyncio.new_event_loop()
    listening = threading.Event()
    ports: list[int] = []

    def ready(port: int) -> None:
        ports.append(port)
        listening.set()

    serving = loop.create_task(serve_app(app, host="127.0.0.1", port=0, ready=ready))

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait([serving]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert listening.wait(10), "the mock server did not come up"
        yield MockServer(ports[0], app.state.driver, loop)
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)
        assert not thread.is_alive(), "the mock server did not stop"

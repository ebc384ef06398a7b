"""The mock server with a switch: faults are set while it runs, and its counters go on, as in a server that falls ill.

    python faulty_sim.py PORT PROFILE

Its steps take four times as long as the profile says: its time is then spent asleep, and a busy machine changes little.
POST /fault takes the fields of probe.mock_server.driver.Faults as JSON; those left out are healthy.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx
from process import SERVER_CORE, Process, pinned
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probe.mock_server.driver import Faults
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app, serve_app
from probe.runtime.kept_program import free_port
from probe.simulator.cost import scaled

_SLOWER = 4


class FaultySim:
    """The mock server as a process of its own. A context manager; it can be killed and started again in between."""

    def __init__(self, folder: Path, name: str, profile: str = "tiny") -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._command = pinned([sys.executable, __file__, str(self.port), profile], SERVER_CORE)
        self._log = folder / f"{name}.log"
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process without waiting; `wait` waits until it answers."""
        self._process = Process(self._command, self._log)

    def wait(self) -> None:
        assert self._process is not None
        self._process.ready(self._answers, within_s=60)

    def kill(self) -> None:
        """Kill the process, as the kernel does when memory runs out."""
        if self._process is not None:
            self._process.kill()

    def fault(self, *, extra_step_s: float = 0.0, is_stalled: bool = False, error_ratio: float = 0.0) -> None:
        """Set the server's faults from the next step on; without arguments remove them."""
        body = {"extra_step_s": extra_step_s, "is_stalled": is_stalled, "error_ratio": error_ratio}
        httpx.post(f"{self.base_url}/fault", json=body, timeout=20, trust_env=False).raise_for_status()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/health", timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False


async def _serve(port: int, profile: str) -> None:
    imitated = PROFILES[profile]
    app = build_app(replace(imitated, cost=scaled(imitated.cost, _SLOWER)), model="mock-model")

    async def fault(request: Request) -> Response:
        app.state.driver.faults = Faults(**await request.json())
        return Response()

    app.router.routes.append(Route("/fault", fault, methods=["POST"]))
    await serve_app(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))

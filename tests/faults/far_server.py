"""The mock server behind a link that fails on request, in a network namespace of its own.

    python far_server.py PORT

Out: a line for each change: the monotonic time, the requests it has now, and the requests it has had.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest
from process import SERVER_CORE, Process, eventually, pinned
from starlette.types import Receive, Scope, Send

from probe.mock_server.driver import Faults
from probe.mock_server.profiles import PROFILES
from probe.mock_server.server import build_app, serve_app

_PORT = 8000


class FarServer:
    """The server and the link to it. A context manager; skips the test where the kernel or the user cannot."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK):
            pytest.skip("a network of one's own needs root and /dev/net/tun")
        if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
            pytest.skip(f"{', '.join(missing)} is missing: apt-get install iproute2 util-linux")
        # Addresses of RFC 2544, for tests of network devices; the process's number keeps test runs apart.
        net, host = divmod(os.getpid() % 16_000, 64)
        self._near, self._far = f"198.18.{net}.{host * 4 + 1}", f"198.18.{net}.{host * 4 + 2}"
        self._name = f"kw{os.getpid()}"
        self._folder = folder
        self.base_url = f"http://{self._far}:{_PORT}"

    def __enter__(self) -> Self:
        command = ["unshare", "--net", sys.executable, __file__, str(_PORT)]
        self._server = Process(pinned(command, SERVER_CORE), self._folder / "far-server.log", env=_paths())
        try:
            eventually(self._server.tail, within_s=60, what="the server listens")
            where = (f"{self._name}n", f"{self._name}f", str(self._server.pid), self._near, self._far)
            self._link = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("shaped_link.py"), *where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._link.stdout is not None
            assert self._link.stdout.readline() == "up\n"
        except BaseException:
            self._server.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._link.communicate()
        self._server.kill()

    def weather(self, **weather: Any) -> None:
        """Set what happens to packets from now on; without arguments all arrive at once."""
        assert self._link.stdin is not None
        self._link.stdin.write(json.dumps(weather) + "\n")
        self._link.stdin.flush()

    @property
    def load(self) -> int:
        """How many requests the server has now."""
        return int(self._last()[1])

    @property
    def asked(self) -> int:
        """How many requests for tokens the server has had."""
        return int(self._last()[2])

    def _last(self) -> list[str]:
        return self._server.tail().splitlines()[-1].split()


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path)}


async def _report(state: Any, counted: list[int]) -> None:
    said = None
    while True:
        now = (state.driver.engine.running + state.driver.engine.waiting, counted[0])
        if now != said:
            print(f"{time.monotonic():.3f}", *now, flush=True)  # noqa: T201 - a script's output
            said = now
        await asyncio.sleep(0.02)


async def _serve(port: int) -> None:
    app = build_app(PROFILES["tiny"], model="mock-model", faults=Faults(extra_step_s=0.02))
    counted = [0]

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        counted[0] += scope.get("path") in {"/v1/completions", "/v1/chat/completions"}
        await app(scope, receive, send)

    counting.state = app.state  # type: ignore[attr-defined]
    reporting = asyncio.create_task(_report(app.state, counted))
    await serve_app(counting, host="0.0.0.0", port=port)  # type: ignore[arg-type]
    reporting.cancel()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))

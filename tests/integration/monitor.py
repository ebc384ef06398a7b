"""A running `kneewatch run`, or `kneewatch sim`, as a process of its own."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx
import yaml
from kneewatch_command import start_kneewatch
from process import Process

from probe.runtime.kept_program import free_port


class Monitor:
    """`kneewatch run` with `config` on a free port. A context manager; leaving it asserts a clean end.

    `env`: environment variables beside those of the test run. `verify`: the trust to reach pages over TLS; None: the
    pages are served without TLS.
    """

    def __init__(
        self,
        config: dict[str, object],
        folder: Path,
        env: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.base_url = f"{'https' if verify else 'http'}://{self.address}"
        self._verify = verify
        self.config_file = folder / "kneewatch.yml"
        self.config_file.write_text(yaml.safe_dump({"listen": self.address, **config}))
        self._log = folder / "kneewatch-run.log"
        self._env = env
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self._process = start_kneewatch("run", "-c", self.config_file, log=self._log, env=self._env)
        self._process.ready(lambda: self._answers("/-/healthy"), within_s=60)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._process is not None
        alive = self._process.alive
        status = self._process.terminate()
        if kind is None:  # a failing test's own message is the one to see
            assert alive, f"the monitor ended by itself:\n{self._process.tail()}"
            assert status == 0, f"the monitor ended with status {status}:\n{self._process.tail()}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def page(self, path: str) -> str:
        """Return the page's text. Raises httpx.HTTPStatusError."""
        url = f"{self.base_url}{path}"
        return httpx.get(url, timeout=20, trust_env=False, verify=self._verify or False).raise_for_status().text

    def is_ready(self) -> bool:
        return self._answers("/-/ready")

    def _answers(self, path: str) -> bool:
        return answers(f"{self.base_url}{path}", self._verify)


class Sim:
    """`kneewatch sim` on a free port. A context manager."""

    def __init__(self, folder: Path, profile: str = "llama-8b", *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.profile, self._options = profile, options
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "kneewatch-sim.log"
        self._process: Process | None = None

    def __enter__(self) -> Self:
        command = ("sim", "--port", str(self.port), "--profile", self.profile, *self._options)
        self._process = start_kneewatch(*command, log=self._log)
        self._process.ready(lambda: answers(f"{self.base_url}/health"), within_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()


def answers(url: str, verify: ssl.SSLContext | None = None) -> bool:
    """Report whether a GET gets a 2xx now."""
    try:
        return httpx.get(url, timeout=5, trust_env=False, verify=verify or False).is_success
    except httpx.HTTPError:
        return False

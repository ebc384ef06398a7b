"""A real Prometheus that scrapes and evaluates every second."""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from process import Process

from probe.runtime.kept_program import free_port

Sample = tuple[dict[str, str], float]


class RealPrometheus:
    """Scrapes `addresses` (host:port) under the job `kneewatch`, evaluates `rule_files`, and tells `alertmanagers`
    (host:port) what fires. A context manager.
    """

    def __init__(
        self,
        binary: str,
        folder: Path,
        *,
        addresses: Sequence[str],
        rule_files: Sequence[Path] = (),
        alertmanagers: Sequence[str] = (),
        every: str = "1s",
        jobs: Sequence[dict[str, Any]] = (),
        web_config: Path | None = None,
    ) -> None:
        """Prepare the server. `jobs` are further entries of `scrape_configs` beside the one of the addresses;
        `web_config`: the file with its TLS and logins, by which it is ready as soon as it listens.
        """
        self.port = free_port()
        self.base_url = f"{'http' if web_config is None else 'https'}://127.0.0.1:{self.port}"
        self._is_guarded = web_config is not None
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "prometheus.yml"
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": every, "evaluation_interval": every},
                    "rule_files": [str(path) for path in rule_files],
                    "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
                    "scrape_configs": [
                        {"job_name": "kneewatch", "static_configs": [{"targets": list(addresses)}]},
                        *jobs,
                    ],
                }
            )
        )
        self._command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        self._command += [f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        self._command += [f"--web.config.file={web_config}"] if web_config is not None else []
        self._log = folder / "prometheus.log"
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self._process = Process(self._command, self._log)
        self._process.ready(self._is_ready, within_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()

    def query(self, expression: str) -> list[Sample]:
        """Return labels and value of every series of an instant query. Raises AssertionError for a bad query."""
        answer = self._get("query", {"query": expression})
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def value(self, expression: str) -> float | None:
        """Return the value of the only series in the answer, or None if it is empty."""
        samples = self.query(expression)
        assert len(samples) <= 1, f"{expression}: {len(samples)} series"
        return samples[0][1] if samples else None

    def history(self, expression: str, *, seconds: float) -> list[float]:
        """Return all values of all series in the last `seconds`, one point a second."""
        now = time.time()
        asked = {"query": expression, "start": f"{now - seconds}", "end": f"{now}", "step": "1"}
        return [float(value) for each in self._get("query_range", asked)["result"] for _, value in each["values"]]

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of every firing alert, `alertname` included."""
        return [alert["labels"] for alert in self._get("alerts", {})["alerts"] if alert["state"] == "firing"]

    def _get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        answer = httpx.get(f"{self.base_url}/api/v1/{path}", params=parameters, timeout=20, trust_env=False).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        data: dict[str, Any] = answer["data"]
        return data

    def _is_ready(self) -> bool:
        if self._is_guarded:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
            return False
        try:
            return httpx.get(f"{self.base_url}/-/ready", timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False

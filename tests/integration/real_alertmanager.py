"""A real Alertmanager with the shipped routing, and the receiver that it notifies."""

import json
import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from process import Process
from threaded_server import Request, threaded_server

from benchmarks.alerts.rules import seconds_of
from probe.runtime.kept_program import free_port

Labels = Mapping[str, str]
EXAMPLE = Path(__file__).parents[2] / "deploy/examples/alertmanager.yml"


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert in a notification. `at_s` is its arrival on time.monotonic's clock; `receiver` is page or ticket.

    `group`: Alertmanager's key of the notification's group, which incident tools take for the incident.
    """

    at_s: float
    receiver: str
    firing: bool
    labels: Labels
    annotations: Mapping[str, str]
    group: str

    @property
    def about(self) -> tuple[str, str]:
        """Target and alert."""
        return self.labels.get("target", ""), self.labels["alertname"]


class Receiver:
    """Takes Alertmanager's webhooks on loopback. `notices` grows as they come. A context manager."""

    def __init__(self) -> None:
        self._come: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._notices: list[Notice] = []
        self._server: AbstractContextManager[str] = threaded_server(self._take)
        self.base_url = ""

    def __enter__(self) -> Self:
        self.base_url = self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    @property
    def notices(self) -> Sequence[Notice]:
        """All that have come, in their order. For one thread."""
        while not self._come.empty():
            self._notices.append(self._come.get())
        return self._notices

    def _take(self, request: Request, body: bytes) -> None:
        message = json.loads(body)
        at_s, receiver = time.monotonic(), request.path.strip("/")
        for alert in message["alerts"]:
            firing = alert["status"] == "firing"
            told = alert["labels"], alert["annotations"], message["groupKey"]
            self._come.put(Notice(at_s, receiver, firing, *told))
        request.answer(200, b"", "text/plain")


class RealAlertmanager:
    """Runs deploy/examples/alertmanager.yml: its tree of routes and its inhibitions, with the receivers' webhooks put
    in place and the waiting cut short, or multiplied by `scale`. A context manager.
    """

    def __init__(self, binary: str, folder: Path, receiver: Receiver, scale: float | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.base_url = f"http://{self.address}"
        config = folder / "alertmanager.yml"
        config.write_text(yaml.safe_dump(rehearsed(yaml.safe_load(EXAMPLE.read_text()), receiver.base_url, scale)))
        self._command = [binary, f"--config.file={config}", f"--storage.path={folder / 'data'}", "--log.level=warn"]
        self._command += [f"--web.listen-address={self.address}", "--cluster.listen-address="]
        self._log = folder / "alertmanager.log"
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self._process = Process(self._command, self._log)
        self._process.ready(self._is_ready, within_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()

    def post(self, alerts: Sequence[Labels]) -> None:
        """Fire these alerts, as Prometheus would send them."""
        self._send([{"labels": dict(labels)} for labels in alerts])

    def end(self, alerts: Sequence[Labels]) -> None:
        """Resolve the alerts."""
        now = datetime.now(UTC).isoformat()
        self._send([{"labels": dict(labels), "endsAt": now} for labels in alerts])

    def silenced(self) -> dict[tuple[str, str, str], bool]:
        """Return whether another alert inhibits each alert now, by target, alert and severity."""
        answer = httpx.get(f"{self.base_url}/api/v2/alerts", timeout=20, trust_env=False).raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return {
            (labels["target"], labels["alertname"], labels["severity"]): bool(each["status"]["inhibitedBy"])
            for each in found
            for labels in [each["labels"]]
        }

    def _send(self, body: list[dict[str, Any]]) -> None:
        httpx.post(f"{self.base_url}/api/v2/alerts", json=body, timeout=20, trust_env=False).raise_for_status()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/-/ready", timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def rehearsed(config: Mapping[str, Any], receiver_url: str, scale: float | None = None) -> dict[str, Any]:
    """Return the same routing with a webhook for each receiver, and waiting times of a second or multiplied."""
    short = deepcopy(dict(config))
    for route in [short["route"], *short["route"]["routes"]]:
        for name in ("group_wait", "group_interval"):
            if scale is None:
                route[name] = "1s"
            elif name in route:
                route[name] = f"{1000 * scale * seconds_of(route[name]):.0f}ms"
        route["repeat_interval"] = "1h"
    for receiver in short["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{receiver_url}/{receiver['name']}", "send_resolved": True}]
    return short

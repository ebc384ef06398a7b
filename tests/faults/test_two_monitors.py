"""Two monitors with scheduled capacity runs on one server: one loads at a time, and each reports its own load."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from faulty_sim import FaultySim
from process import CLIENT_CORE, Process, eventually, pinned

from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.alone


class Due:
    """A monitor whose capacity run is due again and again."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.base_url = f"http://127.0.0.1:{(port := free_port())}"
        capacity = {
            "mode": "verify",
            "concurrency": [2],
            "step": "2s",
            "confirm": "2s",
            "schedule": {"cron": "0 0 29 2 *"},
        }
        config = {
            "listen": f"127.0.0.1:{port}",
            "lock_dir": str(folder),
            "objectives": {"default": {"availability": 0.9}},
            "workloads": {"default": {"prompt_tokens": 8, "output_tokens": 3}},
            "targets": [
                {"name": "a", "base_url": url, "scrape": "1s", "canary": {"every": "1s"}, "capacity": capacity}
            ],
        }
        file = folder / f"{name}.yml"
        file.write_text(yaml.safe_dump(config))
        script = Path(__file__).with_name("due_run.py")
        command = pinned([sys.executable, str(script), str(file)], CLIENT_CORE)
        self.process = Process(command, folder / f"{name}.log")

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.base_url}{path}", timeout=20, trust_env=False).raise_for_status().json()

    def results(self) -> list[dict[str, Any]]:
        """Return the capacity runs that have ended by themselves."""
        if "kneewatch started" not in self.process.tail(1_000_000):
            return []
        runs = [self.get(f"/api/v1/runs/{run['id']}") for run in self.get("/api/v1/runs")]
        return [run for run in runs if run["stopped"]["by"] == "done"]


@contextmanager
def _both(url: str, folder: Path) -> Iterator[tuple[Due, Due]]:
    monitors = Due(url, folder, "one"), Due(url, folder, "other")
    try:
        yield monitors
        assert [monitor.process.terminate() for monitor in monitors] == [0, 0]
    finally:
        for monitor in monitors:
            monitor.process.kill()


def _span(run: dict[str, Any]) -> tuple[float, float]:
    began_s = datetime.fromisoformat(run["started"]).timestamp()
    return began_s, began_s + run["cost"]["seconds"]


@pytest.mark.fault(
    "LO45",
    "Two monitors have scheduled runs on one server, one after the other at once",
    area="Load",
    users_see="`locked` for the one that comes second; a run that has the lock reports no other prober",
    stays="one loads at a time; the other's load is not taken for users, its canaries are",
)
def test_of_two_monitors_one_loads_a_server_at_a_time_and_none_takes_the_others_load_for_users(tmp_path: Path) -> None:
    with FaultySim(tmp_path, "server") as server:
        server.wait()
        with _both(server.base_url, tmp_path) as monitors:
            eventually(lambda: all(one.results() for one in monitors), within_s=240, what="a run of each")
            results = [one.results() for one in monitors]
            logs = [one.process.log.read_text() for one in monitors]
    spans = sorted(_span(run) for of in results for run in of)
    assert all(end_s <= begin_s for (_, end_s), (begin_s, _) in pairwise(spans)), spans
    for run in (run for of in results for run in of):
        assert run["capacity"]["requests_per_second"] is not None, run["capacity"]
        users_rps = run["users"]["requests_per_second"]
        assert (users_rps or 0.0) < 3.0, "the other's canaries, and not its load of 25 a second"
        assert run["steps"][0]["requests"]["failed"] == 0
    reasons = {line.get("reason") for log in logs for line in map(json.loads, log.splitlines()) if "reason" in line}
    assert "locked" in reasons
    assert not any("Traceback" in log for log in logs)
    for log in logs:
        events = [json.loads(line)["event"] for line in log.splitlines()]
        first = events.index("capacity run started")
        run = events[first : events.index("capacity run ended", first)]
        assert "another prober loads the server" not in run, "it has the lock"

"""Every panel of every dashboard shows something: its queries, on a real Prometheus, are never empty."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually
from real_prometheus import RealPrometheus

from dashboards.build import queries, substitute
from probe.capacity.fingerprint import figure
from probe.prometheus import Prometheus
from probe.report.result_json import loads

pytestmark = pytest.mark.prometheus

TARGET = "stand-in"


@pytest.fixture(scope="module")
def monitor(sim: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    config: dict[str, object] = {
        "objectives": {
            "chat": {
                "availability": 0.99,
                "ttft": {"ratio": 0.95, "within": "2s"},
                "tpot": {"ratio": 0.95, "within": "200ms"},
            }
        },
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [
            {
                "name": TARGET,
                "base_url": sim.base_url,
                "objectives": "chat",
                "scrape": "1s",
                "canary": {"every": "1s", "workload": "short"},
                "capacity": {
                    "mode": "verify",
                    "workload": "short",
                    "schedule": {"cron": "* * * * *"},
                    "concurrency": [1, 2],
                    "step": "3s",
                },
            }
        ],
    }
    with Monitor(config, tmp_path_factory.mktemp("dashboards")) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(
    monitor: Monitor, prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPrometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with RealPrometheus(prometheus_binary, folder, addresses=[monitor.address]) as running:
        yield running


def test_no_panel_is_empty_once_canaries_and_a_capacity_run_are_done(
    monitor: Monitor, prometheus: RealPrometheus, tmp_path: Path
) -> None:
    done = kneewatch("dashboards", "-c", monitor.config_file, "-o", tmp_path)
    assert done.status == 0, done.err
    dashboards = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]
    asked = [substitute(query, TARGET) for dashboard in dashboards for query in queries(dashboard)]
    assert asked

    # The run starts at the full minute; two scrapes later its series have a rate.
    capacity = f'kneewatch_capacity_last_success_timestamp_seconds{{target="{TARGET}"}}'
    eventually(lambda: prometheus.query(capacity), within_s=120, what="a capacity run that found the capacity")
    empty: list[str] = []

    def all_answer() -> bool:
        empty[:] = [query for query in asked if not prometheus.query(query)]
        return not empty

    try:
        eventually(all_answer, within_s=15, what="an answer to every query", every_s=1)
    except AssertionError:
        pytest.fail("empty:\n" + "\n\n".join(empty), pytrace=False)


def test_what_prometheus_has_recorded_is_the_history_of_capacity(monitor: Monitor, prometheus: RealPrometheus) -> None:
    """For a monitor without a store: the figure is there, with what it holds for."""
    capacity = f'kneewatch_capacity_last_success_timestamp_seconds{{target="{TARGET}"}}'
    eventually(lambda: prometheus.query(capacity), within_s=120, what="a capacity run that found the capacity")
    history = asyncio.run(Prometheus(prometheus.base_url).capacity_history(TARGET, time.time()))
    runs = f"{monitor.base_url}/api/v1/runs"
    ids = [run["id"] for run in httpx.get(runs, timeout=5, trust_env=False).json()]
    results = [loads(httpx.get(f"{runs}/{one}", timeout=5, trust_env=False).text) for one in ids]
    measured = [replace(one, at_s=0.0) for result in results if (one := figure(result)) is not None]
    assert history
    for one in history:  # its time is the run's end, and not its beginning
        assert replace(one, at_s=0.0) in measured

"""Time: a wall clock that is set while the monitor runs, and a monitor that is stopped for seconds."""

import json
import os
import re
import signal
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from faulty_sim import FaultySim
from kneewatch_command import start_kneewatch
from monitor import Monitor, Sim
from process import eventually

PROMISED = {"default": {"availability": 0.999, "ttft": {"ratio": 0.95, "within": "500ms"}}}
SMALL = {"tiny": {"prompt_tokens": 8, "output_tokens": 4}}


def _config(base_url: str) -> dict[str, object]:
    target = {
        "name": "a",
        "base_url": base_url,
        "scrape": "1s",
        "canary": {"every": "1s", "timeout": "5s", "workload": "tiny"},
        "capacity": {"mode": "off"},
    }
    return {"objectives": PROMISED, "workloads": SMALL, "targets": [target]}


class SetWallClock:
    """The wall clock of a process that is started with `env`. Its monotonic clock is the machine's."""

    def __init__(self, compiler: str, folder: Path) -> None:
        library, self._offset = folder / "wall_clock.so", folder / "offset"
        source = Path(__file__).with_name("wall_clock.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self.set_ahead(0)
        self.env = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET": str(self._offset)}

    def set_ahead(self, seconds: int) -> None:
        """Set the process's wall clock to the machine's plus `seconds`."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:  # in place: the process has it mapped
            file.write(struct.pack("l", seconds))


def _canaries(page: str, outcome: str = r"\w+") -> float:
    counted = rf'^kneewatch_requests_total{{[^}}]*traffic="canary",outcome="{outcome}"}} (\S+)$'
    return sum(map(float, re.findall(counted, page, re.MULTILINE)))


def _value(page: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else None


SCRAPED = 'kneewatch_task_last_success_timestamp_seconds{task="scrape",target="a"}'


@pytest.mark.parametrize("leap_s", [-3600, -90, 3600])
@pytest.mark.fault(
    "C20",
    "The wall clock is set back by an hour while the monitor runs",
    area="Time",
    users_see="timestamps follow the clock",
    stays="canaries and scrapes at their intervals, on the monotonic clock",
    case="-3600",
)
@pytest.mark.fault(
    "C21",
    "The wall clock is set forward by an hour",
    area="Time",
    users_see="timestamps follow the clock; a capacity run that the clock leaps over is left out and counted as late",
    stays="canaries and scrapes; later capacity runs, by the new clock",
    case="3600",
)
@pytest.mark.fault(
    "C22",
    "The wall clock is set back by 90 s",
    area="Time",
    users_see="timestamps follow the clock; no capacity run is repeated",
    stays="canaries and scrapes",
    case="-90",
)
def test_a_wall_clock_that_is_set_stops_no_canary_and_no_scrape(
    leap_s: int, c_compiler: str, tiny: Sim, tmp_path: Path
) -> None:
    wall = SetWallClock(c_compiler, tmp_path)
    config = {**_config(tiny.base_url), "objectives": {"default": {"availability": 0.999}}}
    with Monitor(config, tmp_path, wall.env) as monitor:
        eventually(lambda: _canaries(monitor.page("/metrics")) >= 3, within_s=60, what="three canaries")
        before = monitor.page("/metrics")
        wall.set_ahead(leap_s)
        time.sleep(8)
        after = monitor.page("/metrics")
        assert 4 <= _canaries(after) - _canaries(before) <= 12, "none is left out, and none is repeated"
        assert _canaries(after) == _canaries(after, "ok")
        assert abs((_value(after, SCRAPED) or 0) - time.time() - leap_s) < 5
        assert _value(after, 'kneewatch_target_up{target="a"}') == 1


@pytest.mark.fault(
    "D08",
    "The monitor is stopped for 8 s in the middle of a canary, a scrape and a request on demand: SIGSTOP, "
    "a frozen virtual machine",
    area="Time",
    users_see='these canaries are `client_bound`, "Kneewatch itself did not run for 8.0 s"; the scrape is repeated',
    stays="error budgets, `kneewatch_target_up`, scrape errors",
)
def test_a_monitor_that_was_stopped_blames_no_server(tmp_path: Path) -> None:
    """As in a frozen virtual machine: canaries, a scrape and a request on demand are under way."""
    with FaultySim(tmp_path, "slow") as server:
        server.wait()
        server.fault(extra_step_s=0.4)  # an answer takes 2 s
        with Monitor(_config(server.base_url), tmp_path) as monitor, ThreadPoolExecutor() as threads:
            eventually(lambda: _canaries(monitor.page("/metrics"), "ok") >= 2, within_s=60, what="two canaries")
            asked = threads.submit(monitor.page, "/probe?target=a")
            time.sleep(0.5)
            os.kill(monitor.pid, signal.SIGSTOP)
            time.sleep(8)
            os.kill(monitor.pid, signal.SIGCONT)
            stopped = "client_bound"
            eventually(lambda: _canaries(monitor.page("/metrics"), stopped) > 0, within_s=60, what=stopped)
            page = monitor.page("/metrics")
        assert re.search(r'^probe_outcome_info{[^}]*outcome="(ok|client_bound)"', asked.result(), re.MULTILINE)
        assert _canaries(page) == _canaries(page, "ok") + _canaries(page, "client_bound")
        good = re.findall(
            r'^kneewatch_good_requests_total{[^}]*canary",objective="availability"} (\S+)$', page, re.MULTILINE
        )
        assert sum(map(float, good)) == _canaries(page), "nothing is burned"
        assert _value(page, 'kneewatch_target_up{target="a"}') == 1
        errors = re.findall(r"^kneewatch_server_scrape_errors_total{[^}]*} (\S+)$", page, re.MULTILINE)
        assert sum(map(float, errors)) == 0
        assert "Kneewatch itself did not run for" in monitor.output


def _running(server: FaultySim) -> float:
    page = httpx.get(f"{server.base_url}/metrics", trust_env=False).text
    return sum(map(float, re.findall(r"^vllm:num_requests_running{[^}]*} (\S+)$", page, re.MULTILINE)))


@pytest.mark.fault(
    "D08r",
    "`ramp` and its workers are stopped for 8 s in the middle of a step",
    area="Time",
    users_see="the run ends with `worker_lost`; the step is not judged",
    stays="nothing is in flight, no objective counts as broken",
)
def test_a_run_that_was_stopped_is_reported_and_blames_no_server(tmp_path: Path) -> None:
    """The controller and its workers stop together, as in a frozen virtual machine."""
    result = tmp_path / "result.json"
    load = (
        "--concurrency",
        "2,4",
        "--step-seconds",
        "20",
        "--confirm-seconds",
        "0",
        "--prompt-tokens",
        "16",
        "--output-tokens",
        "8",
    )
    with FaultySim(tmp_path, "server") as server:
        server.wait()
        to = ("--base-url", server.base_url, "--ttft", "500ms", "--json", result)
        ramp = start_kneewatch("ramp", *to, *load, log=tmp_path / "ramp.log")
        try:
            eventually(lambda: _running(server) >= 2, within_s=60, what="the first step")
            time.sleep(2)
            os.killpg(ramp.pid, signal.SIGSTOP)
            time.sleep(8)
            os.killpg(ramp.pid, signal.SIGCONT)
            eventually(lambda: _running(server) == 0, within_s=5, what="nothing is in flight")
            eventually(lambda: not ramp.alive, within_s=30, what="the run ends")
        finally:
            ramp.kill()
    ended = json.loads(result.read_text())
    assert ended["stopped"] == {"by": "error", "reason": "worker_lost"}
    assert [(step["valid"], step["broken"]) for step in ended["steps"]] == [(False, [])]

"""Starvation: other processes take the processor from Kneewatch. It must not blame the server for that."""

import asyncio
import multiprocessing
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvloop
from faulty_sim import FaultySim
from process import CLIENT_CORE, pinned

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.objectives import Objective, Objectives
from probe.core.request import Api, Traffic
from probe.core.step import StepPlan, StepSummary
from probe.core.workload import Workload, requests
from probe.load.step_executor import StepExecution
from probe.load.step_summary import summarize

pytestmark = pytest.mark.alone

PROMISED = Objectives("chat", ttft=Objective(0.95, 0.3), tpot=Objective(0.95, 0.1))
PLAN = StepPlan(4, 5.0)  # a closed loop: a request is due when it is sent, so no schedule lag shows the delay


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultySim]:
    with FaultySim(tmp_path_factory.mktemp("starvation"), "server") as sim:
        sim.wait()
        yield sim


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Keep the clients' core busy with so many processes, and this process on that core."""
    was = os.sched_getaffinity(0)
    burner = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]
    burners = [subprocess.Popen(pinned(burner, CLIENT_CORE)) for _ in range(count)]
    os.sched_setaffinity(0, {CLIENT_CORE})
    try:
        yield
    finally:
        for process in burners:
            process.kill()
        for process in burners:
            process.wait()
        os.sched_setaffinity(0, was)


@dataclass(frozen=True, slots=True)
class Measured:
    """A step, and by how much its mean TTFT exceeds the one that the server counted, in seconds."""

    step: StepSummary
    added_s: float


V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    """Make a control group for processes with a CPU limit; it is removed afterwards."""
    enabled = V2 / "cgroup.subtree_control"
    is_v2 = enabled.exists() and "cpu" in enabled.read_text().split()
    if os.geteuid() != 0 or not (is_v2 or (V1 / "cpu.cfs_quota_us").exists()):
        pytest.skip("needs root and a cpu controller at /sys/fs/cgroup")
    group = (V2 if is_v2 else V1) / f"kneewatch-{os.getpid()}"
    group.mkdir()
    yield group
    group.rmdir()


@contextmanager
def throttled(group: Path, share: float) -> Iterator[None]:
    """Let this process compute for this share of the time only, as a container's limit does. It stays so."""
    quota_us = round(share * 100_000)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} 100000")
    else:
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    yield


def measure_throttled(server: FaultySim, group: Path, share: float) -> Measured:
    """Measure in a process with a CPU limit."""
    ours, its = multiprocessing.Pipe()

    def run() -> None:
        its.send(uvloop.run(measure(server, throttled(group, share))))

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    try:
        assert ours.poll(90), "the throttled process has not ended"
        measured: Measured = ours.recv()
    finally:
        process.kill()
        process.join()
    return measured


async def measure(server: FaultySim, starved: AbstractContextManager[None]) -> Measured:
    """Send requests while `starved` lasts."""
    async with Client(Endpoint("a", server.base_url), SystemClock(), 30.0) as client:
        model, specs = await client.resolve_model("auto"), requests(Workload("w", Api.COMPLETIONS, 16, 8))
        ready = (client.prepare(spec, model, Traffic.CAPACITY) for spec in specs)
        await client.connect_ahead(16)
        before = _own_ttft(server)
        with starved:
            step = StepExecution(PLAN, ready, SystemClock(), lateness=client.lateness)
            summary = summarize(await step.run(asyncio.Event()), PROMISED)
        after = _own_ttft(server)
    own_s = (after[0] - before[0]) / (after[1] - before[1])
    return Measured(summary, (summary.ttft_s.mean or 0.0) - own_s)


def _own_ttft(server: FaultySim) -> tuple[float, float]:
    """Return the sum (s) and the number of the TTFTs that the server counted."""
    page = httpx.get(f"{server.base_url}/metrics", trust_env=False).text

    def total(of: str) -> float:
        found = re.findall(rf"^vllm:time_to_first_token_seconds_{of}{{[^}}]*}} (\S+)", page, re.MULTILINE)
        return sum(map(float, found))

    return total("sum"), total("count")


def check(measured: Measured) -> None:
    step = measured.step
    assert step.requests.failed == 0
    assert step.reason == "client_bound" or measured.added_s <= step.error_bound_s.ttft


@pytest.mark.parametrize("burners", [4, 16, 30])
@pytest.mark.fault(
    "D04",
    "4, 16 or 30 busy processes on Kneewatch's core",
    area="Starvation",
    users_see="the step is `client_bound`, or its error bound covers what they added",
    stays="the server is not blamed",
)
def test_the_error_bound_covers_what_a_busy_core_added(server: FaultySim, burners: int) -> None:
    check(uvloop.run(measure(server, burning(burners))))


@pytest.mark.fault(
    "D04c",
    "A CPU limit of 5 % (cgroups)",
    area="Starvation",
    users_see="the step is `client_bound`, or its error bound covers what the limit added",
    stays="the server is not blamed",
)
def test_the_error_bound_covers_what_a_cpu_limit_added(server: FaultySim, cpu_group: Path) -> None:
    check(measure_throttled(server, cpu_group, 0.05))

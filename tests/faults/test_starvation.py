"""Starvation: other processes take the processor from Kneewatch. It must not blame the server for that."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


async def measure(server: FaultySim, burners: int) -> Measured:
    """Send requests from the clients' core while so many processes keep it busy."""
    async with Client(Endpoint("a", server.base_url), SystemClock(), 30.0) as client:
        model, specs = await client.resolve_model("auto"), requests(Workload("w", Api.COMPLETIONS, 16, 8))
        ready = (client.prepare(spec, model, Traffic.CAPACITY) for spec in specs)
        await client.connect_ahead(16)
        before = _own_ttft(server)
        with burning(burners):
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


@pytest.mark.parametrize("burners", [4, 16, 30])
def test_the_error_bound_covers_what_a_busy_core_added(server: FaultySim, burners: int) -> None:
    measured = uvloop.run(measure(server, burners))
    step = measured.step
    assert step.requests.failed == 0
    assert step.reason == "client_bound" or measured.added_s <= step.error_bound_s.ttft
